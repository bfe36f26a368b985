"""Ollama's /v1 (2026-08), with local models and those of its cloud. Reads past thoughts as `reasoning` only."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.dialects.advice import Advice
from proxy.dialects.plain import About, Answers, Dialect, Question, Rows, text_at
from proxy.events import count_of
from proxy.jsons import objects
from proxy.messages import Json


class _Advice(Advice):
    """From 2026-08. /v1 cannot set a window, so the server's default counts."""

    preserve = "a model whose template writes past thoughts (`ollama show --template MODEL`)"
    thinks = (
        "another tag of the model, whose template tells thoughts (`ollama show MODEL` lists `thinking`), or the GGUF "
        'under llama-server; here, [thinking] tags = "parse"'
    )
    overflow = "old messages are dropped, and nobody is told"

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"OLLAMA_CONTEXT_LENGTH={tokens} in the server's environment"

    def trained(self, row: Mapping[str, Json], answers: Answers) -> int | None:
        name = str(row.get("id"))
        shown = answers.get(_show(name))
        tag = _entries(answers, "/api/tags").get(name, {})
        return count_of(_trained(tag, shown if isinstance(shown, dict) else {}))

    def is_paid(self, row: Mapping[str, Json], answers: Answers) -> bool:
        name = str(row.get("id"))
        return _is_cloud(name, _entries(answers, "/api/tags").get(name, {}))


class Ollama(Dialect):
    """`max_completion_tokens` is not in its request struct and would be ignored; an effort for a model that does not
    think is an error."""

    name = "ollama"
    advice = _Advice()
    owners = ("library",)
    door = ("/api/version", "version")
    is_own = True
    slots = 1
    refuses_missing = False
    refuses_effort = True
    tells_properties = True
    reasoning_field = "reasoning"
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning_effort", "reasoning.effort"})
    off_places = frozenset({"reasoning_effort", "reasoning.effort"})

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """What models can do, as older servers tell it only one by one; none of this loads a model."""
        first = [Question("/api/version"), Question("/api/tags"), Question("/api/ps")]
        if "/api/tags" not in answers:
            return first
        told = {name for name, entry in _entries(answers, "/api/tags").items() if "capabilities" in entry}
        names = [name for row in rows if isinstance(name := row.get("id"), str) and name not in told]
        return [*first, *(Question(_show(name), {"model": name}) for name in names)]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """As it says it."""
        return text_at(answers, "/api/version", "version")

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """The window of a running model: the one of its file is not what the server gives it, but the cloud's is."""
        name = str(row.get("id"))
        tag, running = _entries(answers, "/api/tags").get(name, {}), _entries(answers, "/api/ps").get(name)
        shown = answers.get(_show(name))
        shown = shown if isinstance(shown, dict) else {}
        can = tag.get("capabilities", shown.get("capabilities"))
        is_cloud = _is_cloud(name, tag)
        size = running.get("context_length") if running else _trained(tag, shown) if is_cloud else None
        return About(
            context_limit=count_of(size) or None,
            thinks="thinking" in can if isinstance(can, list) else None,
            loaded=is_cloud or running is not None,
        )


def _is_cloud(name: str, tag: Mapping[str, Json]) -> bool:
    return bool(tag.get("remote_host")) or name.endswith("cloud")


def _show(name: str) -> str:
    return f"/api/show#{name}"


def _entries(answers: Answers, path: str) -> dict[str, Mapping[str, Json]]:
    """The models of a native list, by name."""
    body = answers.get(path)
    found = objects(body.get("models")) if isinstance(body, dict) else []
    return {name: entry for entry in found for name in (entry.get("name"), entry.get("model")) if isinstance(name, str)}


def _trained(tag: Mapping[str, Json], shown: Mapping[str, Json]) -> Json:
    """The window that a model was made for."""
    details, info = tag.get("details"), shown.get("model_info")
    sizes = (
        [value for name, value in info.items() if name.endswith(".context_length")] if isinstance(info, dict) else []
    )
    told = details.get("context_length") if isinstance(details, dict) else None
    return told or next(iter(sizes), None)
