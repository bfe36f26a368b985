"""The report: sums over the ledger by one key, exact, from a store or a file of JSON lines."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.config import load
from proxy.errors import ConfigError, InvalidRequest, NotFound
from proxy.messages import Entry
from proxy.report import COLUMNS, FORMATS, KEYS, Report
from proxy.report.periods import bounds
from proxy.store import Store, open_store
from proxy.store.postgres_schema import connect
from proxy.store.rows import to_line
from proxy.tariffs import Tariffs

COUNT = st.none() | st.integers(0, 10**7)
NAME = st.none() | st.sampled_from(["", "a", "b", "ü"])
NUMBERS = itertools.count()


def row(**values: Any) -> Entry:
    """A ledger row of a fixed time."""
    return Entry(**({"ts": "2026-11-30T10:00:00.000Z", "attempts": 1} | values))


def costs() -> st.SearchStrategy[str | None]:
    """What a price table may give: up to 12 digits behind the point, also in scientific writing."""
    amounts = st.decimals(0, 10**6, places=12) | st.sampled_from([Decimal("3E-7"), Decimal(0), Decimal("0.1")])
    return st.none() | amounts.map(str)


def rows() -> st.SearchStrategy[list[Entry]]:
    """Ledgers of a few requests in two days."""
    moments = st.datetimes(datetime(2026, 11, 29), datetime(2026, 11, 30, 23, 59, 59))  # noqa: DTZ001 - Z is added
    entry = st.builds(
        Entry,
        ts=moments.map(lambda moment: f"{moment.isoformat(timespec='milliseconds')}Z"),
        client=NAME,
        conversation=NAME,
        kind=st.sampled_from(["chat", "side", "passthrough"]),
        model=NAME,
        backend=NAME,
        effort_sent=NAME,
        prompt_tokens=COUNT,
        cached_tokens=COUNT,
        completion_tokens=COUNT,
        reasoning_tokens=COUNT,
        visible_tokens=COUNT,
        turns_restored=COUNT,
        cache_write_tokens=COUNT,
        outcome=st.sampled_from(["ok", "answer_lost", "length", "upstream_unreachable", "rejected", "upstream_error"]),
        attempts=st.integers(0, 2),
        cost_usd=costs(),
        cache_saved_usd=costs(),
    )
    return st.lists(entry, max_size=12)


def value_of(entry: Entry, key: str) -> Any:
    """What a row is grouped under."""
    match key:
        case "day":
            return entry.ts[:10]
        case "hour":
            return f"{entry.ts[:13]}:00Z"
        case "effort":
            return entry.effort_sent
    return getattr(entry, key)


def summed(entries: list[Entry]) -> dict[str, Any]:
    """COLUMNS, counted in plain Python."""

    def total(name: str) -> int | None:
        known = [getattr(entry, name) for entry in entries if getattr(entry, name) is not None]
        return sum(known) if known else None

    def money(amounts: list[str | None]) -> Decimal | None:
        known = [Decimal(amount) for amount in amounts if amount is not None]
        with localcontext(prec=100):
            return sum(known, Decimal(0)) if known else None

    def may_have_cost(e: Entry) -> bool:
        began = e.outcome != "upstream_error" or e.completion_tokens is not None
        sent = e.attempts > 0 or e.completion_tokens is not None
        return sent and began and e.outcome not in ("upstream_unreachable", "rejected")

    shared = [e for e in entries if e.completion_tokens is not None and e.reasoning_tokens is not None]
    completion = sum(e.completion_tokens or 0 for e in shared)
    restored = [e for e in entries if e.turns_restored]
    hits = [e.cached_tokens for e in restored if e.cached_tokens is not None]
    names = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
    return {
        "requests": len(entries),
        **{name: total(name) for name in (*names, "visible_tokens", "turns_restored")},
        "reasoning_share": sum(e.reasoning_tokens or 0 for e in shared) / completion if completion else None,
        "answers_lost": sum(e.outcome == "answer_lost" for e in entries),
        "lost_usd": money([e.cost_usd for e in entries if e.outcome == "answer_lost"]),
        "restored_cached_tokens": sum(hits) if hits else None,
        "restored_saved_usd": money([e.cache_saved_usd for e in restored]),
        "cost_usd": money([e.cost_usd for e in entries]),
        "rows_without_cost": sum(e.cost_usd is None and may_have_cost(e) for e in entries),
    }


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Amounts as numbers, but exactly; the share to its four digits."""
    found = dict(found)
    share, expected_share = found.pop("reasoning_share"), expected.pop("reasoning_share")
    del found["cost_share"]
    assert share is None if expected_share is None else share == pytest.approx(expected_share, abs=1e-4)
    for name in ("cost_usd", "lost_usd", "restored_saved_usd"):
        amount = found.pop(name)
        assert (None if amount is None else Decimal(amount)) == expected.pop(name), name
    return found == expected


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open store, which also writes JSON lines."""
    with closing(open_store(f"sqlite:///{tmp_path / 'proxy.db'}", str(tmp_path / "ledger.jsonl"))) as store:
        yield store


def report(*entries: Entry, **bounds: str) -> Report:
    """Over rows in memory."""
    return Report.from_rows(map(asdict, entries), **bounds)


@given(rows())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_by_any_key_are_the_sums_over_the_raw_rows(tmp_path: Path, entries: list[Entry]) -> None:
    """In the store and in the JSON lines alike; costs are summed as exact decimals."""
    name = next(NUMBERS)
    database, lines = tmp_path / f"{name}.db", tmp_path / f"{name}.jsonl"
    with closing(open_store(f"sqlite:///{database}", str(lines))) as store:
        for entry in entries:
            store.put_entry(entry)
    for url in (f"sqlite:///{database}", str(database), f"jsonl:///{lines}", str(lines)):
        with closing(Report.from_ledger(url)) as found:
            assert same(found.total(), summed(entries))
            for key in KEYS:
                groups: dict[Any, list[Entry]] = {}
                for entry in entries:
                    groups.setdefault(value_of(entry, key), []).append(entry)
                by = found.by(key)
                assert {row[key] for row in by} == groups.keys()
                assert len(by) == len(groups)
                for one in by:
                    value = one.pop(key)
                    assert same(one, summed(groups[value]))


def test_a_report_reads_while_the_proxy_writes(store: Store, tmp_path: Path) -> None:
    """A report that is open sees rows that came later; the store goes on."""
    store.put_entry(row(model="a", completion_tokens=5))
    store.flush()
    found = Report.from_ledger(f"sqlite:///{tmp_path / 'proxy.db'}")
    assert found.total()["completion_tokens"] == 5
    store.put_entry(row(model="b", completion_tokens=7))
    assert store.flush()
    assert [one["model"] for one in found.by("model")] == ["b", "a"]
    assert '"completion_tokens":7' in found.render("model", "jsonl").splitlines()[0]
    found.close()
    found.close()


def test_a_report_changes_nothing(store: Store, tmp_path: Path) -> None:
    """Its connection may not write."""
    store.put_entry(row())
    store.close()
    before = (tmp_path / "proxy.db").read_bytes()
    Report.from_ledger(str(tmp_path / "proxy.db")).render("day")
    assert (tmp_path / "proxy.db").read_bytes() == before


def test_the_default_ledger_is_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sqlite` means the same file to both."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(open_store("sqlite")) as store:
        store.put_entry(row())
    assert Report.from_ledger("sqlite").total()["requests"] == 1


@pytest.mark.parametrize("name", ["proxy.db", "sqlite:///{}/proxy.db", "ledger.jsonl", "jsonl:///{}/ledger.jsonl"])
def test_where_there_is_no_ledger_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The message says where none is and how one comes to be; none is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"no ledger yet at .*`reasoning-proxy serve`"):
        Report.from_ledger(name.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_ledger_yet(tmp_path: Path) -> None:
    """A store makes its file before its tables."""
    (tmp_path / "proxy.db").touch()
    with pytest.raises(NotFound, match="no ledger yet"):
        Report.from_ledger(str(tmp_path / "proxy.db"))


@pytest.mark.parametrize("url", ["memory", "mysql://host/ledger", "http://host"])
def test_a_url_that_is_no_ledger_is_refused(url: str) -> None:
    """What is in memory ends with its process, and says so."""
    with pytest.raises(ConfigError):
        Report.from_ledger(url)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """Damaged is said as it is at the proxy's start."""
    (tmp_path / "proxy.db").write_bytes(b"something else " * 100)
    with pytest.raises(ConfigError, match="damaged"):
        Report.from_ledger(str(tmp_path / "proxy.db"))


