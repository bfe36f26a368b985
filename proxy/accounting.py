"""The books: what every request came to in tokens and money, and who is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial

from proxy import config, prices, tariffs, tokens, window
from proxy.backends import Route
from proxy.budgets import Spent
from proxy.counting import Counted, counted, is_reported, total
from proxy.events import Usage
from proxy.fold import Fold
from proxy.line import Line, Ticket
from proxy.messages import Entry
from proxy.planning import Planned
from proxy.spans import Span
from proxy.store import Store
from proxy.tariffs import Tariff, Tariffs
from proxy.thoughts import thought_of
from proxy.tokenizers import SECONDS, Tokenizers

log = logging.getLogger(__name__)

_USUAL = 4096
"""Tokens that are held for an answer that has no cap."""


@dataclass(slots=True)
class Account:
    """What is known of one request when it ends. A fold and its usage stand for each try; `prompt` is an estimate for
    where the engine had no time to tell; `places` are those that it held, and `authorization` is its caller's."""

    folds: Sequence[Fold]
    usages: Sequence[Usage]
    route: Route | None
    prompt: int | None = None
    places: Sequence[tuple[Line, Ticket]] = ()
    authorization: str = ""
    span: Span | None = None
    seconds: Decimal = field(init=False)
    """Of the backend's time, shared with those who used it meanwhile."""

    def __post_init__(self) -> None:
        self.seconds = sum((line.share(ticket) for line, ticket in self.places), Decimal(0))


