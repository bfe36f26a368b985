"""LM Studio 0.4. Obeys `reasoning_effort` since about 0.4.17; its unknown paths answer 200 with an error inside."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.dialects.plain import About, Answers, Dialect, Question, Rows
from proxy.messages import Json, count_of

_WORDS = frozenset({"low", "medium", "high"})


class LMStudio(Dialect):
    """Writes thoughts as `reasoning_content`, those of gpt-oss as `reasoning`."""

    name = "lmstudio"
    owners = ("organization_owner",)
    door = ("/api/v1/models", "models")
    refuses_missing = False
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
        body = answers.get("/api/v1/models")
        models = body.get("models") if isinstance(body, dict) else None
        entry = next((each for each in models or () if isinstance(each, dict) and _is(each, row.get("id"))), {})
        instances = [each for each in entry.get("loaded_instances") or () if isinstance(each, dict)]
        settings = instances[0].get("config") if instances else None
        can = entry.get("capabilities")
        reasoning = can.get("reasoning") if isinstance(can, dict) else None
        options = reasoning.get("allowed_options") if isinstance(reasoning, dict) else None
        return About(
            context_limit=count_of(settings.get("context_length")) if isinstance(settings, dict) else None,
            efforts=tuple(word for word in options or () if word in _WORDS) if isinstance(options, list) else (),
            loaded=bool(instances) if entry else None,
        )


def _is(entry: Mapping[str, Json], name: Json) -> bool:
    instances = [each.get("id") for each in entry.get("loaded_instances") or () if isinstance(each, dict)]
    return name in (entry.get("key"), *instances)