def test_an_unfinished_last_line_is_left_for_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged line in the middle is not counted either, but that is said. Names of a later version are fine."""
    lines = [
        b'{"ts": "2026-11-30T10:00:00Z", "new": 1}',
        b"damage",
        b"",
        b'{"ts": "2026-11-30T11:00:00Z"}',
        b'{"ts": "20',
    ]
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join(lines))
    assert Report.from_ledger(str(tmp_path / "ledger.jsonl")).total()["requests"] == 2
    assert ["1 lines are no ledger rows" in record.getMessage() for record in caplog.records] == [True]


# Sums


def test_costs_are_exact(store: Store, tmp_path: Path) -> None:
    """Binary numbers would give 0.30000000000000004, and 28 digits would lose the small one."""
    for cost in ("0.1", "0.2", "1E-30", "100000", None, "free"):
        store.put_entry(row(cost_usd=cost))
    store.flush()
    total = Report.from_ledger(str(tmp_path / "proxy.db")).total()
    assert total["cost_usd"] == "100000.300000000000000000000000000001"
    assert total["rows_without_cost"] == 1


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1E+999999", "1E-999999", "", "1" * 1000])
def test_what_is_no_sum_of_money_adds_nothing(text: str) -> None:
    """Neither an error nor a number of a million digits."""
    assert report(row(cost_usd=text), row(cost_usd="1.5")).total()["cost_usd"] == "1.5"
    assert report(row(cost_usd=text)).total()["cost_usd"] is None


def test_unknown_is_not_zero() -> None:
    """A passed-through request counts as a request and knows no tokens; zero stays zero."""
    total = report(row(kind="passthrough")).total()
    assert total == dict.fromkeys(COLUMNS) | {"requests": 1, "answers_lost": 0, "rows_without_cost": 1}
    known = report(row(kind="passthrough"), row(reasoning_tokens=0, completion_tokens=0, cost_usd="0")).total()
    assert (known["reasoning_tokens"], known["completion_tokens"], known["cost_usd"]) == (0, 0, "0")
    assert known["reasoning_share"] is None


def test_the_share_is_of_rows_that_know_both() -> None:
    """A row whose thought was not reported does not make the others look thoughtless."""
    rows = [row(completion_tokens=100, reasoning_tokens=75), row(completion_tokens=900), row(reasoning_tokens=5)]
    assert report(*rows).total()["reasoning_share"] == 0.75


def test_order_is_time_or_the_most_tokens_first() -> None:
    """Of equals the names decide, so that two runs print the same."""
    rows = [
        row(ts="2026-11-30T10:00:00Z", model="b", completion_tokens=1),
        row(ts="2026-11-29T10:00:00Z", model="c", completion_tokens=9),
        row(ts="2026-11-28T10:00:00Z", model="a", completion_tokens=1),
        row(ts="2026-11-28T10:00:00Z", model=None),
    ]
    found = report(*rows)
    assert [one["day"] for one in found.by("day")] == ["2026-11-28", "2026-11-29", "2026-11-30"]
    assert found.by("hour")[0]["hour"] == "2026-11-28T10:00Z"
    assert [one["model"] for one in found.by("model")] == ["c", "a", "b", None]


def test_an_unknown_key_is_refused_by_name() -> None:
    """Nothing that a caller writes gets into the SQL."""
    with pytest.raises(InvalidRequest, match="known are day, hour, model") as caught:
        report().by("model; DROP TABLE requests")
    assert caught.value.param == "by"


# Times


def times(since: str | None = None, until: str | None = None) -> list[str]:
    """Which of these rows lie between."""
    moments = [
        "2026-10-31T23:59:59.999Z",
        "2026-11-01T00:00:00.000Z",
        "2026-11-29T23:59:59.999Z",
        "2026-11-30T00:00:00Z",
        "2026-11-30T15:00:00.500Z",
        "2026-12-01T00:00:00.000Z",
    ]
    rows = [row(ts=moment, model=moment) for moment in moments]
    bounds = {name: value for name, value in (("since", since), ("until", until)) if value}
    return [
        str(moments.index(one["model"]))
        for one in sorted(report(*rows, **bounds).by("model"), key=lambda r: r["model"])
    ]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-30", None, "345"),
        (None, "2026-11-30", "01234"),  # a day as the end is meant with all its hours
        ("2026-11-30", "2026-11-30", "34"),
        ("2026-11", "2026-11", "1234"),
        (None, "2026-10", "0"),
        ("2026-11-30T00:00:00Z", "2026-11-30T15:00:00.500Z", "3"),  # a moment as the end is not in
        ("2026-11-30T15:00:00Z", "2026-11-30T15:00:01Z", "4"),
        ("2026-11-30T16:00:00.5+01:00", None, "45"),
        ("2026-11-30t15:00z", None, "45"),
        (None, None, "012345"),
    ],
)
def test_what_lies_between_two_times(since: str | None, until: str | None, expected: str) -> None:
    """The beginning is in, the end is not."""
    assert "".join(times(since, until)) == expected


@pytest.mark.parametrize(
    ("word", "start", "end"),
    [
        ("today", timedelta(0), timedelta(days=1)),
        ("yesterday", timedelta(days=-1), timedelta(0)),
    ],
)
def test_days_by_name(word: str, start: timedelta, end: timedelta) -> None:
    """UTC days."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    found = report(since=word, until=word)
    assert found.since == (midnight + start).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert found.until == (midnight + end).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(("word", "ago"), [("7d", timedelta(7)), ("24h", timedelta(1)), ("30m", timedelta(minutes=30))])
