"""The account of one request: from its first moment to its ledger row and its stored turns, written exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from proxy import prices, tokens, window
from proxy.accounting import Account, Books
from proxy.backends import Route
from proxy.callers import Caller, keys_in
from proxy.counting import counted
from proxy.doors import Call
from proxy.errors import Ended, ProxyError, RequestError, UpstreamError, UpstreamUnreachable
from proxy.events import Event, Usage
from proxy.fold import Fold, total
from proxy.jsons import dumps
from proxy.keys import Chain
from proxy.line import Line, Ticket
from proxy.messages import Entry, Plan
from proxy.planning import Planned
from proxy.recall import Recalled
from proxy.remember import Answer, Rememberer
from proxy.spans import Span
from proxy.speeds import Span as Pace
from proxy.speeds import decode, measured, positive

log = logging.getLogger(__name__)

_LEAST_SECRET = 6
_SETTLE_SECONDS = 1.0
"""An answer waits so long at the most for a database that does not take it; the turn is in memory all the same."""
_COUNT_SECONDS = 0.1
"""And so long where the engine counts tokens first."""
_LONG_MS = 500
_SHARED = ("kind", "model", "upstream_model", "backend", "engine", "family", "effort_sent", "effort_reason")
"""What is said of a request that rejoins another one's answer; tokens and cost are the other's."""
_CHOSEN_BY_DEFAULT = frozenset({"auto", "slow-backend", "default", "conversation"})


class Record:
    """Collects what happens to a request. `finish` is synchronous: after a disconnect every await is cancelled."""

    def __init__(self, books: Books, call: Call, request_id: str, kind: str, secrets: Iterable[str] = ()) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.entry = Entry(ts=now, request_id=request_id, endpoint=call.path, kind=kind)
        self.fold = Fold()
        """The answer, or the last of two tries."""
        self._earlier: list[Fold] = []
        self._books = books
        self._store = books.store
        self._authorization = call.headers.get("authorization", "")
        self._places: list[tuple[Line, Ticket]] = []
        self.span: Span | None = None
        """Of the process's tracer, where it has one."""
        self._counts = False
        self._started = time.monotonic()
        self._span = Pace()
        self.finished = False
        self._secrets = [*filter(_is_secret, secrets), *filter(_is_secret, keys_in(call.headers))]
        self._plan: Plan | None = None
        self._chain: Chain | None = None
        self._known: Mapping[int, Recalled] = {}
        self._kept = self._left = False
        self.goes_on = False
        """Its answer is made though its client has left."""
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

    def planned(self, made: Planned) -> None:
        """What was decided, before it is sent."""
        self._plan = plan = made.plan
        self._chain, self._known, self._route = made.chain, made.known, made.route
        entry, request, facts, counts = self.entry, plan.request, plan.facts, plan.history
        entry.kind, entry.stream = plan.kind, request.stream
        entry.model, entry.upstream_model = request.model, facts.upstream_model
        entry.backend, entry.engine, entry.family = facts.backend, facts.engine, facts.family.name
        entry.effort_asked = request.effort.word if request.effort else None
        entry.max_tokens_asked = request.max_tokens
        entry.turns_present, entry.turns_restored = counts.present, counts.restored
        entry.turns_missing, entry.turns_filled, entry.turns_dropped = counts.missing, counts.filled, counts.dropped
        self._told(plan)

    def holds(self, line: Line, ticket: Ticket) -> None:
        """It has a place at a backend, whose time it takes from now on."""
        self._places.append((line, ticket))

    def _told(self, plan: Plan) -> None:
        """What the backend is told."""
        entry = self.entry
        entry.effort_sent, entry.effort_reason = plan.effort, plan.effort_reason
        entry.max_tokens_sent, entry.thinking_budget_sent = plan.max_tokens, plan.thinking_budget
        entry.decisions = list(dict.fromkeys(decision.rule for decision in plan.decisions))

    @property
    def plan(self) -> Plan | None:
        """The latest that was sent."""
        return self._plan

    def tried_again(self, plan: Plan) -> None:
        """The answer so far was lost, and another one comes with this plan: both are paid for."""
        self._plan = plan
        self._earlier.append(self.fold)
        self.fold, self._span = Fold(), Pace()
        self._told(plan)
        self.flag("rescued", True)

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
        elif isinstance(error, Ended):
            self.finish("client_disconnected")
        else:
            self.finish("rejected" if isinstance(error, ProxyError) else "client_disconnected")

    def finish(self, outcome: str | None = None) -> None:
        """Write the row; without an outcome the answer is complete, is judged by what it says, and is remembered."""
        if self.finished:
            return
        self.finished = True
        entry, fold = self.entry, self.fold
        entry.duration_ms = self._elapsed()
        usages = [each.reported() for each in self._folds]
        usage = total(usages)
        entry.prompt_tokens, entry.cached_tokens, entry.cache_write_tokens = usage.prompt, usage.cached, usage.written
        entry.completion_tokens, entry.reported_reasoning_tokens = usage.completion, usage.reasoning
        self.flag("usage_repaired", usage.repaired)
        self._speeds(usages[-1])
        if outcome is None:
            entry.outcome, entry.finish_reason = fold.outcome, fold.finish
            self.flag("empty_turn", fold.empty and entry.kind != "passthrough")
            self._remember()
        else:
            first = fold.choices.get(0)
            entry.outcome, entry.finish_reason = outcome, first.finish if first else entry.finish_reason
        told = (entry.request_id, entry.kind, entry.model or entry.endpoint, entry.status, entry.outcome)
        log.info("%s %s %s: status %s, %s, %s ms", *told, entry.duration_ms)
        if self._books.logs_content and self._plan is not None:
            self._log_content(self._plan)
        account = self._account(usages)
        if self.span is not None:
            account.span = self.span
            self.span.over()
        account.prompt = self._prompt if self._left or outcome is not None else None
        self._counts = self._books.put(entry, account)

    def _account(self, usages: list[Usage]) -> Account:
        return Account(self._folds, usages, self._route, places=self._places, authorization=self._authorization)

    def _log_content(self, plan: Plan) -> None:
        asked = b",".join(message.raw for message in plan.request.messages).decode("utf-8", "replace")
        log.info("%s asked: %s", self.entry.request_id, self.safe(asked))
        for choice, reasoning, text in self.fold.answers():
            calls = [{"name": call.name, "arguments": call.arguments} for call in choice.tool_calls]
            said = dumps({"reasoning": reasoning, "text": text, "calls": calls}).decode()
            log.info("%s answered: %s", self.entry.request_id, self.safe(said))

    async def settled(self) -> None:
        """Wait a little until this request's turns and row are written: where other proxies read the same store, and
        where so much time went into the answer that a few milliseconds are nothing beside it."""
        if (self._store.shared and self._kept) or (self.entry.duration_ms or 0) >= _LONG_MS:
            await self._store.written(_COUNT_SECONDS if self._counts else _SETTLE_SECONDS)

    def rejoined(self, other: Record) -> None:
        """This request listens to the answer that another one asked for, and paid for."""
        mine, its = self.entry, other.entry
        for name in _SHARED:
            setattr(mine, name, getattr(its, name))
        self.flag("rejoined", True)

    def shares(self, other: Record) -> None:
        """What became of the other request's answer became of this one's."""
        mine, its = self.entry, other.entry
        mine.status, mine.error, mine.finish_reason = its.status, its.error, its.finish_reason
        self.finish(its.outcome)

    def cost(self) -> str | None:
        """What the answer cost as far as its usage is reported, for a response header."""
        usage = self._usage()
        found = self._books.cost(self.entry, usage, self._account([usage]), wait=False)
        return None if found is None else prices.written(found[0])

    def left(self) -> None:
        """The engine was left before it told what it spent, because the visible text had its end."""
        self._left = True

    def usage_told(self) -> dict[str, Any]:
        """The usage of all tries in OpenAI's shape, for a client that the engine tells nothing; what nobody reported is
        counted or estimated, as in the row, which takes time."""
        usage = self._usage()
        prompt, completion = usage.prompt, usage.completion
        if prompt is None:
            prompt = self._prompt
        if completion is None:
            counts = [counted(fold, fold.reported()) for fold in self._folds]
            completion = sum(count.completion for count in counts if count is not None)
        told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
        told["total_tokens"] = prompt + completion
        if usage.cached is not None:
            told["prompt_tokens_details"] = {"cached_tokens": usage.cached}
        if usage.reasoning is not None:
            told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        return told

    def _usage(self) -> Usage:
        return total([fold.reported() for fold in self._folds])

    @property
    def _folds(self) -> list[Fold]:
        return [*self._earlier, self.fold]

    @property
    def _prompt(self) -> int:
        """Tokens of all prompts that were sent, estimated."""
        if self._plan is None or self._route is None:
            return 0
        density = self._route.backend.learned.bytes_per_token(self._route.upstream_model, safe=False)
        return tokens.estimate(window.size(self._plan), bytes_per_token=density) * len(self._folds)

    def _remember(self) -> None:
        """Keep the finished turns, so that they are found before the client can ask for them."""
        plan, chain, entry = self._plan, self._chain, self.entry
        if plan is None or chain is None or plan.kind == "side":  # which is no turn of the chat
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
        """The engine's own figures, else the stream's pace from the first token to the last; of the latest try."""
        timings, entry = self.fold.timings, self.entry
        count = usage.completion or self._span.count
        entry.prefill_tokens_per_second = positive(timings.get("prompt_per_second"))
        entry.decode_tokens_per_second = decode(timings, self._span, count)
        if self._route is None or self._plan is None:
            return
        backend, model = self._route.backend, self._route.upstream_model
        backend.note_names(model, self.fold.names)
        seen = replace(entry, prompt_tokens=usage.prompt, cached_tokens=usage.cached, completion_tokens=count)
        backend.learned.took(model, measured(seen))
        if usage.prompt is not None:
            backend.learned.read(model, window.size(self._plan), usage.prompt)

    def _elapsed(self) -> int:
        return round((time.monotonic() - self._started) * 1000)


def _is_secret(text: str) -> bool:
    """Whether it is long enough to be one: hiding short texts would garble messages."""
    return len(text) >= _LEAST_SECRET
