"""LM Studio 0.4. Obeys `reasoning_effort` since about 0.4.17; its unknown paths answer 200 with an error inside."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.dialects.advice import Advice
from proxy.dialects.plain import About, Answers, Dialect, Question, Rows
from proxy.events import count_of
from proxy.jsons import objects
from proxy.messages import Json

_WORDS = ("low", "medium", "high")


class _Advice(Advice):
    """From 0.4, whose settings are made in its window or with `lms`."""

    parser = "Settings → Developer: separate reasoning_content in API responses"
    preserve = "a prompt template that writes past thoughts, in the model's settings"
    effort = "LM Studio 0.4.17 or later"

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        return f"lms load MODEL --context-length {tokens}"

    def trained(self, row: Mapping[str, Json], answers: Answers) -> int | None:
        return count_of(_entry(answers, row.get("id")).get("max_context_length"))


class LMStudio(Dialect):
    """Writes thoughts as `reasoning_content`, those of gpt-oss as `reasoning`."""

    name = "lmstudio"
    advice = _Advice()
    owners = ("organization_owner",)
    door = ("/api/v1/models", "models")
    is_own = True
    slots = 1
    refuses_missing = False
    takes_unlimited = True
    tells_properties = True
    learns_field = True
    cap_fields = ("max_tokens",)
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort"})

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """The native list, which tells the windows of loaded models."""
        return [Question("/api/v1/models")]

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """The window of the loaded instance, and the words that the model takes."""
        entry = _entry(answers, row.get("id"))
        instances = objects(entry.get("loaded_instances"))
        settings = instances[0].get("config") if instances else None
        can = entry.get("capabilities")
        reasoning = can.get("reasoning") if isinstance(can, dict) else None
        options = reasoning.get("allowed_options") if isinstance(reasoning, dict) else None
        return About(
            context_limit=count_of(settings.get("context_length")) if isinstance(settings, dict) else None,
            efforts=tuple(word for word in _WORDS if word in options) if isinstance(options, list) else (),
            loaded=bool(instances) if entry else None,
        )


def _entry(answers: Answers, name: Json) -> Mapping[str, Json]:
    """What the native list tells of a model."""
    body = answers.get("/api/v1/models")
    models = body.get("models") if isinstance(body, dict) else None
    return next((each for each in objects(models) if _is(each, name)), {})


def _is(entry: Mapping[str, Json], name: Json) -> bool:
    instances = [each.get("id") for each in objects(entry.get("loaded_instances"))]
    return name in (entry.get("key"), *instances)