def test_so_long_ago(word: str, ago: timedelta) -> None:
    """Counted from now, to the second."""
    since = report(since=word).since
    assert since is not None
    assert abs(datetime.now(UTC) - ago - datetime.fromisoformat(since)) < timedelta(seconds=5)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "soon",
        "2026-13",
        "2026-02-30",
        "20261130",
        "2026-W54",
        "7",
        "7 d",
        "-7d",
        "99999999d",
        "9999-12",
        "next week",
    ],
)
@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_that_is_none_is_refused(name: str, word: str) -> None:
    """The message shows every form; `param` is the name."""
    with pytest.raises(InvalidRequest, match=r"2026-11-30, 2026-11, .*today.*7d") as caught:
        report(**{name: word})
    assert caught.value.param == name


def test_an_end_before_the_beginning_is_refused() -> None:
    """An empty report would look like a quiet month."""
    with pytest.raises(InvalidRequest, match="nothing lies between"):
        report(since="2026-11-30", until="2026-11-29")


# Formats


def example() -> Report:
    """Two models, and one row of which nothing is known."""
    return report(
        row(model="kimi-k3", prompt_tokens=12345, completion_tokens=4000, reasoning_tokens=3000, cost_usd="0.0600120"),
        row(model="[red]\x1b[31mbad", completion_tokens=1, outcome="answer_lost", cost_usd="0.0000003"),
        row(model=None, kind="passthrough"),
        since="2026-11",
    )


