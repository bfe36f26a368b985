"""Looking after the turns of a store that is there already, also while a proxy runs on it.

from proxy.store.upkeep import open_upkeep
with closing(open_upkeep("sqlite:///proxy.db")) as upkeep:
    upkeep.forget(client="openwebui")
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeAlias

import msgspec

from proxy.errors import ProxyError
from proxy.store.limits import DAY, MIB, STEP, Limiter, Limits
from proxy.store.texts import Connection
from proxy.store.turns import Gone, Turns

PAUSE_SECONDS = 0.01
"""Between two transactions, so that a proxy which waits to write gets its turn."""

_SHRUNK = 0.9
"""Down to this part of their size turns go where they are over it, as in `Limiter`."""

Told: TypeAlias = Callable[[int, int], None]
"""Called now and then with the number of turns that are done, and of all; the latter may have been estimated."""


@dataclass(frozen=True, slots=True)
class ClientStats:
    """The turns of one client. Times are RFC 3339 in UTC."""

    client: str | None
    turns: int
    oldest_use: str
    newest_use: str


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in a store.

    `text_bytes` is the length of the different texts, `stored_bytes` what turns take as `max_mb` counts it and
    `file_bytes` what all takes on the disk, with the ledger. Times are None where there is no turn.
    """

    turns: int
    texts: int
    text_bytes: int
    stored_bytes: int
    file_bytes: int
    oldest_use: str | None
    newest_use: str | None
    clients: list[ClientStats]


class Upkeep(ABC):
    """What can be done with the turns of any engine, a bounded number in each transaction.

    As a context it closes itself, and gives what an engine raises (`errors`) as ProxyError.
    """

    errors: tuple[type[Exception], ...]

    def __init__(self, connection: Connection, now: Callable[[], float] = time.time) -> None:
        self._turns = Turns(connection)
        self._ask = connection.execute
        self._now = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if isinstance(error, self.errors):
            raise ProxyError(f"the store could not be read or written: {error}") from error

    @abstractmethod
    def writing(self) -> AbstractContextManager[Turns]:
        """A transaction, all or nothing, that no other writer is in."""

    @abstractmethod
    def reclaim(self) -> str | None:
        """Give free room back to the disk, and with it all that is left of what was deleted; else why not all of it."""

    @abstractmethod
    def file_bytes(self) -> int:
        """What the store takes on the disk."""

    @abstractmethod
    def close(self) -> None:
        """Give back the connection."""

    def stats(self) -> Stats:
        """What is there now."""
        turns, oldest, newest = self._turns.count()
        texts, text_bytes = self._turns.count_texts()
        clients = [
            ClientStats(client, turns, rfc3339(oldest), rfc3339(newest))
            for client, turns, oldest, newest in self._turns.count_by_client()
        ]
        return Stats(
            turns=turns,
            texts=texts,
            text_bytes=text_bytes,
            stored_bytes=self._turns.bytes(),
            file_bytes=self.file_bytes(),
            oldest_use=rfc3339(oldest) if turns else None,
            newest_use=rfc3339(newest) if turns else None,
            clients=clients,
        )

    def prune(self, limits: Limits, told: Told | None = None) -> Gone:
        """Delete what is over the limits."""
        with self.writing() as turns:
            turns.recount()
        whole = self._over(limits) if told else 0
        limiter, gone = Limiter(limits, self._now), Gone()
        while not limiter.done:
            with self.writing() as turns:
                gone += limiter.step(turns)
            if told:
                told(gone.turns, max(whole, gone.turns))
            time.sleep(PAUSE_SECONDS)
        return gone

    def export(
        self, client: str | None = None, conversation: str | None = None, told: Told | None = None
    ) -> Iterator[dict[str, Any]]:
        """The turns of a client, of a conversation, of both, or all: in the order in which they first came.

        `calls` and `details` are JSON values, None where there were none; times are RFC 3339 in UTC.
        """
        last = done = 0
        whole = self._count(client, conversation) if told else 0
        while rows := self._turns.exported(last, STEP, client, conversation):
            for number, turn, created, used in rows:
                last = number
                if turn is None:
                    continue
                yield {
                    "key": turn.key.hex(),
                    "reasoning": turn.reasoning,
                    "calls": _value(turn.calls),
                    "details": _value(turn.details),
                    "client": turn.client,
                    "conversation": turn.conversation,
                    "effort": turn.effort,
                    "created": rfc3339(created),
                    "used": rfc3339(used),
                }
            done += len(rows)
            if told:
                told(done, max(whole, done))

    def forget(self, client: str | None = None, conversation: str | None = None, told: Told | None = None) -> Gone:
        """Delete the turns of a client, of a conversation, or of both; one must be given. `reclaim` removes the rest.

        With them go their weaker keys, and the texts that no other turn uses. The ledger holds no text, and stays.
        """
        if client is None and conversation is None:
            raise ValueError("neither a client nor a conversation is given")
        whole = self._count(client, conversation) if told else 0
        gone, last, more = Gone(), 0, True
        while more:
            with self.writing() as turns:
                rows = turns.chosen(last, STEP, client, conversation)
                gone += turns.drop(rows)
            if told:
                told(gone.turns, max(whole, gone.turns))
            more = len(rows) == STEP
            if more:
                last = rows[-1][0]
                time.sleep(PAUSE_SECONDS)
        return gone

    def _count(self, client: str | None, conversation: str | None) -> int:
        """The turns of a client, of a conversation, of both, or all."""
        given = {"client": client, "conversation": conversation}
        held = {name: value for name, value in given.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in held)
        (found,) = self._ask(f"SELECT count(*) FROM turns WHERE 1 = 1{where}", (*held.values(),)).fetchone()  # noqa: S608
        return int(found)

    def _over(self, limits: Limits) -> int:
        """About how many turns the limits let go: those above the size are taken for as large as all others."""
        old, excess, most = 0, 0.0, limits.max_mb * MIB
        if limits.max_age_days:
            before = int(self._now()) - limits.max_age_days * DAY
            (old,) = self._ask("SELECT count(*) FROM turns WHERE used < ?", (before,)).fetchone()
        size = self._turns.bytes()
        if 0 < most < size:
            excess = (size - _SHRUNK * most) / size * self._count(None, None)
        return max(int(old), math.ceil(excess))


def rfc3339(seconds: int) -> str:
    """A time in seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}Z"


def _value(text: str) -> Any:
    """The text of a JSON value as it is, in one line; a text that is none, as a string."""
    if not text:
        return None
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.Raw(msgspec.json.format(text, indent=-1).encode())
