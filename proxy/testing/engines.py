"""The manners of the engines, by the names that the configuration uses.

Seen on the wire of llama.cpp b11434 and vLLM 0.32.0, or read in the sources of vLLM, SGLang 0.5.23, Ollama 0.33 and
Moonshot's official clients (October 2026).
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


class LlamaServer(Style):
    """llama.cpp's own server: null content first, keys in its order, `timings` unasked, no reasoning count."""

    owner = "llamacpp"
    headers: ClassVar[dict[str, str]] = {"server": "llama.cpp"}
    stream_headers: ClassVar[dict[str, str]] = {
        "content-type": "text/event-stream",
        "keep-alive": "timeout=5, max=100",
        "x-accel-buffering": "no",
    }
    opening: ClassVar[Fields] = {"role": "assistant", "content": None}

    def whole(self, said: Said, request: Request) -> Fields:
        """With timings."""
        return super().whole(said, request) | {"timings": self.timings(said, request)}

    def finish(self, said: Said, request: Request, last: Fields) -> list[Fields]:
        """The timings are in the last chunk, whichever it is."""
        *chunks, final = super().finish(said, request, last)
        return [*chunks, final | {"timings": self.timings(said, request)}]

    def choice(self, delta: Fields, finish: str | None = None) -> Fields:
        """The finish reason first."""
        return {"finish_reason": finish, "index": 0, "delta": delta}

    def chunk(self, request: Request, choices: list[Fields]) -> Fields:
        """The choices first."""
        head = self.head(request, "chat.completion.chunk")
        names = ("created", "id", "model", "system_fingerprint", "object")
        return {"choices": choices, **{name: head[name] for name in names}}

    def head(self, request: Request, kind: str) -> Fields:
        """The build."""
        return super().head(request, kind) | {"system_fingerprint": "b11434-fake"}

    def fragments(self, index: int, id: str, name: str, parts: list[str]) -> Iterator[Fields]:
        """The first fragment has arguments already."""
        first, *rest = parts or [""]
        yield {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": first}}
        for part in rest:
            yield {"index": index, "function": {"arguments": part}}

    def details(self, thought: int) -> Fields:
        """No count of the thought."""
        return {"prompt_tokens_details": {"cached_tokens": 0}}

    def timings(self, said: Said, request: Request) -> Fields:
        """100 tokens a second in, 10 out, in agreement with the usage."""
        usage = self.usage(said, request)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        read, written = usage.get("prompt_tokens", 0) - cached, usage.get("completion_tokens", 0)
        return {
            "cache_n": cached,
            "prompt_n": read,
            "prompt_ms": read * 10.0,
            "prompt_per_token_ms": 10.0,
            "prompt_per_second": 100.0,
            "predicted_n": written,
            "predicted_ms": max(0, written - 1) * 100.0,  # the first token is not in it
            "predicted_per_token_ms": 100.0,
            "predicted_per_second": 10.0,
        }

    def error(self, status: int, message: str) -> Fields:
        """The code is the status."""
        return {"error": {"code": status, "message": message, "type": error_type(status)}}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """`/props` with the chat template that reads `thinking_effort`."""
        doors = super().doors(model, context)
        props = {
            "default_generation_settings": {"n_ctx": context},
            "total_slots": 1,
            "model_alias": model,
            "chat_template": "{%- set effort = thinking_effort if thinking_effort is defined else 'max' -%}",
            "chat_template_caps": {"supports_preserve_reasoning": True, "supports_reasoning_effort": False},
            "build_info": "b11434-fake",
        }
        return doors | {"/props": props, "/v1/health": doors["/health"], "/models": doors["/v1/models"]}

    def about(self, model: str, context: int) -> Fields:
        """The window is per slot."""
        return {"meta": {"n_ctx": context, "n_ctx_train": context}}


class Vllm(Style):
    """vLLM: `reasoning`, null content, the last delta together with the finish reason."""

    owner = "vllm"
    field = "reasoning"
    call_id = "functions.{name}:{number}"
    no_text = None
    beside_finish: ClassVar[Fields] = {"stop_reason": None}

    def message(self, said: Said, request: Request) -> Fields:
        """What is unset is null, no calls are an empty list."""
        unset: Fields = {"role": "assistant", "content": None, "refusal": None, "reasoning": None, "tool_calls": []}
        return unset | super().message(said, request)

    def stream(self, said: Said, request: Request) -> Iterator[Fields]:
        """The last delta comes with the finish reason."""
        *deltas, last = self.open(list(self.deltas(said, request)) or [{"content": ""}])
        for delta in deltas:
            yield self.chunk(request, [self.choice(delta)])
        yield from self.finish(said, request, last)

    def thoughts(self, said: Said) -> list[str]:
        """A thought begins with an empty part."""
        return ["", *said.pieces(said.reasoning)] if said.reasoning is not None else []

    def fragments(self, index: int, id: str, name: str, parts: list[str]) -> Iterator[Fields]:
        """The first fragment has no arguments at all."""
        yield {"index": index, "id": id, "type": "function", "function": {"name": name}}
        for part in parts:
            yield {"index": index, "function": {"arguments": part}}

    def details(self, thought: int) -> Fields:
        """Cached tokens only with a flag of the server."""
        return {"completion_tokens_details": {"reasoning_tokens": thought}}

    def error(self, status: int, message: str) -> Fields:
        """The code is the status."""
        return {"error": {"message": message, "type": error_type(status), "param": None, "code": status}}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """`/version`; health is an empty body."""
        return super().doors(model, context) | {"/health": "", "/version": {"version": "0.32.0"}}

    def about(self, model: str, context: int) -> Fields:
        """The window."""
        return {"root": model, "max_model_len": context}


class SGLang(Style):
    """SGLang: a null beside everything, call ids and names repeated as null, its own place for reasoning tokens."""

    owner = "sglang"
    call_id = "{name}:{number}"
    no_text = None
    opening: ClassVar[Fields] = {"role": "assistant", "content": "", "reasoning_content": None}
    closing: ClassVar[Fields] = {"reasoning_content": None}
    beside_text: ClassVar[Fields] = {"reasoning_content": None}
    beside_finish: ClassVar[Fields] = {"matched_stop": None}

    def message(self, said: Said, request: Request) -> Fields:
        """What is unset is null."""
        unset: Fields = {"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": None}
        return unset | super().message(said, request)

    def fragments(self, index: int, id: str, name: str, parts: list[str]) -> Iterator[Fields]:
        """Later fragments have a null id and a null name."""
        yield {"id": id, "index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        for part in parts:
            yield {"id": None, "index": index, "type": "function", "function": {"name": None, "arguments": part}}

    def details(self, thought: int) -> Fields:
        """The thought is counted at the top."""
        return {"prompt_tokens_details": None, "reasoning_tokens": thought}

    def error(self, status: int, message: str) -> Fields:
        """A flat body."""
        return {"object": "error", "message": message, "type": error_type(status), "param": None, "code": status}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """Model and server info; health is an empty body."""
        info = {"model_path": model, "served_model_name": model, "reasoning_parser": "kimi_k3"}
        more = {"/health": "", "/model_info": info, "/get_model_info": info, "/server_info": {"version": "0.5.23"}}
        return super().doors(model, context) | more

    def about(self, model: str, context: int) -> Fields:
        """The window."""
        return {"root": model, "max_model_len": context}


class Ollama(Style):
    """Ollama's /v1: `reasoning`, empty content beside it, no opening chunk, calls whole, bare counts."""

    owner = "library"
    field = "reasoning"
    no_text_beside_calls = ""
    opening: ClassVar[Fields] = {"role": "assistant"}
    beside_thought: ClassVar[Fields] = {"content": ""}

    def open(self, deltas: list[Fields]) -> list[Fields]:
        """The role rides on the first delta."""
        first, *rest = deltas or [{"content": ""}]
        return [self.opening | first, *rest]

    def head(self, request: Request, kind: str) -> Fields:
        """The fingerprint that all its answers have."""
        return super().head(request, kind) | {"system_fingerprint": "fp_ollama"}

    def fragments(self, index: int, id: str, name: str, parts: list[str]) -> Iterator[Fields]:
        """A call is one delta."""
        yield {"id": id, "index": index, "type": "function", "function": {"name": name, "arguments": "".join(parts)}}

    def details(self, thought: int) -> Fields:
        """Nothing."""
        return {}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """The native paths; no health."""
        show = {"capabilities": ["completion", "tools", "thinking"], "model_info": {"kimi-k3.context_length": context}}
        tags = {"models": [{"name": model, "model": model}]}
        more = {"/": "Ollama is running", "/api/version": {"version": "0.33.0"}, "/api/tags": tags, "/api/show": show}
        doors = super().doors(model, context) | more
        return {path: answer for path, answer in doors.items() if path != "/health"}


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


STYLES: dict[str, Style] = {
    "openai": OpenAI(),
    "llama-server": LlamaServer(),
    "vllm": Vllm(),
    "sglang": SGLang(),
    "ollama": Ollama(),
    "kimi": Kimi(),
}
