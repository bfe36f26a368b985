"""Turns in SQL, the same for every engine.

Whoever changes something holds a transaction that no other writer is in: SQLite's `BEGIN IMMEDIATE`, elsewhere a lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from proxy.store import turn_rows
from proxy.store.found import Stored, Uses
from proxy.store.texts import ROW_BYTES, Connection, hold, release
from proxy.turns import MOST_TURNS, Turn

FRESH_SECONDS = 3600
"""A use is written down when the last one is longer ago."""

TURN_BYTES = 300
"""What a turn takes beside its texts, with its keys."""

MOST_VALUES = 30_000
"""In one statement. SQLite takes 32,766 in the builds of most systems, PostgreSQL 65,535."""

Row: TypeAlias = tuple[int, int, int, int]
"""Of a turn: id, and the numbers of its thought, calls and details."""

_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Gone:
    """What was deleted: so many turns, and the bytes that they took."""

    turns: int = 0
    bytes: int = 0

    def __add__(self, other: Gone) -> Gone:
        return Gone(self.turns + other.turns, self.bytes + other.bytes)


class Turns:
    """The tables of turns behind one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ask = connection.execute

    # Reading

    def find(self, keys: Iterable[bytes], weaker: Iterable[bytes], now: float, most: int = MOST_VALUES) -> Stored:
        """What is known of the keys: one query, unless they are more than `most`."""
        asked = [*((key, False) for key in dict.fromkeys(keys)), *((key, True) for key in dict.fromkeys(weaker))]
        found = Stored()
        for start in range(0, len(asked), most):
            part = asked[start : start + most]
            exact = [key for key, is_weaker in part if not is_weaker]
            rest = [key for key, is_weaker in part if is_weaker]
            if rest:
                found.add(turn_rows.found(self._rows(exact, rest), now - FRESH_SECONDS))
            else:
                found.add(turn_rows.exact(self._exact_rows(exact), now - FRESH_SECONDS))
        return found

    def _exact_rows(self, keys: Sequence[bytes]) -> list[Any]:
        # The usual case in half the time: hardly two turns of a conversation have a text in common.
        sql = f"SELECT {turn_rows.WITH_TEXTS} WHERE t.key IN ({_marks(keys)})"
        return self._ask(sql, keys).fetchall()

    def _rows(self, keys: Sequence[bytes], weaker: Sequence[bytes]) -> list[Any]:
        # The texts come apart, each once: a turn is often found by several of its keys.
        sql = f"""WITH hits AS (
                SELECT {turn_rows.EXACT} AS kind, t.key AS asked, {turn_rows.COLUMNS}
                FROM turns t WHERE t.key IN ({_marks(keys)})
                UNION ALL
                SELECT {turn_rows.WEAKER}, w.key, {turn_rows.COLUMNS.replace("t.used", "coalesce(t.used, w.seen, 0)")}
                FROM weaker w LEFT JOIN turns t ON t.id = w.turn WHERE w.key IN ({_marks(weaker)})
            )
            SELECT * FROM hits
            UNION ALL
            SELECT {turn_rows.OF_A_TEXT} FROM texts
            WHERE id IN (SELECT thought FROM hits UNION SELECT calls FROM hits UNION SELECT details FROM hits)"""  # noqa: S608 - our own names
        return self._ask(sql, (*keys, *weaker)).fetchall()

    def bytes(self) -> int:
        """What all turns take: their texts as stored, and fixed amounts for each turn and text."""
        (found,) = self._ask("SELECT value FROM totals WHERE name = 'turn_bytes'").fetchone()
        return int(found)

    def oldest(self, most: int, before: int = _NEVER) -> list[Row]:
        """Turns that were used last before a time, the least recently used first."""
        sql = "SELECT id, thought, calls, details FROM turns WHERE used < ? ORDER BY used, id LIMIT ?"
        return self._ask(sql, (before, most)).fetchall()

    def chosen(self, after: int, most: int, client: str | None, conversation: str | None) -> list[Row]:
        """Turns with a number above `after`, in their order: of a client, of a conversation, of both, or all."""
        where, values = _choice(client, conversation)
        sql = f"SELECT id, thought, calls, details FROM turns t WHERE id > ?{where} ORDER BY id LIMIT ?"  # noqa: S608
        return self._ask(sql, (after, *values, most)).fetchall()

    def exported(
        self, after: int, most: int, client: str | None, conversation: str | None
    ) -> list[tuple[int, Turn | None, int, int]]:
        """The same with all that they hold: number, turn (None where it is damaged), created, used."""
        where, values = _choice(client, conversation)
        sql = f"SELECT t.created, {turn_rows.WITH_TEXTS} WHERE t.id > ?{where} ORDER BY t.id LIMIT ?"
        found = self._ask(sql, (after, *values, most)).fetchall()
        return [(row[1], turn_rows.with_texts(row[1:]), row[0], row[7]) for row in found]

    def count(self) -> tuple[int, int, int]:
        """How many, and when the least and the most recently used one was used."""
        found: tuple[int, int, int] = self._ask(
            "SELECT count(*), coalesce(min(used), 0), coalesce(max(used), 0) FROM turns"
        ).fetchone()
        return found

    def count_by_client(self) -> list[tuple[str | None, int, int, int]]:
        """The same for each client, the one with the most first."""
        return self._ask(
            "SELECT client, count(*), min(used), max(used) FROM turns GROUP BY client ORDER BY 2 DESC, 1"
        ).fetchall()

    def count_texts(self) -> tuple[int, int]:
        """How many different texts, and how long they are together."""
        count, size = self._ask("SELECT count(*), coalesce(sum(size), 0) FROM texts").fetchone()
        return int(count), int(size)

    # Changing

    def put(self, turns: Iterable[turn_rows.PackedTurn], now: float) -> None:
        """Keep them, each as the newest of its key; see `proxy.store.Store.put_turn`."""
        self._count(sum(self.put_one(turn, int(now), int(now)) for turn in turns))

    def put_one(self, packed: turn_rows.PackedTurn, created: int, used: int) -> int:
        """Keep one; the store grew by so many bytes, which are still to be counted."""
        turn = packed.turn
        held = [hold(self._connection, text) for text in (packed.thought, packed.calls, packed.details)]
        (thought, calls, details), grown = (number for number, _ in held), sum(size for _, size in held)
        sql = "SELECT id, thought, calls, details, nth, seen FROM turns WHERE key = ? ORDER BY nth, id"
        there = self._ask(sql, (turn.key,)).fetchall()
        nth = there[-1][4] + 1 if there else 1
        same = next((row for row in there if row[1] == thought and row[5] == turn.seen), None)
        fields = (
            *(calls, details, nth, created, used),
            *(turn.effort, packed.blanks, turn.mark, turn.seen, turn.system, turn.client, turn.conversation),
            *(turn.made, turn.depth, int(turn.settled)),
        )
        if same is None:
            (number,) = self._ask(_INSERT, (turn.key, thought, *fields)).fetchone()
            grown += TURN_BYTES
        else:
            number = same[0]
            self._ask(_UPDATE, (*fields, number))
            grown -= sum(release(self._connection, text) for text in same[1:4])
        for key in dict.fromkeys(turn.weaker):
            self._ask(_PUT_WEAKER, (key, number, thought, thought, used))
        # After the weaker keys: one that leads to a turn which goes here, and to this one, leads nowhere from now on.
        for row in there[: max(0, len(there) + (same is None) - MOST_TURNS)]:
            grown -= self._drop(row[:4])
        return grown

    def mark_used(self, uses: Uses, now: float) -> None:
        """These turns and weaker keys were met now."""
        for some in _parts(sorted(uses.turns)):
            self._ask(f"UPDATE turns SET used = ? WHERE id IN ({_marks(some)})", (int(now), *some))  # noqa: S608
        for keys in _parts(sorted(uses.weaker)):
            sql = f"UPDATE weaker SET seen = ? WHERE turn IS NULL AND key IN ({_marks(keys)})"  # noqa: S608
            self._ask(sql, (int(now), *keys))

    def drop(self, rows: Iterable[Row], enough: float = math.inf) -> Gone:
        """Delete turns, with the weaker keys that lead to them and the texts that no other turn uses.

        No more of them than it takes to free `enough` bytes.
        """
        count = freed = 0
        for row in rows:
            if freed >= enough:
                break
            count, freed = count + 1, freed + self._drop(row)
        self._count(-freed)
        return Gone(count, freed)

    def drop_unclear(self, before: int, most: int) -> int:
        """Forget of weaker keys that were met last before a time that they lead to several thoughts: how many."""
        sql = """DELETE FROM weaker WHERE key IN (
            SELECT key FROM weaker WHERE turn IS NULL AND seen < ? ORDER BY seen LIMIT ?)"""
        return self._ask(sql, (before, most)).rowcount

    def recount(self) -> int:
        """Count anew what all turns take."""
        (texts,) = self._ask(f"SELECT coalesce(sum(length(data) + {ROW_BYTES}), 0) FROM texts").fetchone()  # noqa: S608
        (turns,) = self._ask("SELECT count(*) FROM turns").fetchone()
        found = int(texts) + int(turns) * TURN_BYTES
        self._ask("UPDATE totals SET value = ? WHERE name = 'turn_bytes'", (found,))
        return found

    def _count(self, grown: int) -> None:
        if grown:
            self._ask("UPDATE totals SET value = value + ? WHERE name = 'turn_bytes'", (grown,))

    def _drop(self, row: Sequence[int]) -> int:
        number, *texts = row
        self._ask("DELETE FROM weaker WHERE turn = ?", (number,))
        self._ask("DELETE FROM turns WHERE id = ?", (number,))
        return TURN_BYTES + sum(release(self._connection, text) for text in texts)


