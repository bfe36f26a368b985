"""What was seen of a backend → findings. Each check looks at one thing, and is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxy import config
from proxy.dialects import Finding, Level
from proxy.doctor import speed
from proxy.doctor.seen import Efforts, Said, Seen
from proxy.events import Event, Part
from proxy.families import FALLBACK
from proxy.shape import Shaper
from proxy.thinking import TAGS

LEAST_WINDOW, GOOD_WINDOW = 8192, 32768
_PROMPT_ROOM = LEAST_WINDOW - 5000
"""What a window must have beside the floor of an answer."""
_MOST_NAMES = 6

Found = Iterator[Finding]


def findings(seen: Seen) -> list[Finding]:
    """All that is to be said about a backend. What only its engine tells replaces what was guessed from outside."""
    if seen.trouble is not None:
        return [seen.trouble]
    own = seen.dialect.advice.remarks(seen.family, seen.row, seen.answers) if seen.model else []
    about = {finding.about for finding in own}
    general = [finding for check in CHECKS for finding in check(seen)]
    return [*(finding for finding in general if finding.about not in about), *own]


def reached(seen: Seen) -> Found:
    """It answers; what it is."""
    yield Finding("ok", "reachable", "answers")
    found = seen.found
    if found is None:
        remedy = f"{_key(seen, 'engine')} and {_key(seen, 'models')}"
        yield Finding("note", "engine", "does not tell what it is, and lists no models", remedy)
        return
    if not seen.says:
        yield Finding("ok", "engine", f"{found.engine} {found.version}".strip())
        return
    text = f"{found.engine} by the settings, but the server says that it is {seen.says}"
    level: Level = "note" if found.engine == "openai" else "hurts"
    yield Finding(level, "engine", text, f'{_key(seen, "engine")} = "auto"')


def settings(seen: Seen) -> Found:
    """Hints about the backend's own table, and a family that does not fit what the model does."""
    for hint in config.hints(seen.settings):
        place, _, text = hint.partition(": ")
        if place in (f"backends.{seen.name}", f"backends.{seen.name}.url"):
            yield Finding("note", "settings", text, place)
    answer = seen.answer
    if answer is None or not (seen.opened or answer.fold.reasoning_text or _marks(seen, answer.fold.visible_text)):
        return
    if seen.family.name == FALLBACK:
        text = f"the model thinks, and nobody knows the family of {seen.model!r}: no effort, no tags of its own"
        yield Finding(
            "note", "settings", text, f'{_key(seen, "family")} = a name of families.toml ("kimi-k3", "qwen3", …)'
        )
    elif not seen.family.thinks:
        text = f"the model thinks, and its family {seen.family.name} says that it does not: thoughts are not given back"
        yield Finding("hurts", "settings", text, f'{_key(seen, "family")} = "auto", or "generic"')


def models(seen: Seen) -> Found:
    """What is served, what of it is loaded, and whether the configured names are among it."""
    if seen.listed:
        names = [f"{row['id']}{' (not loaded)' if seen.is_asleep(row) else ''}" for row in seen.listed]
        more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        tried = f"; tried here: {seen.model}" if seen.model and len(names) > 1 else ""
        yield Finding("ok", "models", ", ".join(names[:_MOST_NAMES]) + more + tried)
    elif seen.found is not None and not seen.backend.models:
        yield Finding("note", "models", "the server lists none", f'{_key(seen, "models")} = ["NAME"]')
    if seen.denied:
        text = f"the settings name {', '.join(seen.denied)}, which the server does not list"
        known = ", ".join(str(row["id"]) for row in seen.listed[:_MOST_NAMES])
        level: Level = "note" if seen.dialect.advice.any_name and not _is_router(seen) else "hurts"
        yield Finding(level, "models", text, f"one of these names: {known}")
    if seen.listed and not seen.model and all(map(seen.is_asleep, seen.listed)):
        text = "none is loaded, and this command loads none: the rest was not tried"
        yield Finding("note", "models", text, "send one request, then run this again")


