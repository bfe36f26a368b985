"""The manners of the engines, by the names that the configuration uses; `llama-router` is llama-server as a router.

Seen on the wire of vLLM 0.32.0, or read in the sources of vLLM, SGLang 0.5.23 and TokenSpeed's gateway SMG (October
2026). llama.cpp, programs for the desktop and hosted services have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import ClassVar

from proxy.messages import Json
from proxy.testing.desktops import LMStudio, Ollama, Unsloth
from proxy.testing.llama import LlamaRouter, LlamaServer
from proxy.testing.request import Fields, Request
from proxy.testing.services import DeepSeek, Kimi, OpenAI, OpenRouter
from proxy.testing.styles import Said, Style, error_type


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
        chunks = [self.chunk(request, [self.choice(delta)]) for delta in deltas]
        return _counted([*chunks, *self.finish(said, request, last)], self.usage(said, request), request)

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


def _counted(chunks: Iterable[Fields], usage: Fields, request: Request) -> Iterator[Fields]:
    """With `continuous_usage_stats` every chunk has the usage so far; a delta that says something is a token."""
    wanted = request.include_usage and request.body["stream_options"].get("continuous_usage_stats") is True
    prompt, completion = usage.get("prompt_tokens", 0), 0
    for chunk in chunks:
        deltas = (choice["delta"] for choice in chunk["choices"])
        completion += sum(any(value for name, value in delta.items() if name != "role") for delta in deltas)
        so_far = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        yield {"usage": so_far, **chunk} if wanted and usage else chunk


class SGLang(Style):
    """SGLang: a null beside everything, call ids and names repeated as null, its own place for reasoning tokens."""

    owner = "sglang"
    call_id = "{name}:{number}"
    no_text = None
    opening: ClassVar[Fields] = {"role": "assistant", "content": "", "reasoning_content": None}
    closing: ClassVar[Fields] = {"reasoning_content": None}
    beside_text: ClassVar[Fields] = {"reasoning_content": None}
    beside_finish: ClassVar[Fields] = {"matched_stop": None}

    def stream(self, said: Said, request: Request) -> Iterator[Fields]:
        """With the usage so far, where it was asked for."""
        return _counted(super().stream(said, request), self.usage(said, request), request)

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
        """Model and server info, and Ollama's list; health is an empty body."""
        info = {"model_path": model, "served_model_name": model, "reasoning_parser": "kimi_k3"}
        more = {"/health": "", "/model_info": info, "/get_model_info": info, "/server_info": {"version": "0.5.23"}}
        more |= {"/": "SGLang is running", "/api/tags": {"models": [{"name": model, "model": model}]}}
        return super().doors(model, context) | more

    def about(self, model: str, context: int) -> Fields:
        """The window."""
        return {"root": model, "max_model_len": context}


class TokenSpeed(Style):
    """TokenSpeed behind the gateway SMG: the thought under both names, the role on every chunk, errors with a word."""

    owner = "self_hosted"
    no_text = None
    opening: ClassVar[Fields] = {"role": "assistant", "content": ""}
    closing: ClassVar[Fields] = {"role": "assistant"}
    beside_thought: ClassVar[Fields] = {"role": "assistant"}
    beside_text: ClassVar[Fields] = {"role": "assistant", "reasoning_content": None}
    beside_finish: ClassVar[Fields] = {"matched_stop": None}

    def message(self, said: Said, request: Request) -> Fields:
        """The thought twice."""
        return _twice(super().message(said, request))

    def deltas(self, said: Said, request: Request) -> Iterator[Fields]:
        """The thought twice."""
        yield from map(_twice, super().deltas(said, request))

    def details(self, thought: int) -> Fields:
        """Nothing."""
        return {}

    def error(self, status: int, message: str) -> Fields:
        """The type is the reason of the status, the code is a word for it."""
        kind = HTTPStatus(status).phrase
        return {"error": {"type": kind, "code": _slug(status), "message": message, "param": None}}

    def error_headers(self, status: int) -> dict[str, str]:
        """The code once more."""
        return {"x-smg-error-code": _slug(status)}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """What a gateway tells of its workers; the list of models has no windows."""
        ready = {"status": "ready", "healthy_workers": 1, "total_workers": 1}
        return super().doors(model, context) | {"/health": "OK", "/liveness": "OK", "/readiness": ready}


def _twice(fields: Fields) -> Fields:
    thought = fields.get("reasoning_content")
    return fields if thought is None else fields | {"reasoning": thought}


def _slug(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_")


STYLES: dict[str, Style] = {
    "openai": OpenAI(),
    "llama-server": LlamaServer(),
    "llama-router": LlamaRouter(),
    "vllm": Vllm(),
    "sglang": SGLang(),
    "tokenspeed": TokenSpeed(),
    "unsloth": Unsloth(),
    "ollama": Ollama(),
    "lmstudio": LMStudio(),
    "kimi": Kimi(),
    "deepseek": DeepSeek(),
    "openrouter": OpenRouter(),
}
