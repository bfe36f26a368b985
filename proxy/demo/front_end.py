"""A scripted chat front end that does what Open WebUI does: it drops the thought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from proxy import sse
from proxy.errors import ProxyError


class DemoFailed(ProxyError):
    """The demo could not be held, or did not show what it is to show."""

    code = "demo_failed"


@dataclass
class Answer:
    """A streamed answer. Token counts are the engine's own; `headers` are those of the response."""

    headers: httpx.Headers
    thought: str = ""
    text: str = ""
    finish: str = ""
    prompt: int = 0
    cached: int = 0
    written: int = 0

    @property
    def fresh(self) -> int:
        """Tokens of the prompt that the engine had to evaluate."""
        return self.prompt - self.cached

    @property
    def restored(self) -> int:
        """Turns that got their thought back, as the proxy says."""
        said = dict(part.strip().split("=") for part in self.headers.get("x-proxy-history", "").split(";") if part)
        return int(said.get("restored", 0))

    def take(self, event: dict[str, Any]) -> None:
        """Add one event of the stream. Raises DemoFailed where the stream says that it broke."""
        if "error" in event:
            raise DemoFailed(f"the answer broke off: {event['error']}")
        for choice in event["choices"]:
            self.thought += choice["delta"].get("reasoning_content") or ""
            self.text += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
        if usage := event.get("usage"):
            self.prompt, self.written = usage["prompt_tokens"], usage["completion_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@dataclass
class FrontEnd:
    """A front end that keeps the role and the text of each message, and nothing else.

    `progress` is told what the model does, at every event.
    """

    url: str
    model: str
    progress: Callable[[str], None]
    said: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str, **fields: Any) -> Answer:
        """Send the history with a question; question and answer then are history."""
        self.said.append({"role": "user", "content": question})
        answer = self._send(**fields)
        self.said.append({"role": "assistant", "content": answer.text})
        return answer

    def _send(self, **fields: Any) -> Answer:
        options = {"stream": True, "stream_options": {"include_usage": True}, **fields}
        body = {"model": self.model, "messages": self.said, **options}
        patience = httpx.Timeout(10, read=None)  # a large model may be silent for long
        decoder, count = sse.Decoder(), 0
        # A connection of its own: llama-server closes one after a stream without a word.
        with httpx.stream("POST", f"{self.url}/chat/completions", json=body, timeout=patience) as response:
            if response.status_code != httpx.codes.OK:
                raise DemoFailed(f"{self.url} answers {response.status_code}: {response.read().decode()}")
            answer = Answer(response.headers)
            for data in response.iter_bytes():
                for payload in decoder.feed(data):
                    if payload != sse.DONE:
                        answer.take(msgspec.json.decode(payload))
                        count += 1
                        self.progress(f"{'answers' if answer.text else 'thinks'}, {count} tokens")
        if not answer.finish:
            raise DemoFailed("the answer broke off")
        return answer


@dataclass(frozen=True)
class Conversation:
    """Two turns, and the first question once more, alone and with a small cap."""

    first: Answer
    second: Answer
    capped: Answer