def context(seen: Seen) -> Found:
    """What one request can have must hold a prompt, a thought and an answer."""
    if not seen.model:
        return
    told = seen.about(seen.model).context_limit
    own, limit, advice = seen.backend.context_limit, seen.context, seen.dialect.advice
    if own and told and own > told:
        text = f"{own:,} tokens by the settings, but the server gives {told:,}"
        yield Finding("hurts", "context", text, f"no {_key(seen, 'context_limit')}, or {told}")
        limit = told
    if limit is None:
        text = "the server does not tell how many tokens a request can have"
        yield Finding("note", "context", text, f"{_key(seen, 'context_limit')} = N")
        return
    floor = seen.settings.policy.min_completion_tokens
    least = max(LEAST_WINDOW, (floor if isinstance(floor, int) else max(floor.values(), default=0)) + _PROMPT_ROOM)
    text = f"{limit:,} tokens a request"
    if limit >= max(GOOD_WINDOW, least):
        yield Finding("ok", "context", text)
        return
    overflow = f"; beyond that {advice.overflow}" if advice.overflow else ""
    wanted, trained = max(GOOD_WINDOW, least), advice.trained(seen.row, seen.answers)
    if trained and trained <= limit:
        text, remedy = (
            f"{text}, all that the model was made for{overflow}",
            f"policy.min_completion_tokens = {limit // 2}",
        )
    else:
        remedy = advice.window(min(wanted, trained) if trained else wanted, seen.row, seen.answers)
        remedy = remedy or f"a larger window for {seen.model}"
    if limit < least:
        yield Finding("hurts", "context", f"{text}: too few for a prompt, a thought and an answer{overflow}", remedy)
    else:
        yield Finding("note", "context", f"{text}: little for long chats with their thoughts{overflow}", remedy)


def generated(seen: Seen) -> Found:
    """Why nothing was generated, or what went wrong with it."""
    if seen.silent is not None:
        yield seen.silent
    if seen.answer is not None and seen.answer.problem:
        yield Finding("hurts", "answer", f"a small chat request failed: {seen.answer.problem}", "the server's log")


def thought(seen: Seen) -> Found:
    """Thoughts come apart from texts, or somebody must part them."""
    family, advice, answer = seen.family, seen.dialect.advice, seen.answer
    if not seen.model or not family.thinks:
        return
    if seen.about(seen.model).thinks is False and family.name != FALLBACK:
        text = f"the server says that {seen.model} does not think, and {family.name} does: it refuses every effort"
        yield Finding("hurts", "thought", text, advice.thinks or 'thinking.tags = "parse"')
        return
    if answer is None or answer.problem or (answer.cut and answer.fold.empty):
        return
    if answer.fold.empty:
        yield Finding("note", "thought", "the model ended its answers before the first word", "run this again")
        return
    if answer.fold.reasoning_text:
        yield Finding("ok", "thought", f"comes separated from the text, as `{'`, `'.join(sorted(answer.fold.names))}`")
        return
    text = answer.fold.visible_text
    mark, begins_inside = _marks(seen, text), seen.opened or not _begins(seen, text)
    if mark or seen.opened:
        where = f"{mark} stands in the text" if mark else "the prompt opens one, and it stands in the text"
        setting = f'thinking.tags = "{"parse-prefilled" if begins_inside else "parse"}"'
        remedy = " on the server; here: ".join(filter(None, (advice.parser_option(family.name), setting)))
        if _parted(seen, answer):
            yield Finding("note", "thought", f"the server does not part it, so that this proxy must: {where}", remedy)
        else:
            yield Finding("hurts", "thought", f"nobody parts it from the text: {where}", remedy)
    elif family.name != FALLBACK:
        text = f"none came in {answer.pieces} pieces of an answer, so that nobody knows how one would"
        yield Finding("note", "thought", text, advice.parser_option(family.name) or "a longer answer tells")
    else:
        yield Finding("ok", "thought", "none came, and no mark-up of one")


def past_thoughts(seen: Seen) -> Found:
    """What is given back reaches the model, where its family wants it."""
    family, past = seen.family, seen.past
    if not seen.model or not family.thinks:
        return
    if family.history == "never":
        yield Finding("ok", "past thoughts", f"{family.name} takes none")
        return
    if past is None:
        return
    remedy = seen.dialect.advice.preserve
    if past.thinking.problem:
        yield Finding(
            "note", "past thoughts", f"the server refused a history with them: {past.thinking.problem}", remedy
        )
        return
    kept = past.kept
    if kept is None:
        yield Finding("ok", "past thoughts", "cannot be told from outside")
        return
    wants_plain = family.history in ("all", "tools") or not past.tools
    lost = [
        word for word, there, wanted in _turns(kept.plain, kept.tool, wants_plain, past.tools) if wanted and not there
    ]
    if not lost:
        yield Finding("ok", "past thoughts", "are in the prompt")
    else:
        known = family.name != FALLBACK
        text = f"those of {' and '.join(lost)} do not reach the prompt{', and the family wants them' if known else ''}"
        serious = known and (_TOOL in lost or not past.tools)
        yield Finding("hurts" if serious else "note", "past thoughts", text, remedy)


_PLAIN, _TOOL = "plain answers", "tool calls"


def _turns(plain: bool, tool: bool, wants_plain: bool, wants_tool: bool) -> Iterator[tuple[str, bool, bool]]:
    yield _PLAIN, plain, wants_plain
    yield _TOOL, tool, wants_tool


