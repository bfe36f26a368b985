"""How an answer is written: whole and in a stream, with usage, errors and side doors. `engines.py` has the manners."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from proxy.messages import Json, ToolCall
from proxy.testing.request import Fields, Request


@dataclass(frozen=True)
class Said:
    """What the model said. `reasoning` None is no thought, "" an empty one; `usage` {} is none."""

    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish: str
    usage: Fields | None = None
    field: str | None = None
    split: int | None = None

    def pieces(self, text: str, size: int | None = None) -> list[str]:
        """The text in the parts that a stream carries: words, or so many characters."""
        if size := self.split or size:
            return [text[at : at + size] for at in range(0, len(text), size)]
        return re.findall(r"\S+\s*|\s+", text)

    def arguments(self, call: ToolCall) -> list[str]:
        """The arguments of a call in parts; they have few blanks to part them at."""
        return self.pieces(call.arguments, 8)


class Style:
    """The plain manner. A subclass says what its engine does differently."""

    owner = "unknown"
    field = "reasoning_content"
    headers: ClassVar[dict[str, str]] = {}
    stream_headers: ClassVar[dict[str, str]] = {"content-type": "text/event-stream", "cache-control": "no-cache"}
    call_id = "call_{number:024d}"
    before_stream = b""
    before_whole = b""
    no_text: str | None = ""  # content of a whole message without text
    no_text_beside_calls: str | None = None
    opening: ClassVar[Fields] = {"role": "assistant", "content": ""}
    closing: ClassVar[Fields] = {}
    beside_text: ClassVar[Fields] = {}
    beside_thought: ClassVar[Fields] = {}
    beside_finish: ClassVar[Fields] = {}

    def whole(self, said: Said, request: Request) -> Fields:
        """A `chat.completion`."""
        choice = {"index": 0, "message": self.message(said, request), "finish_reason": said.finish}
        whole = {**self.head(request, "chat.completion"), "choices": [choice | self.beside_finish]}
        return whole | ({"usage": usage} if (usage := self.usage(said, request)) else {})

    def stream(self, said: Said, request: Request) -> Iterator[Fields]:
        """The chunks of a stream, without `[DONE]`."""
        for delta in self.open(list(self.deltas(said, request))):
            yield self.chunk(request, [self.choice(delta)])
        yield from self.finish(said, request, self.closing)

    def message(self, said: Said, request: Request) -> Fields:
        """The message of a whole answer."""
        blank = self.no_text_beside_calls if said.calls else self.no_text
        message: Fields = {"role": "assistant", "content": said.text or blank}
        if said.reasoning is not None:
            message[said.field or self.field] = said.reasoning
        if said.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for id, call in zip(self.ids(said, request), said.calls, strict=True)
            ]
        return message

    def deltas(self, said: Said, request: Request) -> Iterator[Fields]:
        """Thought, text and calls in parts."""
        for part in self.thoughts(said):
            yield {**self.beside_thought, said.field or self.field: part}
        for part in said.pieces(said.text):
            yield {"content": part, **self.beside_text}
        for index, (id, call) in enumerate(zip(self.ids(said, request), said.calls, strict=True)):
            for fragment in self.fragments(index, id, call.name, said.arguments(call)):
                yield {"tool_calls": [fragment], **self.beside_text}

    def thoughts(self, said: Said) -> list[str]:
        """The thought in parts; an empty one is one empty part."""
        return said.pieces(said.reasoning) or [""] if said.reasoning is not None else []

    def open(self, deltas: list[Fields]) -> list[Fields]:
        """The deltas with the one that names the role."""
        return [self.opening, *deltas]

    def fragments(self, index: int, id: str, name: str, parts: list[str]) -> Iterator[Fields]:
        """The parts of one tool call."""
        yield {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        for part in parts:
            yield {"index": index, "function": {"arguments": part}}

    def finish(self, said: Said, request: Request, last: Fields) -> list[Fields]:
        """The chunk with the finish reason, and the one with the usage where it was asked for."""
        chunks = [self.chunk(request, [self.choice(last, said.finish) | self.beside_finish])]
        if request.include_usage and (usage := self.usage(said, request)):
            chunks.append({**self.chunk(request, []), "usage": usage})
        return chunks

    def choice(self, delta: Fields, finish: str | None = None) -> Fields:
        """What a chunk says of its one choice."""
        return {"index": 0, "delta": delta, "finish_reason": finish}

    def chunk(self, request: Request, choices: list[Fields]) -> Fields:
        """One event of a stream."""
        return {**self.head(request, "chat.completion.chunk"), "choices": choices}

    def head(self, request: Request, kind: str) -> Fields:
        """What stands at the front of every answer and chunk."""
        model = request.get("model") or "fake"
        return {"id": f"chatcmpl-{request.number}", "object": kind, "created": 1, "model": model}

    def ids(self, said: Said, request: Request) -> list[str]:
        """Ids of the calls: their own, else numbered through the conversation, so that each has the same ones."""
        before = sum(len(message.get("tool_calls") or []) for message in request.messages)
        return [
            call.id or self.call_id.format(name=call.name, number=number)
            for number, call in enumerate(said.calls, before)
        ]

    def usage(self, said: Said, request: Request) -> Fields:
        """As scripted, else counted: a word of the messages and a delta of the answer are a token."""
        if said.usage is not None:
            return said.usage
        names = ("content", "reasoning_content", "reasoning")
        prompt = sum(len(str(message.get(name) or "").split()) for message in request.messages for name in names)
        thought = len(said.pieces(said.reasoning or ""))
        completion = thought + len(said.pieces(said.text)) + sum(len(said.arguments(call)) for call in said.calls)
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return counts | self.details(thought)

    def details(self, thought: int) -> Fields:
        """What the usage says beside the three counts."""
        return {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }

    def error(self, status: int, message: str) -> Fields:
        """The body of an error."""
        return {"error": {"message": message, "type": error_type(status), "param": None, "code": None}}

    def error_headers(self, status: int) -> dict[str, str]:
        """Headers that only errors have."""
        return {}

    def unknown(self, request: Request) -> tuple[Json, int]:
        """What a path answers that the engine does not have."""
        return self.error(404, "File Not Found"), 404

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """What the paths beside the chat answer: a body, or a function of the request that gives body and status."""
        entry = {"id": model, "object": "model", "created": 1, "owned_by": self.owner, **self.about(model, context)}
        return {
            "/health": {"status": "ok"},
            "/v1/models": {"object": "list", "data": [entry]},
            f"/v1/models/{model}": entry,
        }

    def control(self, request: Request, chats: Sequence[Request]) -> tuple[Json, int] | None:
        """What a path answers that changes a running chat; None where this is no such path."""
        return None

    def about(self, model: str, context: int) -> Fields:
        """What the list of models says of one beside its name."""
        return {}


def error_type(status: int) -> str:
    """The usual word for a status."""
    words = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_reached_error"}
    return words.get(status, "invalid_request_error" if status < 500 else "server_error")
