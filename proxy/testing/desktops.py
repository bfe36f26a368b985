"""The manners of the programs that people run models with at home.

Read in the sources of Ollama 0.33 and Unsloth Studio 2026.10, and in LM Studio's documentation and what users recorded
of it (0.4, October 2026).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from proxy.messages import Json
from proxy.testing.request import Fields, Request
from proxy.testing.styles import Said, Style

_TRAINED = 1 << 20
"""The window that a model was made for, which its server does not give it."""


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
        """The native paths, with a running model, one of the cloud and one that does not think; no health."""
        cloud, plain = f"{model}:cloud", "plain:latest"
        can = {name: ["completion", "tools", "thinking"] for name in (model, cloud)} | {plain: ["completion"]}
        tags: dict[str, Fields] = {
            name: {
                "name": name,
                "model": name,
                "details": {"family": "kimi-k3", "context_length": _TRAINED},
                "capabilities": can[name],
            }
            for name in can
        }
        tags[cloud] |= {"remote_model": model, "remote_host": "https://ollama.com:443"}
        rows = [{"id": name, "object": "model", "created": 1, "owned_by": self.owner} for name in can]

        def show(request: Request) -> tuple[Json, int]:
            name = request.get("model")
            if request.method != "POST" or name not in can:
                return {"error": f"model '{name}' not found"}, 404
            return {"capabilities": can[name], "model_info": {"kimi-k3.context_length": _TRAINED}}, 200

        return {
            "/": "Ollama is running",
            "/v1/models": {"object": "list", "data": rows},
            **{f"/v1/models/{row['id']}": row for row in rows},
            "/api/version": {"version": "0.33.0"},
            "/api/tags": {"models": list(tags.values())},
            "/api/ps": {"models": [{"name": model, "model": model, "context_length": context}]},
            "/api/show": show,
        }


class LMStudio(Style):
    """LM Studio: the role on the first delta, arguments in parts, and 200 with an error for paths that it has not."""

    owner = "organization_owner"
    call_id = "{number:09d}"
    no_text_beside_calls = ""
    opening: ClassVar[Fields] = {"role": "assistant"}
    beside_finish: ClassVar[Fields] = {"logprobs": None}

    def message(self, said: Said, request: Request) -> Fields:
        """No calls are an empty list."""
        return {"role": "assistant", "content": "", "tool_calls": []} | super().message(said, request)

    def whole(self, said: Said, request: Request) -> Fields:
        """With figures of its own."""
        return super().whole(said, request) | {"stats": {}}

    def open(self, deltas: list[Fields]) -> list[Fields]:
        """The role rides on the first delta."""
        first, *rest = deltas or [{"content": ""}]
        return [self.opening | first, *rest]

    def head(self, request: Request, kind: str) -> Fields:
        """The fingerprint is the model."""
        head = super().head(request, kind)
        return head | {"system_fingerprint": head["model"]}

    def details(self, thought: int) -> Fields:
        """The thought is counted, the cache is not."""
        return {"completion_tokens_details": {"reasoning_tokens": thought}}

    def unknown(self, request: Request) -> tuple[Json, int]:
        """A success that says that it is none."""
        return {"error": f"Unexpected endpoint or method. ({request.method} {request.path})"}, 200

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """Lists without windows, and the native one with the window of what is loaded."""
        idle = "plain-7b"
        rows = [{"id": name, "object": "model", "owned_by": self.owner} for name in (model, idle)]
        models = {"data": rows, "object": "list"}
        old = [
            {"id": model, "object": "model", "type": "llm", "state": "loaded", "max_context_length": _TRAINED},
            {"id": idle, "object": "model", "type": "llm", "state": "not-loaded", "max_context_length": _TRAINED},
        ]
        reasoning = {"allowed_options": ["off", "low", "medium", "high"], "default": "high"}
        native = [
            {
                "type": "llm",
                "key": model,
                "loaded_instances": [{"id": model, "config": {"context_length": context, "parallel": 4}}],
                "max_context_length": _TRAINED,
                "capabilities": {"vision": False, "trained_for_tool_use": True, "reasoning": reasoning},
            },
            {
                "type": "llm",
                "key": idle,
                "loaded_instances": [],
                "max_context_length": _TRAINED,
                "capabilities": {"vision": False, "trained_for_tool_use": True},
            },
        ]
        return {
            "/v1/models": models,
            "/models": models,
            f"/v1/models/{model}": rows[0],
            "/api/v0/models": {"object": "list", "data": old},
            "/api/v1/models": {"models": native},
        }


class Unsloth(Style):
    """Unsloth Studio, with llama-server behind it: empty content beside a thought, a list of all that was fetched."""

    owner = "unsloth-studio"
    headers: ClassVar[dict[str, str]] = {"server": "unsloth-studio"}
    beside_thought: ClassVar[Fields] = {"content": ""}

    def details(self, thought: int) -> Fields:
        """No count of the thought."""
        return {"prompt_tokens_details": {"cached_tokens": 0}}

    def doors(self, model: str, context: int) -> dict[str, Json]:
        """llama-server's properties under its own name; no health."""
        props = {
            "default_generation_settings": {"n_ctx": context},
            "total_slots": 1,
            "model_path": model,
            "chat_template": "{{ enable_thinking }}",
            "build_info": "unsloth-studio/2026.10.9",
        }
        rows = [self._row(model, context, loaded=True), self._row("plain-7b:Q4_K_M", context, loaded=False)]
        return {
            "/v1/models": {"object": "list", "data": rows},
            **{f"/v1/models/{row['id']}": row for row in rows},
            "/props": props,
            "/v1/props": props,
            "/version": {"version": "2026.10.9"},
        }

    def _row(self, model: str, context: int, *, loaded: bool) -> Mapping[str, Json]:
        sizes = {"max_context_length": _TRAINED, "native_context_length": _TRAINED}
        return {
            "id": model,
            "object": "model",
            "created": 1,
            "owned_by": self.owner,
            "loaded": loaded,
            "context_length": context if loaded else None,
            **sizes,
        }
