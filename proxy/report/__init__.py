"""Ledger rows → what was thought, what was said, and what it cost, by one key.

    from proxy import Report
    Report.from_ledger("sqlite").by("model")

Rows are flat and plain (texts, numbers, None), as pandas and polars take them. Days and hours are UTC, as the ledger's
times are. A sum over rows of which none knows the number is None; a row that knows none (a passed-through request has
no tokens) still counts as a request. Amounts of money are exact, as decimal texts.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from proxy.errors import InvalidRequest
from proxy.messages import Entry
from proxy.report import compared, shown
from proxy.report.periods import bounds
from proxy.report.sums import COLUMNS, KEYS, SUMS, folded, percentiles, row, total
from proxy.store import Store
from proxy.store.ledger import Ledger, Row, Told, Where, open_ledger
from proxy.store.sqlite_ledger import SqliteLedger
from proxy.tariffs import Tariffs

__all__ = ["COLUMNS", "FORMATS", "KEYS", "Report"]

FORMATS = ("table", "json", "jsonl", "csv", "html")


class Report:
    """Sums over the rows from `since` (inclusive) to `until` (exclusive), both RFC 3339 in UTC or None for no bound.

    It is read when it is asked, so that it may tell more from one time to the next.
    """

    def __init__(self, ledger: Ledger, where: Where) -> None:
        self.since, self.until = where.since, where.until
        self._ledger = ledger
        self._where = where
        self._lock = threading.Lock()
        self._tariffs: Tariffs | None = None
        self._first: Report | None = None  # whose ledger this is
        self._close = weakref.finalize(self, ledger.close)  # notebooks never close a report

    @classmethod
    def from_ledger(
        cls,
        url: str,
        *,
        since: str | None = None,
        until: str | None = None,
        client: str | None = None,
        progress: Told | None = None,
    ) -> Self:
        """The report of a store's URL, of `jsonl:///file` (as `sqlite:///`), or of the path of either file; of the rows
        of one `client` only, if one is named.

        `since` and `until` are days, weeks, months and years (`2026-11-30`, `2026-W48`, `2026-11`, `2026`), RFC 3339,
        `now`, `today`, `yesterday`, `this week`, `last month` and the like, or `7d`, `2w`, `24h`, `30m` ago. A span as
        `until` is meant with all of it: `until="2026-11-30"` includes that day. `progress` is called with the bytes
        that are read of a file of lines, and those there are.
        Raises NotFound where there is no ledger yet, InvalidRequest for a bad time, ConfigError for a bad URL or file.
        """
        start, end = bounds(since, until)
        return cls(open_ledger(url, progress), Where(start, end, client))

    @classmethod
    def from_store(
        cls, store: Store, *, since: str | None = None, until: str | None = None, client: str | None = None
    ) -> Self:
        """The report of a running proxy's own store; to be closed before that is."""
        start, end = bounds(since, until)
        return cls(store.ledger(), Where(start, end, client))

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, since: str | None = None, until: str | None = None
    ) -> Self:
        """The report of rows as `Store.entries` gives them."""
        start, end = bounds(since, until)
        return cls(SqliteLedger.of(msgspec.convert(each, Entry) for each in rows), Where(start, end))

    def repriced(self, tariffs: Tariffs) -> Self:
        """The same by today's prices, and not by those of each row; the ledger stays as it is.

        What today's prices do not know has no cost. Time of a machine is taken at its new rate; where a machine was not
        billed by the hour before, nobody knows how long it was busy, and there is none either.
        """
        found = type(self)(self._ledger, self._where)
        found._tariffs, found._first = tariffs, self
        return found

    def by(self, key: str) -> list[dict[str, Any]]:
        """One row for each value of `key`: the value under the key's own name, then COLUMNS.

        Days and hours come in order, all else by completion tokens, the most first. Raises InvalidRequest for an
        unknown key.
        """
        return self._both(key)[0]

    def total(self) -> dict[str, Any]:
        """COLUMNS over all rows."""
        return self._whole(self._groups([]))

    def thinking(self) -> list[dict[str, Any]]:
        """How long thoughts were, by the effort that was sent: of chats that were counted, the number of requests, the
        50th, 90th and 99th percentile (nearest rank) and the most, in tokens."""
        counts: dict[str | None, Counter[int]] = {}
        where = "CASE WHEN kind = 'chat' THEN reasoning_tokens END"
        for effort, tokens, requests in self._counts("effort_sent", where):
            if tokens is not None:
                counts.setdefault(effort, Counter())[tokens] += requests
        rows = [{"effort": effort, **percentiles(each)} for effort, each in counts.items()]
        return sorted(rows, key=lambda each: (each["p50"], _named(each["effort"])))

    def decisions(self) -> list[dict[str, Any]]:
        """How many requests each of the proxy's rules changed, the most frequent first."""
        counts: Counter[str] = Counter()
        for decisions, requests in self._counts("decisions"):
            for decision in filter(None, (decisions or "").split(",")):
                counts[decision] += requests
        ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        return [{"decision": name, "requests": requests} for name, requests in ordered]

    def compare(self, model: str, tariffs: Tariffs, by: str = "model") -> dict[str, Any]:
        """What the same traffic costs at the price of `model`; see `compared.Comparison`. Raises InvalidRequest for a
        model without a known price."""
        return compared.compare(self._ledger, self._where, KEYS[_known(by)], model, tariffs.named(model))

    def render(
        self, by: str, format: str = "table", *, compare: str | None = None, tariffs: Tariffs | None = None
    ) -> str:
        """The report as text, without a line end at its end: `table`, `json`, `jsonl`, `csv` or `html`.

        JSON is an object with `by`, `since`, `until` (exclusive), `rows` and `total`, with `thinking` where it is by
        effort, `compare` where a model is named, and `repriced` where it is. Missing is `-` in the table, null in JSON
        and empty in CSV. The table is as wide as the terminal, or 120 columns without colours where stdout is none; a
        narrow one leaves out columns. Raises InvalidRequest for an unknown key, format or model.
        """
        if format not in FORMATS:
            raise InvalidRequest(f"`format` {format!r} is unknown; known are {', '.join(FORMATS)}", param="format")
        rows, whole = self._both(by)
        found = shown.Shown(by, self.since, self.until, rows, whole)
        if by == "effort" or format == "html":
            found.thinking = self.thinking()
        if compare is not None and tariffs is not None:
            found.compare = self.compare(compare, tariffs, by)
            for each in rows:
                each["compare_usd"] = found.compare["by"].get(each[by])
        if self._tariffs is not None:
            found.repriced = datetime.now(UTC).date().isoformat()
        return shown.text(found, format, days=self.by("day") if format == "html" else [])

    def close(self) -> None:
        """Close the ledger. Closing again does nothing."""
        self._close()

    def _both(self, key: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Rows and total of one look, although a proxy may be writing."""
        groups = self._groups([KEYS[_known(key)]])
        whole = self._whole(groups)
        cost = total(groups.values())["cost_usd"]
        rows = [{key: value, **row(sums, cost)} for (value,), sums in groups.items()]
        if key in ("day", "hour"):
            rows.sort(key=lambda each: _named(each[key]))
        else:
            rows.sort(key=lambda each: (-(each["completion_tokens"] or -1), -each["requests"], _named(each[key])))
        return rows, whole

    def _whole(self, groups: dict[Row, dict[str, Any]]) -> dict[str, Any]:
        sums = total(groups.values())
        return row(sums, sums["cost_usd"])

    def _groups(self, keys: list[str]) -> dict[Row, dict[str, Any]]:
        with self._lock:
            if self._tariffs is not None:
                return compared.repriced(self._ledger, self._where, keys, self._tariffs)
            return folded(self._ledger.sums(keys, SUMS, self._where), SUMS)

    def _counts(self, *keys: str) -> list[Row]:
        with self._lock:
            return list(self._ledger.counts(keys, self._where))


def _named(value: str | None) -> tuple[bool, str]:
    """For sorting: what has no name comes first."""
    return value is not None, value or ""


def _known(key: str) -> str:
    if key not in KEYS:
        raise InvalidRequest(f"`by` {key!r} is unknown; known are {', '.join(KEYS)}", param="by")
    return key
