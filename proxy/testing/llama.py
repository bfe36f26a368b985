"""The manners of llama.cpp's server, alone and as a router. Seen on the wire of b11434 and b11549."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar
from urllib.parse import parse_qs

from proxy.messages import Json
from proxy.testing.request import Fields, Request
from proxy.testing.styles import Said, Style, error_type

CONTROL = "/v1/chat/completions/control"


class LlamaServer(Style):
    """llama.cpp's own server: null content first, keys in its order, `timings` unasked, no reasoning count.

    With `return_progress` the first chunk comes again and again while the prompt is read.
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
        total = self.usage(said, request).get("prompt_tokens", 0)
        for processed in (0, total // 2, total) if request.get("return_progress") else ():
            told = {"total": total, "cache": 0, "processed": processed, "time_ms": processed * 10}
            yield self.chunk(request, [self.choice(self.opening)]) | {"prompt_progress": told}
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