def test_json_is_an_object_with_rows_and_total() -> None:
    """Null for missing, costs as decimal texts."""
    found = json.loads(example().render("model", "json"))
    assert list(found) == ["by", "since", "until", "rows", "total"]
    assert (found["by"], found["since"], found["until"]) == ("model", "2026-11-01T00:00:00Z", None)
    assert found["rows"] == example().by("model")
    assert found["total"] == example().total()
    assert found["rows"][0]["cost_usd"] == "0.060012"
    assert found["rows"][2]["model"] is None


def test_jsonl_and_csv_are_the_same_rows() -> None:
    """One line a row; the header of CSV is the key and the columns, also without rows."""
    rows = example().by("model")
    assert [json.loads(line) for line in example().render("model", "jsonl").splitlines()] == rows
    found = list(csv.DictReader(io.StringIO(example().render("model", "csv"))))
    written = [{name: "" if value is None else str(value) for name, value in one.items()} for one in rows]
    assert found == [{**one, "model": one["model"].replace("\x1b", "�")} for one in written]
    assert report().render("day", "csv") == ",".join(["day", *COLUMNS])
    assert report().render("day", "jsonl") == ""


def test_the_table_is_plain_text_of_120_columns_where_stdout_is_no_terminal() -> None:
    """No colours, no blanks at line ends; missing is a dash; a name cannot steer the terminal."""
    lines = example().render("model", "table").splitlines()
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 120
    assert lines == [line.rstrip() for line in lines]
    cells = {line.split()[0]: line.split() for line in lines if line}
    head = ["12,345", "4,000", "3,000", "-", "75.0%", "0", "-", "0.0600", "100.0%", "0"]
    assert cells["kimi-k3"] == ["kimi-k3", "1", *head]
    assert cells["[red]�[31mbad"][-3:] == ["<0.0001", "0.0%", "0"]
    assert cells["-"] == ["-", "1", *"-----", "0", "-", "-", "-", "1"]
    assert cells["total"][1] == "3"
    assert lines[0].startswith("2026-11-01T00:00:00Z to now")


