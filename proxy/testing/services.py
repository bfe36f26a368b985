"""The manners of hosted services.

Read in Moonshot's official clients and in the documentation and recorded answers of DeepSeek and OpenRouter (October
2026).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from proxy.messages import Json
from proxy.testing.request import Fields, Request
from proxy.testing.styles import Said, Style, error_type


class OpenAI(Style):
    """OpenAI's own servers: `usage: null` on every chunk of a stream that ends with the usage."""

    owner = "openai"

    def message(self, said: Said, request: Request) -> Fields:
        """A refusal, null."""
        return super().message(said, request) | {"refusal": None}

    def chunk(self, request: Request, choices: list[Fields]) -> Fields:
        """The usage to come, null."""
        return super().chunk(request, choices) | ({"usage": None} if request.include_usage else {})


class Kimi(Style):
    """Moonshot: usage inside the finish choice, asked for or not; cached tokens at the top of it."""

    owner = "moonshot"
    headers: ClassVar[dict[str, str]] = {"x-trace-id": "fake-trace"}
    call_id = "functions.{name}:{number}"
    no_text_beside_calls = ""

    def finish(self, said: Said, request: Request, last: Fields) -> list[Fields]:
        """The usage is in the choice, and there is no chunk for it."""
        choice = self.choice(last, said.finish)
        if usage := self.usage(said, request):
            choice["usage"] = usage
        return [self.chunk(request, [choice])]

    def details(self, thought: int) -> Fields:
        """Cached tokens at the top."""
        return {"cached_tokens": 0, "completion_tokens_details": {"reasoning_tokens": thought}}

    def error(self, status: int, message: str) -> Fields:
        """No code, no param."""
        return {"error": {"type": error_type(status), "message": message}}

    def about(self, model: str, context: int) -> Fields:
        """Window and efforts."""
        efforts = {"support": True, "valid_efforts": ["low", "high", "max"], "default_effort": "max"}
        return {"context_length": context, "supports_thinking_type": "only", "think_efforts": efforts}


class DeepSeek(Style):
    """DeepSeek: comments first, a null beside everything, the usage with the finish and the cache in its own words."""

    owner = "deepseek"
    before_stream = b": keep-alive\n\n"
    before_whole = b"\n\n"
    beside_thought: ClassVar[Fields] = {"content": None}
    beside_text: ClassVar[Fields] = {"reasoning_content": None}
    closing: ClassVar[Fields] = {"content": "", "reasoning_content": None}
    beside_finish: ClassVar[Fields] = {"logprobs": None}

    def open(self, deltas: list[Fields]) -> list[Fields]:
        """A thought begins with an empty part beside the role."""
        thinks = bool(deltas) and deltas[0].get("content", "") is None
        first: Fields = {"content": None, "reasoning_content": ""} if thinks else {"content": ""}
        return [{"role": "assistant", **first}, *deltas]

    def finish(self, said: Said, request: Request, last: Fields) -> list[Fields]:
        """The usage is on the chunk with the finish reason."""
        chunk = self.chunk(request, [self.choice(last, said.finish) | self.beside_finish])
        usage = self.usage(said, request) if request.include_usage else {}
        return [chunk | ({"usage": usage} if usage else {})]

    def usage(self, said: Said, request: Request) -> Fields:
        """The misses of the cache are counted too."""
        usage = super().usage(said, request)
        if said.usage is not None:
            return usage
        return usage | {"prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": usage["prompt_tokens"]}

    def error(self, status: int, message: str) -> Fields:
        """The code is the type."""
        kind = error_type(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": kind}}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """The list of models without `created`, also beside `/v1`; no health."""
        entry = {"id": model, "object": "model", "owned_by": self.owner}
        models = {"object": "list", "data": [entry]}
        return {"/v1/models": models, "/models": models, f"/v1/models/{model}": entry}


class OpenRouter(Style):
    """OpenRouter: comments first, the role on every chunk, the thought as text and as details, who it was asked of."""

    field = "reasoning"
    before_stream = b": OPENROUTER PROCESSING\n\n"
    before_whole = b"\n         \n"
    no_text = None
    beside_thought: ClassVar[Fields] = {"content": ""}
    closing: ClassVar[Fields] = {"role": "assistant", "content": ""}

    def message(self, said: Said, request: Request) -> Fields:
        """What is unset is null, and the thought stands there twice."""
        details = {"reasoning_details": _details(said.reasoning)} if said.reasoning else {}
        return {"refusal": None, "reasoning": None} | super().message(said, request) | details

    def deltas(self, said: Said, request: Request) -> Iterator[Fields]:
        """Each names the role, and has the thought twice."""
        for delta in super().deltas(said, request):
            thought = delta.get(self.field)
            details = {"reasoning_details": _details(thought)} if thought else {}
            yield {"role": "assistant", "content": None} | delta | details

    def open(self, deltas: list[Fields]) -> list[Fields]:
        """No chunk for the role alone."""
        return deltas or [self.closing]

    def choice(self, delta: Fields, finish: str | None = None) -> Fields:
        """The provider's own word for the finish."""
        return super().choice(delta, finish) | {"native_finish_reason": finish, "logprobs": None}

    def finish(self, said: Said, request: Request, last: Fields) -> list[Fields]:
        """The usage comes beside a choice that says nothing."""
        chunks = [self.chunk(request, [self.choice(last, said.finish)])]
        if request.include_usage and (usage := self.usage(said, request)):
            chunks.append({**self.chunk(request, [self.choice(self.closing)]), "usage": usage})
        return chunks

    def head(self, request: Request, kind: str) -> Fields:
        """Who answers."""
        return super().head(request, kind) | {"id": f"gen-{request.number}", "provider": "Moonshot AI"}

    def error(self, status: int, message: str) -> Fields:
        """The code is the status."""
        return {"error": {"code": status, "message": message}}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """One list, without owners, below `/api` too; no health."""
        entry = {"id": model, "name": model, "created": 1, **self.about(model, context)}
        models = {"data": [entry]}
        return {"/v1/models": models, "/api/v1/models": models, f"/v1/models/{model}": entry}

    def about(self, model: str, context: int) -> Fields:
        """Window and parameters."""
        return {"context_length": context, "supported_parameters": ["max_tokens", "reasoning", "tools"]}


def _details(thought: str | None) -> list[Fields]:
    return [{"type": "reasoning.text", "text": thought, "format": "unknown", "index": 0}]