_INSERT = """INSERT INTO turns (key, thought, calls, details, nth, created, used, effort, blanks, mark, seen, system,
    client, conversation, made, depth, settled)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"""
_UPDATE = """UPDATE turns SET calls = ?, details = ?, nth = ?, created = ?, used = ?, effort = ?, blanks = ?,
    mark = ?, seen = ?, system = ?, client = ?, conversation = ?, made = ?, depth = ?, settled = ? WHERE id = ?"""
# Where it leads to several thoughts already, or its turn is not there, the comparison is not true, and so it stays.
_PUT_WEAKER = """INSERT INTO weaker (key, turn) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET
    turn = CASE WHEN (SELECT thought FROM turns WHERE id = weaker.turn) = ? THEN excluded.turn END,
    seen = CASE WHEN (SELECT thought FROM turns WHERE id = weaker.turn) = ? THEN NULL ELSE ? END"""


def _marks(values: Sequence[Any]) -> str:
    """For IN; NULL, which nothing equals, where there are none: not every engine takes an empty list."""
    return ",".join("?" * len(values)) or "NULL"


def _choice(client: str | None, conversation: str | None) -> tuple[str, list[str]]:
    """Of a statement about turns `t`: further conditions, and their values."""
    wanted = [("client", client), ("conversation", conversation)]
    given = [(name, value) for name, value in wanted if value is not None]
    return "".join(f" AND t.{name} = ?" for name, _ in given), [value for _, value in given]


def _parts(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), MOST_VALUES):
        yield values[start : start + MOST_VALUES]