def test_a_narrow_terminal_leaves_out_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers are worth more than all columns."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    text = re.sub(r"\x1b\[[0-9;]*m", "", example().render("model", "table"))
    assert max(map(len, text.splitlines())) <= 60
    assert "cached" not in text
    assert "4,000" in text


def test_an_empty_ledger_has_a_total() -> None:
    """Every format of every key works without a row."""
    for key in KEYS:
        for format in FORMATS:
            report().render(key, format)
    assert report().total()["requests"] == 0
    assert "total" in report().render("day", "table")


def test_an_unknown_format_is_refused() -> None:
    """By name, with the known ones."""
    with pytest.raises(InvalidRequest, match="table, json, jsonl, csv, html"):
        report().render("day", "xml")


def test_a_name_that_a_spreadsheet_takes_for_a_formula_is_text_in_csv() -> None:
    """Clients choose the names of models."""
    rows = [{"ts": "2026-11-30T00:00:00Z", "model": name} for name in ("=1+1", "+1", "-1", "@SUM(1)", "a=1")]
    text = Report.from_rows(rows).render("model", "csv")
    names = [line["model"] for line in csv.DictReader(io.StringIO(text))]
    assert sorted(names) == ["'+1", "'-1", "'=1+1", "'@SUM(1)", "a=1"]


def test_tables_of_another_program_are_an_error_in_words(tmp_path: Path) -> None:
    """Also where they have the names of ours."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as other:
        other.executescript("CREATE TABLE meta (a); CREATE TABLE requests (b); PRAGMA user_version = 1")
    with pytest.raises(ConfigError, match="cannot be read"):
        Report.from_ledger(str(tmp_path / "x.db")).by("model")


# Thinking, other prices, other places


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of a hundred thoughts the 50th, 90th and 99th by size; side requests and unknown counts are none of them."""
    thoughts = [row(effort_sent="low", reasoning_tokens=tokens) for tokens in range(100, 0, -1)]
    others = [row(effort_sent="max", reasoning_tokens=7), row(kind="side", reasoning_tokens=9), row(effort_sent="max")]
    assert report(*thoughts, *others).thinking() == [
        {"effort": "max", "requests": 1, "p50": 7, "p90": 7, "p99": 7, "max": 7},
        {"effort": "low", "requests": 100, "p50": 50, "p90": 90, "p99": 99, "max": 100},
    ]


def test_decisions_are_counted_each() -> None:
    """A row that several rules changed counts for each of them."""
    rows = [row(decisions=["restore", "effort"]), row(decisions=["effort"]), row()]
    assert report(*rows).decisions() == [
        {"decision": "effort", "requests": 2},
        {"decision": "restore", "requests": 1},
    ]


def tariffs(**tables: Any) -> Tariffs:
    """Those of settings with these tables."""
    given = {"backends": {"box": {"url": "http://127.0.0.1:1/v1"}}} | tables
    return Tariffs(load(overrides=given, environ={}, read_file=False))


PRICED = {"m": {"price": {"input": 2, "cached_input": 0.5, "output": 10}}}


def test_a_comparison_is_with_and_without_the_cache_hits_that_were_seen() -> None:
    """600 tokens anew at 2, 400 from the cache at 0.5, 100 written at 10, by the million; one row has no counts."""
    rows = [row(model="a", prompt_tokens=1000, cached_tokens=400, completion_tokens=100, cost_usd="1"), row(model="b")]
    told = report(*rows).compare("m", tariffs(models=PRICED))
    assert told["compare_usd"] == "0.0024"
    assert told["compare_usd_without_cache"] == "0.003"
    assert (told["rows"], told["rows_without_tokens"], told["cost_usd"]) == (1, 1, "1")
    assert told["by"] == {"a": "0.0024", "b": "0"}


def test_the_break_even_of_a_machine_is_a_share_of_its_hours() -> None:
    """Two busy hours at 3 USD did what costs 12 elsewhere, 6 an hour: paid all day it must be busy half of it."""
    rows = [
        row(
            backend="box", price_source="3 USD/hour", cost_usd="6", prompt_tokens=1_000_000, completion_tokens=1_000_000
        )
    ]
    (machine,) = report(*rows).compare("m", tariffs(models=PRICED))["machines"]
    assert (machine["busy_hours"], machine["compare_usd"], machine["compare_usd_per_busy_hour"]) == (2.0, "12", 6.0)
    assert machine["break_even_share"] == 0.5
    assert machine["break_even_tokens_per_day"] == 12_000_000


def test_a_machine_that_is_too_slow_never_breaks_even() -> None:
    """Its hour costs more than what it does in one."""
    rows = [row(backend="box", price_source="3 USD/hour", cost_usd="3", prompt_tokens=1000, completion_tokens=1000)]
    found = report(*rows)
    (machine,) = found.compare("m", tariffs(models=PRICED))["machines"]
    assert machine["break_even_share"] == 250.0
    assert machine["break_even_tokens_per_day"] is None
    assert "never cheaper" in found.render("model", "table", compare="m", tariffs=tariffs(models=PRICED))


def test_repricing_takes_the_prices_of_today() -> None:
    """By tokens where a price is known, by the new rate where an hour is billed; else there is no cost any more."""
    rows = [
        row(model="m", backend="box", prompt_tokens=1000, completion_tokens=100, cost_usd="9", price_source="config"),
        row(model="x", backend="box", prompt_tokens=1000, completion_tokens=100, cost_usd="9", price_source="config"),
        row(model="y", backend="iron", cost_usd="9", price_source="3 USD/hour"),
    ]
    backends = {"box": {"url": "http://127.0.0.1:1/v1"}, "iron": {"url": "http://127.0.0.1:2/v1", "usd_per_hour": 4}}
    found = report(*rows).repriced(tariffs(models=PRICED, backends=backends))
    costs = {one["model"]: (one["cost_usd"], one["rows_without_cost"]) for one in found.by("model")}
    assert costs == {"m": ("0.003", 0), "x": (None, 1), "y": ("12", 0)}
    assert found.total()["cost_usd"] == "12.003"
    assert "repriced on" in found.render("model")
    assert report(*rows).total()["cost_usd"] == "27"


def test_a_model_without_a_price_is_no_comparison() -> None:
    """The message names near ones."""
    with pytest.raises(InvalidRequest, match="kimi-k3") as caught:
        report(row()).compare("kimi-k33", tariffs())
    assert caught.value.param == "compare"


def test_a_page_stands_alone_and_hostile_names_are_text() -> None:
    """No script, nothing from elsewhere."""
    name = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    page = report(row(model=name, reasoning_tokens=3, visible_tokens=1, completion_tokens=4)).render("model", "html")
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href)=", page.replace("&lt;img src=x", ""))


