"""llama-server (llama.cpp), alone or as a router of many models. Facts from b11434, see `docs/engines.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import quote

from proxy.dialects.advice import Advice
from proxy.dialects.plain import About, Answers, Control, Dialect, Question, Rows, text_at
from proxy.events import count_of
from proxy.messages import Json


class _Advice(Advice):
    """From b11434. `n_ctx` is what one slot has; `-c` is what all of them share."""

    parser = "--reasoning-format deepseek, and no --skip-chat-parsing"
    preserve = "--reasoning-preserve, or a chat template that writes past thoughts (--chat-template-file)"
    effort = "a chat template that reads `thinking_effort` or `reasoning_effort` (--chat-template-file)"
    any_name = True

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        props = answers.get(_props(row))
        slots = (count_of(props.get("total_slots")) if isinstance(props, dict) else None) or 1
        if slots == 1:
            return f"-c {tokens}"
        return f"-c {tokens * slots} (its {slots} slots share it), or -c {tokens} -np 1"

    def trained(self, row: Mapping[str, Json], answers: Answers) -> int | None:
        meta = row.get("meta")
        return count_of(meta.get("n_ctx_train")) if isinstance(meta, dict) else None

    def prompt_question(self, body: Mapping[str, Json]) -> Question | None:
        return Question("/apply-template", body)

    def is_asleep(self, row: Mapping[str, Json], answers: Answers) -> bool:
        """A server of one model, too, sleeps when it is told to (`--sleep-idle-seconds`)."""
        props = answers.get(_props(row))
        return isinstance(props, dict) and props.get("is_sleeping") is True

    def query(self, row: Mapping[str, Json]) -> str:
        return "autoload=false" if "status" in row else ""


class LlamaServer(Dialect):
    """Reads the effort from the template option that the model's template names, and enforces a thinking budget.

    The OpenAI field reaches the template only as `reasoning_effort`, which Kimi K3's does not read. A connection must
    not be used again after a stream: the server closes it without notice (25 to 31 of 100 requests failed). When nobody
    waits any more, a stream ends at the next token, a whole answer up to seven seconds later (b11549).
    """

    name = "llama-server"
    advice = _Advice()
    servers = ("llama.cpp",)
    owners = ("llamacpp",)
    is_own = True
    refuses_missing = False
    tells_properties = True
    tokenizes = "content"
    takes_template_options = True
    takes_unlimited = True
    cap_fields = ("max_completion_tokens", "max_tokens", "n_predict")
    budget_fields = ("thinking_budget_tokens", "reasoning_budget_tokens")
    reuses_connections = False
    control = Control("reasoning_control", "/chat/completions/control", {"action": "reasoning_end"})
    lets_go = False
    progress_field = "return_progress"
    whole_only = ("tools", "logprobs")
    running_counts: ClassVar[Mapping[str, Json]] = {"timings_per_token": True}
    effort_places = frozenset({"reasoning_effort"})
    off_places = frozenset({"reasoning_effort"})

    def questions(self, rows: Rows, answers: Answers) -> list[Question]:
        """A router tells of its models one by one; `autoload=false` keeps it from loading those that are not there."""
        return [Question(path) for path in {_props(row): None for row in rows if _is_loaded(row)} or ["/props"]]

    def version(self, headers: Mapping[str, str], answers: Answers) -> str:
        """The build."""
        return next((text_at(answers, path, "build_info") for path in answers if path.startswith("/props")), "")

    def about(self, row: Mapping[str, Json], answers: Answers) -> About:
        """The window of one slot, and the chat template; of a router's model only while it is loaded."""
        loaded = _is_loaded(row)
        props = answers.get(_props(row)) if loaded else None
        props = props if isinstance(props, dict) else {}
        settings, meta = props.get("default_generation_settings"), row.get("meta")
        sizes = [count_of(place.get("n_ctx")) for place in (settings, meta) if isinstance(place, dict)]
        template = props.get("chat_template")
        return About(
            context_limit=next((size for size in sizes if size), None),
            template=template if isinstance(template, str) else None,
            loaded=loaded,
            slots=count_of(props.get("total_slots")) or None,
        )

    def effort_option(self, family_option: str, template: str | None) -> str:
        """What the template really reads; the family's own word where the template is not known."""
        if template is None:
            return family_option
        return next((name for name in ("thinking_effort", "reasoning_effort") if name in template), "")

    def switch(self, options: Mapping[str, Json], template: str | None) -> Mapping[str, Json]:
        """Those that the template reads."""
        if template is None:
            return options
        return {name: value for name, value in options.items() if re.search(rf"\b{re.escape(name)}\b", template)}

    def thinks_always(self, options: Mapping[str, Json], template: str | None) -> bool:
        """`reasoning_effort: "none"` comes to `enable_thinking: false`, which a template may not read."""
        return template is not None and not self.switch({**options, "enable_thinking": False}, template)


def _is_loaded(row: Mapping[str, Json]) -> bool:
    """A row has a status only in a router's list."""
    status = row.get("status")
    return not isinstance(status, dict) or status.get("value") == "loaded"


def _props(row: Mapping[str, Json]) -> str:
    if "status" not in row:
        return "/props"
    return f"/props?model={quote(str(row.get('id')), safe='')}&autoload=false"
