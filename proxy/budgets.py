"""What each client may spend: held before a call, settled after it, by the day and the month of UTC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from proxy import config
from proxy.errors import InsufficientQuota
from proxy.messages import Entry


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of prompts and completions, and USD."""

    tokens: int = 0
    usd: Decimal = Decimal(0)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.usd + other.usd)


@dataclass(frozen=True, slots=True)
class _Limit:
    name: str
    of_day: bool
    most: Decimal
    in_tokens: bool

    def used(self, spent: Spent) -> Decimal:
        return Decimal(spent.tokens) if self.in_tokens else spent.usd


Read = Callable[[str], Mapping[str, Spent]]
"""What the ledger says that clients have spent since a time, in RFC 3339."""


class Budgets:
    """The budgets of the clients that have one.

    A request is let in while what is spent and what is held for others is below the limit: a budget can be used to its
    end, and is overdrawn by what one answer takes at the most, however many come at once. May be called in any thread.
    """

    def __init__(self, settings: config.Settings, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._limits = {name: found for name, client in settings.clients.items() if (found := list(_limits(client)))}
        self._now = now
        self._lock = threading.Lock()
        self._spent: dict[tuple[str, str], Spent] = {}
        self._held: dict[str, tuple[str, Spent]] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def load(self, read: Read) -> None:
        """Take from the ledger what was spent in this day and month, in the place of what is known."""
        now = self._now()
        found = {
            period: read(f"{since}T00:00:00Z")
            for period, since in ((_day(now), _day(now)), (_month(now), f"{_month(now)}-01"))
        }
        with self._lock:
            self._spent = {(client, period): spent for period, each in found.items() for client, spent in each.items()}

    def check(self, client: str | None) -> None:
        """Raises InsufficientQuota where a budget is used up."""
        with self._lock:
            self._check(client)

    def hold(self, client: str | None, request_id: str, most: Spent) -> None:
        """Keep back what a request may come to, until its row is settled. Raises InsufficientQuota."""
        with self._lock:
            self._check(client)
            if client is not None and client in self._limits:
                self._held[request_id] = (client, most)

    def _check(self, client: str | None) -> None:
        limits = self._limits.get(client or "")
        if client is None or not limits:
            return
        now = self._now()
        held = sum((spent for owner, spent in self._held.values() if owner == client), Spent())
        for limit in limits:
            used = limit.used(self._spent.get((client, _period(limit, now)), Spent()) + held)
            if used >= limit.most:
                raise _refusal(limit, used, now)

    def settle(self, entry: Entry) -> None:
        """What the request really came to, as its complete row says, in the place of what was held."""
        if entry.client not in self._limits:
            return
        usd = Decimal(entry.cost_usd) if entry.cost_usd is not None else Decimal(0)
        spent = Spent((entry.prompt_tokens or 0) + (entry.completion_tokens or 0), usd)
        came = datetime.fromisoformat(entry.ts)
        with self._lock:
            self._held.pop(entry.request_id, None)
            for period in (_day(came), _month(came)):
                key = (entry.client or "", period)
                self._spent[key] = self._spent.get(key, Spent()) + spent
            now = self._now()
            for key in [key for key in self._spent if key[1] not in (_day(now), _month(now), _day(came), _month(came))]:
                del self._spent[key]


def _limits(client: config.Client) -> list[_Limit]:
    found = [
        _Limit("budget_usd_per_day", True, client.budget_usd_per_day, False),
        _Limit("budget_usd_per_month", False, client.budget_usd_per_month, False),
        _Limit("max_tokens_per_day", True, Decimal(client.max_tokens_per_day), True),
    ]
    return [limit for limit in found if limit.most]


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")


def _month(moment: datetime) -> str:
    return moment.strftime("%Y-%m")


def _period(limit: _Limit, now: datetime) -> str:
    return _day(now) if limit.of_day else _month(now)


def _refusal(limit: _Limit, used: Decimal, now: datetime) -> InsufficientQuota:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begins = (
        midnight + timedelta(days=1) if limit.of_day else (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    )
    amount = f"{limit.most:,f} tokens" if limit.in_tokens else f"{limit.most.normalize():f} USD"
    shown = f"{used:,f} are" if limit.in_tokens else f"{used.quantize(Decimal('0.0001')):f} are"
    text = (
        f"this client's {limit.name} of {amount} is used up ({shown} spent or held for requests that run); it begins "
        f"anew at {begins.strftime('%Y-%m-%dT%H:%M:%SZ')}"
    )
    return InsufficientQuota(text, retry_after=max(1, round((begins - now).total_seconds())))