@given(rows())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_database_server_adds_up_as_a_file_does(postgres_url: str, entries: list[Entry]) -> None:
    """The same rows, sums, percentiles and decisions, on the server."""
    with closing(open_store(postgres_url)) as store:
        with connect(postgres_url) as connection:
            connection.execute("TRUNCATE requests")
        for entry in entries:
            store.put_entry(replace(entry))
        with closing(Report.from_store(store)) as shared, closing(report(*entries)) as own:
            for key in KEYS:
                assert shared.by(key) == own.by(key)
            assert shared.total() == own.total()
            assert shared.thinking() == own.thinking()
            assert shared.decisions() == own.decisions()


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """What it has no columns for is unknown, and it stays as it is."""
    path = tmp_path / "old.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.put_entry(row(model="m", completion_tokens=3, cached_tokens=2, turns_restored=1, cost_usd="0.5"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE requests DROP COLUMN cache_write_tokens")
        connection.execute("ALTER TABLE requests DROP COLUMN cache_saved_usd")
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    with closing(Report.from_ledger(str(path))) as found:
        total = found.total()
    assert (total["cost_usd"], total["cache_write_tokens"], total["restored_saved_usd"]) == ("0.5", None, None)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_packed_lines_are_read_and_progress_is_told(tmp_path: Path) -> None:
    """As logs are rotated; of a file the bytes that were read."""
    path, told = tmp_path / "ledger.jsonl.gz", list[tuple[int, int]]()
    path.write_bytes(gzip.compress(b"".join(to_line(row(model="m", completion_tokens=n)) for n in range(50))))
    with closing(Report.from_ledger(str(path), progress=lambda done, whole: told.append((done, whole)))) as found:
        assert found.total()["completion_tokens"] == sum(range(50))
    assert told
    assert all(done <= whole == path.stat().st_size for done, whole in told)