class Books:
    """Closes the account of each request: its row is complete when the store has it."""

    def __init__(self, settings: config.Settings, store: Store) -> None:
        self.tariffs = Tariffs(settings)
        self.logs_content = settings.store.log_content
        self._store = store
        self._tokenizers = Tokenizers(settings)
        self.told: list[Callable[[Entry], None]] = []
        """Called with each complete row, in the store's writing thread."""

    @property
    def store(self) -> Store:
        return self._store

    def put(self, entry: Entry, account: Account) -> bool:
        """Write the row, completed in other threads; whether an engine is asked to count for it."""
        counting = self._counting(account)
        self._store.put_entry(entry, partial(self._complete, account, counting))
        return counting is not None

    def cost(self, entry: Entry, usage: Usage, account: Account, *, wait: bool = True) -> tuple[Decimal, str] | None:
        """What it costs, and by what: the hour of the backend, the user's table, what the service says it asks, or what
        such services ask, for which without `wait` nothing is loaded. None where nobody knows."""
        if entry.backend is None or entry.outcome == "upstream_unreachable" or not entry.attempts:
            return None
        if (rate := self.tariffs.by_hour(entry.backend)) is not None:
            return prices.of_time(account.seconds, rate), tariffs.by_hour(rate)
        tariff = self._tariff(entry, usage, wait=wait)
        if usage.cost is not None and (tariff is None or tariff.source != tariffs.OWN):
            return usage.cost, tariffs.REPORTED
        amount = prices.cost(usage, tariff.price) if tariff is not None else None
        return None if tariff is None or amount is None else (amount, tariff.source)

    def most(self, made: Planned) -> Spent:
        """What a request may come to: its prompt, and its cap, or a usual answer where it has none."""
        facts, plan, route = made.plan.facts, made.plan, made.route
        prompt = tokens.estimate(window.size(plan), bytes_per_token=facts.bytes_per_token)
        usage = Usage(prompt, 0, plan.max_tokens or _USUAL)
        found = self.tariffs.of(
            plan.request.model, facts.backend, upstream=route.upstream_model, prompt=prompt, wait=False
        )
        amount = prices.cost(usage, found.price) if isinstance(found, Tariff) else None
        return Spent(prompt + (plan.max_tokens or _USUAL), amount or Decimal(0))

    def _tariff(self, entry: Entry, usage: Usage, *, wait: bool = True) -> Tariff | None:
        if entry.backend is None or entry.upstream_model is None:
            return None
        own = self.tariffs.own(entry.model or "", entry.backend, entry.upstream_model)
        day = datetime.fromisoformat(entry.ts).date()
        return own or self.tariffs.service(entry.upstream_model, entry.backend, day, usage.prompt or 0, wait=wait)

    def _counting(self, account: Account) -> Future[list[Counted | None]] | None:
        """The counts of a model's own tokens, on their way; None where they are not needed, or cannot be had."""
        route, tries = account.route, list(zip(account.folds, account.usages, strict=True))
        if route is None or all(is_reported(fold, usage) or not fold.choices for fold, usage in tries):
            return None
        count = self._tokenizers.of(
            route.backend.name,
            route.backend.dialect,
            route.upstream_model,
            route.family.token_pattern,
            account.authorization,
        )
        if count is None or not any(fold.thought or usage.completion is None for fold, usage in tries):
            return None
        return self._tokenizers.submit(lambda: [counted(fold, usage, count) for fold, usage in tries])

    def _complete(self, account: Account, counting: Future[list[Counted | None]] | None, entry: Entry) -> None:
        try:
            self._count(account, counting, entry)
            self._charge(account, entry)
            thought = thought_of(entry)
            if thought is not None and account.route is not None:
                account.route.backend.learned.thoughts.add(thought)
        finally:
            for tell in self.told:
                tell(entry)
            if account.span is not None:
                account.span.end(entry)

    def _count(self, account: Account, counting: Future[list[Counted | None]] | None, entry: Entry) -> None:
        tags = account.route.family.call_tags if account.route else ()
        if any(tag in fold.reasoning_text for fold in account.folds for tag in tags):
            entry.flags.append("call_markup_in_reasoning")
        parts = self._result(account, counting) or list(map(counted, account.folds, account.usages))
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return
        whole = total(known)
        entry.completion_tokens, entry.reasoning_tokens = whole.completion, whole.reasoning
        entry.visible_tokens, entry.reasoning_source = whole.visible, whole.source
        if entry.prompt_tokens is None and account.route is not None:
            entry.prompt_tokens = account.prompt

    def _result(self, account: Account, counting: Future[list[Counted | None]] | None) -> list[Counted | None] | None:
        """What was counted meanwhile; None where that has not come in time."""
        if counting is None:
            return None
        try:
            return counting.result(SECONDS)
        except Exception as error:
            log.debug("tokens are estimated: %r", error)
            if account.route is not None and not counting.cancel():  # it had its turn, and took too long
                self._tokenizers.give_up(account.route.backend.name)
            return None

    def _charge(self, account: Account, entry: Entry) -> None:
        reported = [usage.cost for usage in account.usages if usage.cost is not None]
        usage = Usage(
            entry.prompt_tokens,
            entry.cached_tokens,
            entry.completion_tokens,
            written=entry.cache_write_tokens,
            cost=sum(reported, Decimal(0)) if reported and len(reported) == len(account.usages) else None,
        )
        if (found := self.cost(entry, usage, account)) is not None:
            entry.cost_usd, entry.price_source = prices.written(found[0]), found[1]
            saved = self._saved(entry, usage)
            entry.cache_saved_usd = None if saved is None else prices.written(saved)

    def _saved(self, entry: Entry, usage: Usage) -> Decimal | None:
        """By what the cache made it cheaper: by the price of its tokens, or by the time that reading them takes."""
        rate = self.tariffs.by_hour(entry.backend or "")
        if rate is None:
            tariff = self._tariff(entry, usage)
            return prices.saved(usage, tariff.price) if tariff is not None else None
        if not entry.prefill_tokens_per_second or usage.cached is None:
            return None
        return prices.of_time(Decimal(usage.cached) / Decimal(entry.prefill_tokens_per_second), rate)

    def close(self) -> None:
        """End what counts. The store is closed before."""
        self._tokenizers.close()
