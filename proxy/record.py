"""The account of one request: from its first moment to its ledger row and its stored turns, written exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from proxy import prices, tokens, window
from proxy.backends import Route
from proxy.callers import Caller, keys_in
from proxy.errors import ProxyError, RequestError, UpstreamError, UpstreamUnreachable
from proxy.fold import Fold
from proxy.jsons import dumps
from proxy.keys import Chain
from proxy.messages import Call, Entry, Event, Plan, Usage
from proxy.recall import Recalled
from proxy.remember import Answer, Rememberer
from proxy.store import Store

log = logging.getLogger(__name__)

_LEAST_SECRET = 6
_SETTLE_SECONDS = 1.0
"""An answer waits so long at the most for a database that does not take it; the turn is in memory all the same."""
_MOST_SPEED = 1e9
_LEAST_SPAN = 0.1
"""Seconds; a whole answer that arrives in fewer came out of a buffer, and its pace says nothing."""
_CHOSEN_BY_DEFAULT = frozenset({"auto", "slow-backend", "default", "conversation"})


class Record:
    """Collects what happens to a request. `finish` is synchronous: after a disconnect every await is cancelled."""

    def __init__(self, store: Store, call: Call, request_id: str, kind: str, secrets: Iterable[str] = ()) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.entry = Entry(ts=now, request_id=request_id, endpoint=call.path, kind=kind)
        self.fold = Fold()
        self._store = store
        self._started = time.monotonic()
        self._span = _Span()
        self.finished = False
        self._secrets = [*filter(_is_secret, secrets), *filter(_is_secret, keys_in(call.headers))]
        self._plan: Plan | None = None
        self._chain: Chain | None = None
        self._known: Mapping[int, Recalled] = {}
        self._kept = False
        self._route: Route | None = None

    def safe(self, text: str) -> str:
        """`text` without the keys of backends, clients and this call, whoever quotes them."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def caller(self, caller: Caller) -> None:
        """Who asked."""
        entry = self.entry
        entry.client, entry.end_user, entry.conversation = caller.client, caller.end_user, caller.conversation

    def planned(
        self, plan: Plan, chain: Chain, known: Mapping[int, Recalled], route: Route, *, attempts: int = 1
    ) -> None:
        """What was decided, before it is sent."""
        self._plan, self._chain, self._known, self._route = plan, chain, known, route
        entry, request, facts, counts = self.entry, plan.request, plan.facts, plan.history
        entry.kind, entry.stream, entry.attempts = plan.kind, request.stream, attempts
        entry.model, entry.upstream_model = request.model, facts.upstream_model
        entry.backend, entry.engine, entry.family = facts.backend, facts.engine, facts.family.name
        entry.effort_asked = request.effort.word if request.effort else None
        entry.effort_sent, entry.effort_reason = plan.effort, plan.effort_reason
        entry.max_tokens_asked, entry.max_tokens_sent = request.max_tokens, plan.max_tokens
        entry.thinking_budget_sent = plan.thinking_budget
        entry.turns_present, entry.turns_restored = counts.present, counts.restored
        entry.turns_missing, entry.turns_filled, entry.turns_dropped = counts.missing, counts.filled, counts.dropped
        entry.decisions = list(dict.fromkeys(decision.rule for decision in plan.decisions))

    def answered(self, status: int) -> None:
        """The backend's headers are there."""
        self.entry.status = status
        self.entry.first_byte_ms = self._elapsed()

    def event(self, event: Event) -> None:
        """One event of a stream: what it says, and when."""
        self.fold.add(event)
        entry = self.entry
        for part in event.parts:
            if part.reasoning and entry.first_reasoning_ms is None:
                entry.first_reasoning_ms = self._elapsed()
            if (part.text or part.calls) and entry.first_visible_ms is None:
                entry.first_visible_ms = self._elapsed()
            if part.reasoning or part.text or part.calls:
                self._span.note(time.monotonic())

    def flag(self, name: str, seen: bool) -> None:
        """Something worth a word in the ledger's `flags`."""
        if seen and name not in self.entry.flags:
            self.entry.flags.append(name)

    def failed(self, error: BaseException) -> None:
        """The request ended with an error, ours or the backend's."""
        if isinstance(error, ProxyError):
            self.entry.status = error.status
            self.entry.error = self.safe(error.message)
        if isinstance(error, RequestError):
            self.finish("rejected")
        elif isinstance(error, UpstreamUnreachable):
            self.finish("upstream_unreachable")
        elif isinstance(error, UpstreamError):
            self.finish("upstream_error")
        else:
            self.finish("rejected" if isinstance(error, ProxyError) else "client_disconnected")

    def finish(self, outcome: str | None = None) -> None:
        """Write the row; without an outcome the answer is complete, is judged by what it says, and is remembered."""
        if self.finished:
            return
        self.finished = True
        entry, fold = self.entry, self.fold
        entry.duration_ms = self._elapsed()
        usage = fold.reported()
        entry.prompt_tokens, entry.cached_tokens = usage.prompt, usage.cached
        entry.completion_tokens, entry.reported_reasoning_tokens = usage.completion, usage.reasoning
        self.flag("usage_repaired", usage.repaired)
        self._speeds(usage)
        if outcome is None:
            entry.outcome, entry.finish_reason = fold.outcome, fold.finish
            self.flag("empty_turn", fold.empty and entry.kind != "passthrough")
            self._remember()
        else:
            first = fold.choices.get(0)
            entry.outcome, entry.finish_reason = outcome, first.finish if first else None
        told = (entry.request_id, entry.kind, entry.model or entry.endpoint, entry.status, entry.outcome)
        log.info("%s %s %s: status %s, %s, %s ms", *told, entry.duration_ms)
        price = self._route.price if self._route else None
        call_tags = self._route.family.call_tags if self._route else ()
        self._store.put_entry(entry, _Counting(fold, usage, price, call_tags))

    async def settled(self) -> None:
        """Where other proxies read the same store, wait a little until this request's turns are written."""
        if self._store.shared and self._kept:
            await asyncio.to_thread(self._store.flush, _SETTLE_SECONDS)

    def cost(self) -> str | None:
        """What the answer cost as far as its usage is reported, for a response header."""
        if self._route is None or self._route.price is None:
            return None
        cost = prices.cost(self.fold.reported(), self._route.price)
        return None if cost is None else format(cost, "f")

    def _remember(self) -> None:
        """Keep the finished turns, so that they are found before the client can ask for them."""
        plan, chain, entry = self._plan, self._chain, self.entry
        if plan is None or chain is None:
            return
        effort = (plan.effort or "") if plan.effort_reason in _CHOSEN_BY_DEFAULT and plan.kind == "chat" else None
        rememberer = Rememberer(chain, plan.request.messages, plan.messages, self._known)
        turns = list(rememberer.settled(entry.conversation))
        for choice, reasoning, text in self.fold.answers():
            if choice.shows:
                details = dumps(choice.details).decode() if choice.details else ""
                whose = (effort, entry.client, entry.conversation, time.time_ns() // 1_000_000)
                turns += rememberer.answered(Answer(text, choice.tool_calls, reasoning, details, *whose))
        for turn in turns:
            self._store.put_turn(turn)
        self._kept = bool(turns)

    def _speeds(self, usage: Usage) -> None:
        """The engine's own figures, else the stream's pace from the first token to the last."""
        timings, entry = self.fold.timings, self.entry
        entry.prefill_tokens_per_second = _positive(timings.get("prompt_per_second"))
        count = usage.completion or self._span.count
        decode = _positive(timings.get("predicted_per_second")) or self._span.pace(count)
        entry.decode_tokens_per_second = decode
        if self._route is None or self._plan is None:
            return
        backend, model = self._route.backend, self._route.upstream_model
        backend.note_names(model, self.fold.names)
        if decode is not None:
            backend.note_speed(model, decode, count)
        if usage.prompt is not None:
            backend.note_density(model, window.size(self._plan), usage.prompt)

    def _elapsed(self) -> int:
        return round((time.monotonic() - self._started) * 1000)


@dataclass(slots=True)
class _Span:
    """When tokens came: the first moment, the last, and how many pieces."""

    first: float = 0.0
    last: float = 0.0
    count: int = 0

    def note(self, now: float) -> None:
        if not self.count:
            self.first = now
        self.last = now
        self.count += 1

    def pace(self, tokens: int) -> float | None:
        """Tokens a second; None where everything came at once."""
        seconds = self.last - self.first
        return round((tokens - 1) / seconds, 3) if seconds >= _LEAST_SPAN and tokens > 1 else None


class _Counting:
    """Completes a row in the recorder's thread: counting takes time in proportion to the texts."""

    def __init__(self, fold: Fold, usage: Usage, price: prices.Price | None, call_tags: Sequence[str]) -> None:
        self._fold = fold
        self._usage = usage
        self._price = price
        self._call_tags = call_tags

    def __call__(self, entry: Entry) -> None:
        thought, said = self._fold.reasoning_text, self._fold.visible_text
        if any(tag in thought for tag in self._call_tags):
            entry.flags.append("call_markup_in_reasoning")
        completion, reported = self._usage.completion, self._usage.reasoning
        if completion is None and not (thought or said):
            return
        if completion is None:
            entry.completion_tokens = completion = tokens.count(thought) + tokens.count(said)
        # A zero beside a visible thought means that the engine does not count (vLLM with some parsers).
        if reported is not None and reported <= completion and (reported or not thought):
            entry.reasoning_tokens, entry.reasoning_source = reported, "reported"
        else:
            entry.reasoning_tokens, _ = tokens.split(completion, thought, said)
            entry.reasoning_source = "estimated"
        entry.visible_tokens = completion - entry.reasoning_tokens
        if self._price is not None:
            usage = Usage(entry.prompt_tokens, entry.cached_tokens, completion)
            cost = prices.cost(usage, self._price)
            entry.cost_usd = None if cost is None else format(cost, "f")
            entry.price_source = "config" if cost is not None else None


def _positive(value: object) -> float | None:
    return round(float(value), 3) if isinstance(value, int | float) and 0 < value < _MOST_SPEED else None


def _is_secret(text: str) -> bool:
    """Whether it is long enough to be one: hiding short texts would garble messages."""
    return len(text) >= _LEAST_SECRET