def test_a_store_in_memory_reports_on_itself() -> None:
    """While it goes on."""
    with closing(open_store("memory")) as store:
        store.put_entry(row(model="m"))
        with closing(Report.from_store(store)) as found:
            assert found.by("model")[0]["requests"] == 1
        store.put_entry(row(model="m"))
        with closing(Report.from_store(store)) as found:
            assert found.by("model")[0]["requests"] == 2


def test_rows_of_one_client_are_told_apart() -> None:
    """A client sees its own."""
    with closing(open_store("memory")) as store:
        for name in ("a", "b", "b", None):
            store.put_entry(row(client=name))
        with closing(Report.from_store(store, client="b")) as found:
            assert found.total()["requests"] == 2


@pytest.mark.parametrize(
    ("word", "since", "until"),
    [
        ("this week", "2026-11-30", "2026-12-07"),
        ("last-week", "2026-11-23", "2026-11-30"),
        ("this month", "2026-12-01", "2027-01-01"),
        ("last month", "2026-11-01", "2026-12-01"),
        ("last year", "2025-01-01", "2026-01-01"),
        ("2026", "2026-01-01", "2027-01-01"),
        ("2026-W48", "2026-11-23", "2026-11-30"),
        ("2w", "2026-11-18", "2026-11-18"),
    ],
)
def test_spans_have_a_beginning_and_an_end(word: str, since: str, until: str) -> None:
    """Seen from the second of December 2026, a Wednesday."""
    now = datetime(2026, 12, 2, tzinfo=UTC)
    assert bounds(word, None, now)[0] == f"{since}T00:00:00Z"
    assert bounds(None, word, now)[1] == f"{until}T00:00:00Z"