def effort(seen: Seen) -> Found:
    """A word for the effort has a place, and an effect."""
    if not seen.model or not seen.family.thinks or seen.facts is None:
        return
    if seen.efforts is None:
        if seen.facts.effort_refused:
            text = "no effort is sent by itself: the server does not say that the model thinks"
            yield Finding("note" if seen.family.efforts else "ok", "effort", text, seen.dialect.advice.thinks)
        elif speed.is_slow(seen):
            budget = ", policy.thinking_budget = N" if seen.facts.budget_fields else ""
            text = f"no words are known for {seen.family.name}, so that a slow backend is not asked to think less"
            yield Finding("note", "effort", text, f'[families."{seen.family.name}"] efforts = ["low", …]{budget}')
        else:
            yield Finding(
                "ok", "effort", f"no words are known for {seen.family.name}, so that no effort is sent by itself"
            )
        return
    yield _effort(seen, seen.efforts)


def _effort(seen: Seen, found: Efforts) -> Finding:
    words = f"`{found.where}`, {found.lowest} to {found.highest}"
    if found.problem:
        return Finding("hurts", "effort", f"{words}: refused: {found.problem}", seen.dialect.advice.effort)
    if found.obeyed is None:
        return Finding("ok", "effort", f"goes as {words}; nobody can tell from outside whether it is obeyed")
    if found.obeyed:
        return Finding("ok", "effort", f"goes as {words}, and changes the prompt")
    return Finding("hurts", "effort", f"{words}: ignored, the prompt is the same", seen.dialect.advice.effort)


def tokens(seen: Seen) -> Found:
    """Whether the ledger gets cached and reasoning tokens from the server."""
    answer = seen.answer
    if answer is None or answer.problem or answer.cut:
        return
    usages = [said.fold.reported() for said in (answer, seen.again) if said is not None and not said.problem]
    if usages[0].prompt is None:
        text = "no usage is reported: the ledger estimates all counts"
        yield Finding("note", "tokens", text, "a newer version of the server may report them")
        return
    if any(usage.cached is not None for usage in usages):
        yield Finding("ok", "cached tokens", "are reported")
    elif option := seen.dialect.advice.cached:
        yield Finding(
            "note", "cached tokens", "are not reported: the ledger has none, and all input costs in full", option
        )
    else:
        yield Finding("ok", "cached tokens", "are not reported by this engine: the ledger has none")
    said = answer.fold.reported().reasoning
    if said:
        yield Finding("ok", "reasoning tokens", "are reported")
    elif said == 0 and answer.fold.reasoning_text:
        text = "0 are reported beside a thought: the ledger estimates them, and says so"
        yield Finding("ok", "reasoning tokens", text)
    elif answer.fold.reasoning_text:
        yield Finding("ok", "reasoning tokens", "are not reported: the ledger estimates them, and says so")


def slots(seen: Seen) -> Found:
    """How many requests it works on at a time, and whether the others wait where that can be seen and left."""
    found, limit = seen.found, seen.settings.backends[seen.name].max_concurrency
    there = found.of(seen.model).slots if found and seen.model else None
    if there is None:
        return
    many = f"works on {there} request{'s' if there > 1 else ''} at a time"
    if not limit:
        yield Finding(
            "note", "line", f"{many}; the others wait inside it", f"{_key(seen, 'max_concurrency')} = {there}"
        )
    elif limit > there:
        yield Finding("note", "line", f"{many}, and gets up to {limit}", f"{_key(seen, 'max_concurrency')} = {there}")
    else:
        yield Finding("ok", "line", f"{many}; the others wait in line here")


CHECKS: tuple[Callable[[Seen], Found], ...] = (
    reached,
    settings,
    models,
    context,
    generated,
    thought,
    past_thoughts,
    effort,
    tokens,
    slots,
    speed.check,
)


def _is_router(seen: Seen) -> bool:
    """llama-server with many models tells the state of each, and knows no other names."""
    return any("status" in row for row in seen.listed)


def _key(seen: Seen, name: str) -> str:
    return f"backends.{seen.name}.{name}"


def _marks(seen: Seen, text: str) -> str:
    """Mark-up of a thought in a text: an opener at its beginning, or a closer anywhere."""
    tags = (*seen.family.tags, *TAGS)
    return _begins(seen, text) or next((closer for _, closer in tags if closer in text), "")


def _begins(seen: Seen, text: str) -> str:
    return next((opener for opener, _ in (*seen.family.tags, *TAGS) if text.lstrip().startswith(opener)), "")


def _parted(seen: Seen, answer: Said) -> bool:
    """Whether the settings have this proxy part the thought from the text."""
    shaper = Shaper(seen.settings.thinking, seen.family, filler="", new_id=str)
    event = Event(b"", [Part(text=answer.fold.visible_text, finish="length")])
    shaper.apply(event, whole=True)
    return bool(event.parts[0].reasoning)
