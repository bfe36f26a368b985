"""The manners of the engines, by the names that the configuration uses; `llama-router` is llama-server as a router.

Seen on the wire of llama.cpp b11434 and vLLM 0.32.0, or read in the sources of vLLM, SGLang 0.5.23 and TokenSpeed's
gateway SMG (October 2026). Programs for the desktop and hosted services have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar
from urllib.parse import parse_qs

from proxy.messages import Json
from proxy.testing.desktops import LMStudio, Ollama, Unsloth
from proxy.testing.request import Fields, Request
from proxy.testing.services import DeepSeek, Kimi, OpenAI, OpenRouter
from proxy.testing.styles import Said, Style, error_type

CONTROL = "/v1/chat/completions/control"


class LlamaServer(Style):
    """llama.cpp's own server: null content first, keys in its order, `timings` unasked, no reasoning count.

    With `timings_per_token` every chunk has what was counted so far. With `reasoning_control` a POST of `{"id": ...,
    "action": "reasoning_end"}` to `/v1/chat/completions/control` ends the thought of a stream: what is left of it does
    not leave, but for the part that was due already, and the text follows.
    """

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

    def stream(self, said: Said, request: Request) -> Iterator[Fields]:
        """Made while it leaves: the thought may be ended, and is counted as far as it came."""
        counts = bool(request.get("timings_per_token"))
        thought, rest = list[str](), replace(said, reasoning=None)
        for sent, delta in enumerate(self._as_it_comes(rest, thought, said, request)):
            chunk = self.chunk(request, [self.choice(delta)])
            yield chunk | ({"timings": self.timings(said, request, sent)} if counts else {})
        came = None if said.reasoning is None else "".join(thought)
        yield from self.finish(replace(said, reasoning=came), request, self.closing)

    def _as_it_comes(self, rest: Said, thought: list[str], said: Said, request: Request) -> Iterator[Fields]:
        yield self.opening
        for part in self.thoughts(said):
            if request.thought_ended:
                break
            thought.append(part)
            yield {said.field or self.field: part}
        yield from self.deltas(rest, request)

    def control(self, request: Request, chats: Sequence[Request]) -> tuple[Json, int] | None:
        """Ends the thought of a running stream that allowed it; the status is 200 either way."""
        if (request.method, request.path) != ("POST", CONTROL):
            return None
        id = request.get("id")
        if not id or request.get("action") != "reasoning_end":
            return self.error(400, "unknown control action" if id else "missing completion id"), 400
        running = (chat for chat in chats if chat.get("stream") and not chat.over.is_set())
        chat = next((chat for chat in running if self.head(chat, "")["id"] == id), None)
        if chat is None:
            return {"success": False, "message": "no active completion for this id"}, 200
        if chat.get("reasoning_control") is not True:
            return {"success": False, "message": "reasoning control not enabled for this completion"}, 200
        chat.thought_ended = True
        return {"success": True}, 200

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

    def timings(self, said: Said, request: Request, sent: int | None = None) -> Fields:
        """100 tokens a second in, 10 out, in agreement with the usage; `sent` is how many deltas came so far."""
        usage = self.usage(said, request)
        if sent is not None:
            usage = usage | {"completion_tokens": sent}
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
        """`/props` with the chat template that reads `thinking_effort`; the list of models is Ollama's too."""
        doors = super().doors(model, context)
        doors["/v1/models"]["models"] = [{"name": model, "model": model, "capabilities": ["completion"]}]
        more = {"/props": _props(model, context), "/v1/health": doors["/health"], "/models": doors["/v1/models"]}
        return doors | more

    def about(self, model: str, context: int) -> Fields:
        """The window is per slot."""
        return {"meta": {"n_ctx": context, "n_ctx_train": context}}


class LlamaRouter(LlamaServer):
    """llama-server as a router: one model is loaded, one sleeps, one is not there.

    A question for the properties of one model loads it, unless it says `autoload=false`.
    """

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """Windows of loaded models only; the router's own properties are of none."""
        states = {model: "loaded", "sleeper": "sleeping", "idler": "unloaded"}
        rows = [
            {"id": name, "object": "model", "created": 1, "owned_by": self.owner, "status": {"value": state}}
            | (self.about(name, context) if state == "loaded" else {})
            for name, state in states.items()
        ]
        own: Fields = {"role": "router", "model_alias": "llama-server", "build_info": "b11434-fake"}
        own["default_generation_settings"] = {"params": None, "n_ctx": 0}

        def props(request: Request) -> tuple[Json, int]:
            asked = {name: values[-1] for name, values in parse_qs(request.query).items()}
            if "model" not in asked:
                return own, 200
            name = asked["model"]
            if name not in states:
                return self.error(400, f"model '{name}' not found"), 400
            if states[name] != "loaded" and asked.get("autoload") == "false":
                return self.error(400, "model is not loaded"), 400
            return _props(name, context), 200

        models = {"object": "list", "data": rows}
        doors = {"/health": {"status": "ok"}, "/v1/health": {"status": "ok"}, "/v1/models": models, "/models": models}
        return doors | {"/props": props} | {f"/v1/models/{row['id']}": row for row in rows}


def _props(model: str, context: int) -> Fields:
    return {
        "default_generation_settings": {"n_ctx": context},
        "total_slots": 1,
        "model_alias": model,
        "chat_template": "{%- set effort = thinking_effort if thinking_effort is defined else 'max' -%}",
        "chat_template_caps": {"supports_preserve_reasoning": True, "supports_reasoning_effort": False},
        "build_info": "b11434-fake",
    }


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
