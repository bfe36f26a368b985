"""What a PostgreSQL store does beside the contract of every store: many replicas, and a server that comes and goes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from given import BACKEND, load
from postgres import PASSWORD, Server
from running import serving, settings

from proxy import cli, config
from proxy.errors import ConfigError, NotFound
from proxy.messages import Entry
from proxy.places import hide_in_bad_url, hide_password, is_postgres, sqlite_path
from proxy.report import Report
from proxy.speeds import SMOOTHING, Speed
from proxy.store import open_store, open_upkeep, postgres, postgres_schema
from proxy.store.ledger import open_ledger
from proxy.store.limits import NO_LIMITS, Limits
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_schema import MIGRATIONS
from proxy.testing import FakeBackend, answer
from proxy.turns import Turn

MARKER = "Zu merkender Satz 5"
"""Too short to be compressed."""
LONG = "Ein langer Gedanke, der zusammengepresst wird. " * 50


def key(number: int) -> bytes:
    """The key of a turn."""
    return number.to_bytes(16, "big")


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sql(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What another program sees in the database."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def replicas(url: str, count: int, limits: Limits = NO_LIMITS) -> Iterator[list[PostgresStore]]:
    """So many stores on one database."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(PostgresStore(url, limits=limits))) for _ in range(count)]


def at_once(work: Callable[[int], None], count: int) -> None:
    """Do it in so many threads, which begin together."""
    begin = threading.Barrier(count)
    failed: list[Exception] = []

    def run(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def spoken(decode: float, **fields: Any) -> Entry:
    """A row of an answer at that speed, long enough to judge by."""
    given = {"backend": "b", "upstream_model": "m", "completion_tokens": 10, **fields}
    return Entry(decode_tokens_per_second=decode, **given)


# Many replicas


async def test_replicas_know_each_others_turns(postgres_url: str) -> None:
    """As soon as they are flushed, by every key; and they use the same salt."""
    with replicas(postgres_url, 2) as (one, other):
        one.put_turn(Turn(key(1), "thought", weaker=(key(11),)))
        assert one.flush()
        found = await other.find([key(1)], [key(11)])
        assert found.exact == {key(1): [Turn(key(1), "thought")]}
        assert found.sole == {key(11): Turn(key(1), "thought")}
        assert one.salt == other.salt
        assert len(one.salt) == 32


@pytest.mark.parametrize("stream", [False, True])
async def test_a_balancer_may_send_each_request_to_another_replica(postgres_url: str, stream: bool) -> None:
    """Each finds what the other has answered a moment ago: a turn is written before its `[DONE]` leaves."""
    said, thought = {"role": "assistant", "content": "Two files."}, " Two names\u2028came.\n"
    async with FakeBackend(answer("Two files.", reasoning=thought)) as backend:
        given = settings(backend.url, store={"url": postgres_url})
        async with serving(given) as one, serving(given) as other:
            messages = [{"role": "user", "content": "hi"}]
            for number in range(6):
                reply = await (one, other)[number % 2].chat(*messages, stream=stream)
                assert reply.headers["x-proxy-history"].startswith(f"present=0; restored={number}; missing=0;")
                sent = backend.requests[-1].body["messages"][1::2]
                assert sent == [{**said, "reasoning_content": thought}] * number
                messages += [said, {"role": "user", "content": f"more {number}"}]
            assert len(await other.rows(6)) == 6


def test_only_a_server_is_shared(postgres_url: str) -> None:
    """The pipeline writes before `[DONE]` where another process may be asked next."""
    with closing(open_store(postgres_url)) as shared, closing(open_store("memory")) as own:
        assert (shared.shared, own.shared) == (True, False)
        assert isinstance(shared, PostgresStore)


def test_replicas_start_at_once_on_an_empty_database(postgres_url: str) -> None:
    """One makes the tables, and all have one salt."""
    salts: list[bytes] = []

    def start(_: int) -> None:
        with closing(open_store(postgres_url)) as store:
            salts.append(store.salt)

    at_once(start, 8)
    assert len(salts) == 8
    assert len(set(salts)) == 1
    assert sql(postgres_url, "SELECT number FROM reasoning_proxy_version ORDER BY 1") == [
        (number,) for number in range(1, len(MIGRATIONS) + 1)
    ]


async def test_replicas_write_at_once(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same keys, weaker keys, texts and speeds in every order, without a deadlock and without a loss."""
    with replicas(postgres_url, 4) as stores:

        def work(number: int) -> None:
            order = list(range(60))
            for step in order[number * 15 :] + order[: number * 15]:
                name = step if number % 2 else 59 - step
                stores[number].put_turn(Turn(key(name), f"{name % 7}", weaker=(key(100 + name), key(200))))
                model = f"m{name % 5}"
                row = Entry(request_id=f"{number}-{step}", backend="b", upstream_model=model)
                row.decode_tokens_per_second, row.completion_tokens = 1.0, 10
                stores[number].put_entry(row)
                if step % 10 == 0:
                    assert stores[number].flush(30)
            assert stores[number].flush(30)

        at_once(work, 4)
        names = list(range(60))
        found = await stores[0].find([key(name) for name in names], [key(100 + name) for name in [*names, 100]])
        assert found.exact == {key(name): [Turn(key(name), f"{name % 7}")] for name in names}
        assert found.sole == {key(100 + name): Turn(key(name), f"{name % 7}") for name in names}
        rows = [row["request_id"] for row in stores[0].entries()]
        assert sorted(rows) == sorted(f"{number}-{step}" for number in range(4) for step in range(60))
        assert stores[0].recent_speeds() == {("b", f"m{number}"): Speed(1.0) for number in range(5)}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    # Every text is used by the turns that have it, and by no more.
    assert sql(postgres_url, "SELECT sum(uses), count(*) FROM texts") == [(60, 7)]


def test_replicas_make_one_record_of_a_speed(postgres_url: str) -> None:
    """Each row of each of them moves it by its part, in whichever order they come."""
    with replicas(postgres_url, 4) as stores:
        stores[0].put_entry(spoken(100.0))
        assert stores[0].flush()

        def work(number: int) -> None:
            for step in range(5):
                stores[number].put_entry(spoken(10.0))
                assert step % 2 or stores[number].flush(30)
            assert stores[number].flush(30)

        at_once(work, 4)
        left = 90 * (1 - SMOOTHING) ** 20
        assert stores[0].recent_speeds() == {("b", "m"): Speed(pytest.approx(10 + left, rel=1e-9))}


def test_replicas_evict_at_once(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is deleted is counted once, and texts go with their last turn."""
    limits = Limits(max_mb=1)
    with replicas(postgres_url, 3, limits) as stores:

        def work(number: int) -> None:
            for step in range(40):
                text = os.urandom(20_000).hex()
                stores[number].put_turn(Turn(key(number * 1000 + step), text, weaker=(key(step),)))
                assert stores[number].flush(30)
                stores[number]._database._limiter.done = False

        at_once(work, 3)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    [(counted,)] = sql(postgres_url, "SELECT value FROM totals WHERE name = 'turn_bytes'")
    [(texts, turns)] = sql(postgres_url, "SELECT (SELECT sum(length(data) + 60) FROM texts), count(*) FROM turns")
    assert counted == texts + 300 * turns
    assert 0 < counted <= 1_048_576 * 1.1
    assert sql(postgres_url, "SELECT count(*) FROM weaker WHERE turn NOT IN (SELECT id FROM turns)") == [(0,)]
    assert sql(postgres_url, "SELECT count(*) FROM texts WHERE id NOT IN (SELECT thought FROM turns)") == [(0,)]


def test_own_rows_are_those_of_this_store_object(postgres_url: str) -> None:
    """Though the rows of all replicas lie in one another; the table says which replica wrote a row."""
    with replicas(postgres_url, 2) as (one, other):
        assert one.entries(own=True) == []
        for number in range(6):
            store = (one, other)[number % 2]
            store.put_entry(Entry(request_id=f"{number}"))
            assert store.flush()
        assert [row["request_id"] for row in one.entries(own=True)] == ["0", "2", "4"]
        assert [row["request_id"] for row in other.entries(2, own=True)] == ["3", "5"]
        assert [row["request_id"] for row in one.entries(3)] == ["3", "4", "5"]
        assert one.entries(0) == []
    assert len(sql(postgres_url, "SELECT DISTINCT replica FROM requests")) == 2


# A server that comes and goes


async def test_a_server_that_goes_away_loses_nothing(
    postgres_server: Server, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes meanwhile waits and is found; the rest is unknown, logged once; all is written when it is back."""
    with replicas(postgres_url, 2) as (store, other):
        store.put_turn(Turn(key(1), "before"))
        store.put_entry(Entry(request_id="before"))
        assert store.flush()
        postgres_server.stop()
        try:
            store.put_turn(Turn(key(2), "meanwhile"))
            store.put_entry(Entry(request_id="meanwhile"))
            for _ in range(3):
                assert (await store.find([key(1), key(2)])).exact == {key(2): [Turn(key(2), "meanwhile")]}
            until(lambda: not store._writer.healthy())
            assert not store.healthy()
        finally:
            postgres_server.start()
        assert store.flush(30)
        until(store.healthy)
        both = {key(1): [Turn(key(1), "before")], key(2): [Turn(key(2), "meanwhile")]}
        assert (await store.find([key(1), key(2)])).exact == both
        assert (await other.find([key(1), key(2)])).exact == both
        assert [row["request_id"] for row in other.entries()] == ["before", "meanwhile"]
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "cannot be read" in message]) == 1
    assert len([message for message in messages if "cannot be written" in message]) == 1
    assert PASSWORD not in caplog.text


async def test_a_restart_while_nobody_asks_is_not_noticed(
    postgres_server: Server, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that broke meanwhile are replaced, and nothing is logged."""
    with closing(open_store(postgres_url)) as store:
        store.put_turn(Turn(key(1), "thought"))
        assert store.flush()
        await asyncio.gather(*(store.find([key(1)]) for _ in range(8)))
        postgres_server.stop()
        postgres_server.start()
        for found in await asyncio.gather(*(store.find([key(1)]) for _ in range(8))):
            assert set(found.exact) == {key(1)}
        store.put_turn(Turn(key(2), "thought"))
        store.put_entry(Entry(request_id="1"))
        assert [row["request_id"] for row in store.entries()] == ["1"]
        assert store.healthy()
    assert caplog.text == ""


async def test_a_store_that_is_only_asked_whether_it_is_healthy_recovers(
    postgres_server: Server, postgres_url: str
) -> None:
    """A proxy that is not ready gets no requests, so no read of theirs could tell that the server is back."""
    with closing(open_store(postgres_url)) as store:
        postgres_server.stop()
        try:
            assert (await store.find([key(1)])).exact == {}
            assert not store.healthy()
        finally:
            postgres_server.start()
        until(store.healthy)


async def test_a_server_that_does_not_answer_holds_up_a_request_for_a_moment_only(
    postgres_server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn is not found, that is logged, and the waiting thread is free for the next request."""
    monkeypatch.setattr(postgres, "FIND_SECONDS", 0.3)
    with closing(open_store(postgres_url)) as store:
        store.put_turn(Turn(key(1), "thought"))
        assert store.flush()
        assert set((await store.find([key(1)])).exact) == {key(1)}
        asked = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        processes = [pid for (pid,) in postgres_server.execute(asked, postgres_url.rpartition("/")[2])]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            assert (await store.find([key(1)])).exact == {}
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)
        assert not store.healthy()
        until(store.healthy)
        assert set((await store.find([key(1)])).exact) == {key(1)}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "does not answer within 0.3 s" in caplog.text


def test_a_commit_whose_answer_was_lost_is_not_written_twice(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is asked how the transaction ended. Else a request would be in the bill twice, and in the speed."""
    with closing(PostgresStore(postgres_url)) as store:
        database, whole = store._database, store._database._transaction
        faults = ["before the transaction", "after the commit", "before the commit"]

        @contextmanager
        def cut_off(alone: bool) -> Iterator[Any]:
            fault = faults.pop() if faults else ""
            if fault == "before the transaction":
                raise psycopg.OperationalError("the connection broke")
            with whole(alone) as parts:
                yield parts
                if fault == "before the commit":
                    database._doubt = (parts[0].execute("SELECT pg_current_xact_id()::text").fetchone()[0], rows)
                    raise psycopg.OperationalError("the connection broke")
            if fault == "after the commit":
                raise psycopg.OperationalError("the connection broke")

        monkeypatch.setattr(database, "_transaction", cut_off)
        rows = [spoken(speed, request_id=f"{number}") for number, speed in enumerate((10.0, 10.0, 20.0))]
        for row in rows:
            store.put_entry(row)
        assert [row["request_id"] for row in store.entries()] == ["0", "1", "2"]
        assert faults == []
        assert store.recent_speeds() == {("b", "m"): Speed(13.0)}
        store.put_entry(Entry(request_id="3"))
        assert [row["request_id"] for row in store.entries()] == ["0", "1", "2", "3"]


# What the tables hold


async def test_no_text_is_too_odd(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """NUL is kept in thoughts and replaced in names; a number above 64 bits is left out."""
    with closing(open_store(postgres_url)) as store:
        odd = Turn(key(1), "a\0b", "lo\0w", "[\0]", "\0", ("\0", "\0"), client="c\0", conversation="\0")
        store.put_turn(odd)
        store.put_entry(Entry(model="m\0", error="\0", client="\0", prompt_tokens=2**63, decisions=["\0a"]))
        store.put_entry(Entry(prompt_tokens=2**63 - 1, cached_tokens=-(2**70), duration_ms=0))
        assert store.flush()
        [[turn]] = (await store.find([key(1)])).exact.values()
        assert (turn.reasoning, turn.calls, turn.details, turn.blanks) == ("a\0b", "[\0]", "\0", ("\0", "\0"))
        assert (turn.effort, turn.client, turn.conversation) == ("lo\ufffdw", "c\ufffd", "\ufffd")
        first, second = store.entries()
        assert (first["model"], first["error"], first["client"]) == ("m\ufffd", "\ufffd", "\ufffd")
        assert (first["prompt_tokens"], first["decisions"]) == (None, ["\ufffda"])
        assert (second["prompt_tokens"], second["cached_tokens"], second["duration_ms"]) == (2**63 - 1, None, 0)
    assert caplog.text == ""


async def test_a_value_that_no_table_holds_costs_its_own_row_only(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a surrogate pair, a name too long for an index, a text for a number: logged, and the others are written."""
    with closing(open_store(postgres_url)) as store:
        long = os.urandom(10_000).hex()
        store.put_entry(Entry(request_id="good"))
        store.put_entry(Entry(request_id="half", model="\ud83d"))
        store.put_entry(Entry(request_id="text", prompt_tokens="many"))
        store.put_entry(spoken(1.0, request_id="long", upstream_model=long))
        store.put_entry(spoken(2.0, request_id="good too"))
        store.put_turn(Turn(key(1), "\ud83d"))
        store.put_turn(Turn(key(2), "thought"))
        store.put_turn(Turn(os.urandom(9_000), "a key too long for an index"))
        assert [row["request_id"] for row in store.entries()] == ["good", "long", "good too"]
        assert store.recent_speeds() == {("b", "m"): Speed(2.0)}
        assert set((await store.find([key(1), key(2)])).exact) == {key(2)}
        assert store.healthy()
    assert caplog.text.count("is lost") == 5
    assert "cannot be written" not in caplog.text


# Starting


def test_a_newer_schema_is_refused_and_kept(postgres_url: str) -> None:
    """The message says what to do."""
    open_store(postgres_url).close()
    sql(postgres_url, "INSERT INTO reasoning_proxy_version VALUES (%s, now())", len(MIGRATIONS) + 1)
    with pytest.raises(ConfigError, match=r"newer reasoning-proxy.*left as it is.*upgrade") as caught:
        open_store(postgres_url)
    assert PASSWORD not in caught.value.message
    assert sql(postgres_url, "SELECT count(*) FROM meta") == [(1,)]


def test_the_speeds_of_the_version_before_are_kept(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the first figures, which later rows move; a replica of that version goes on beside the new one."""
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "MIGRATIONS", MIGRATIONS[:1])
        open_store(postgres_url).close()
    before = """INSERT INTO speeds VALUES (%s, %s, %s) ON CONFLICT (backend, upstream_model) DO UPDATE
        SET decode_tokens_per_second = excluded.decode_tokens_per_second"""
    for model, speed in (("m", 10.0), ("n", 0.25), ("o", 0.0)):
        sql(postgres_url, before, "b", model, speed)
    with closing(open_store(postgres_url)) as store:
        assert store.recent_speeds() == {("b", "m"): Speed(10.0), ("b", "n"): Speed(0.25)}
        store.put_entry(spoken(20.0, prompt_tokens=100, prefill_tokens_per_second=300.0))
        assert store.flush()
        for model in "mp":
            sql(postgres_url, before, "b", model, 5.0)
        known = {("b", "m"): Speed(5.0, 300.0), ("b", "n"): Speed(0.25), ("b", "p"): Speed(5.0)}
        assert store.recent_speeds() == known
    with closing(open_store(postgres_url)) as store:
        assert store.recent_speeds() == known
    versions = [(number,) for number in range(1, len(MIGRATIONS) + 1)]
    assert sql(postgres_url, "SELECT number FROM reasoning_proxy_version ORDER BY 1") == versions


def test_the_database_of_another_program_is_refused_and_kept(postgres_url: str) -> None:
    """Where it has a table of a name that is ours. Others may lie beside them, as extensions put some there."""
    sql(postgres_url, "CREATE TABLE others (number INTEGER)")
    sql(postgres_url, "CREATE TABLE requests (number INTEGER)")
    with pytest.raises(ConfigError, match=r"another program \(requests\).*search_path"):
        open_store(postgres_url)
    names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    assert sql(postgres_url, names) == [("others",), ("requests",)]
    sql(postgres_url, "DROP TABLE requests")
    open_store(postgres_url).close()


async def test_a_schema_of_its_own(postgres_url: str) -> None:
    """The tables lie where the URL's search_path says, and stores in two schemas have nothing in common."""
    url = f"{postgres_url}?options=-csearch_path%3Dapart"
    with pytest.raises(ConfigError, match="CREATE SCHEMA"):
        open_store(url)
    sql(postgres_url, "CREATE SCHEMA apart")
    with closing(open_store(url)) as store, closing(open_store(postgres_url)) as other:
        store.put_turn(Turn(key(1), "thought"))
        assert store.flush()
        assert set((await store.find([key(1)])).exact) == {key(1)}
        assert (await other.find([key(1)])).exact == {}
        assert store.salt != other.salt


def test_a_database_that_cannot_hold_every_text(postgres_server: Server) -> None:
    """In another encoding than UTF-8 rows would be lost one by one."""
    postgres_server.execute("CREATE DATABASE latin OWNER proxy ENCODING 'LATIN1' TEMPLATE template0")
    try:
        with pytest.raises(ConfigError, match=r"LATIN1.*ENCODING 'UTF8'"):
            open_store(postgres_server.url("latin"))
    finally:
        postgres_server.execute("DROP DATABASE latin")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((PASSWORD, f"{PASSWORD}-typo"), "password authentication failed"),
        (("/test_", "/no_test_"), "does not exist"),
        (("127.0.0.1:", "127.0.0.1:1,127.0.0.1:1"), "refused"),
        (("127.0.0.1", "no-such-host.invalid"), "no-such-host.invalid"),
        (("?", "?sslmode=require&"), "SSL"),
        (("?", "?sslmode=maybe&"), "sslmode"),
        (("?", "?nonsense=1&"), "no PostgreSQL client knows"),
        (("?", "?options=-cdefault_transaction_read_only%3Don&"), "primary"),
    ],
)
def test_a_server_that_cannot_be_used(postgres_url: str, change: tuple[str, str], reason: str) -> None:
    """The error names the server, the reason and what to do, and never the password."""
    url = f"{postgres_url}?connect_timeout=5".replace(*change)
    for use in (open_store, open_ledger):
        if reason == "primary" and use is not open_store:
            continue
        with pytest.raises(ConfigError, match=reason) as caught:
            use(url)
        assert hide_password(url) in caught.value.message
        assert PASSWORD not in caught.value.message
        assert caught.value.__cause__ is None


def test_without_psycopg_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    for name in [name for name in sys.modules if name.startswith(("psycopg", "proxy.store."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for use in (open_store, open_ledger):
        with pytest.raises(ConfigError, match=r"pip install 'reasoning-proxy\[postgres\]'"):
            use("postgresql://h/d")


@pytest.mark.parametrize("command", ["report", "store stats", "serve --backend http://127.0.0.1:1/v1 --port 0"])
def test_a_command_ends_with_code_2_where_the_server_is_away(command: str) -> None:
    """One line on stderr with server and reason, and no traceback."""
    environment = {**os.environ, "REASONING_PROXY_STORE__URL": f"postgresql://u:{PASSWORD}@127.0.0.1:1/d"}
    result = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "proxy", *command.split()],
        check=False,
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(Path(cli.__file__).parent.parent)},
    )
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: store.url: postgresql://***@127.0.0.1:1/d cannot be used (")
    assert "refused" in line
    assert PASSWORD not in line


# The ledger


def test_the_report_reads_the_ledger_of_a_server(postgres_url: str) -> None:
    """With its lists and bounds, as from a file; where no proxy has run yet, that is said."""
    with pytest.raises(NotFound, match=r"there is no ledger yet in postgresql://\*\*\*@127.0.0.1"):
        Report.from_ledger(postgres_url)
    full = Entry(ts="2026-11-30T10:00:00.000Z", request_id="r1", model="m", cost_usd="0.1")
    full.stream, full.decisions, full.flags, full.duration_ms = True, ["a", "b"], ["c"], 10**12
    later = Entry(ts="2026-12-01T10:00:00.000Z", request_id="r2", model="m", cost_usd="0.2", completion_tokens=7)
    with closing(open_store(postgres_url)) as store:
        store.put_entry(full)
        store.put_entry(later)
    rows = [asdict(full), asdict(later)]
    with closing(Report.from_ledger(postgres_url)) as report, closing(Report.from_rows(rows)) as same:
        assert report.by("model") == same.by("model")
        assert report.total()["cost_usd"] == "0.3"
    with closing(Report.from_ledger(postgres_url, since="2026-12-01")) as report:
        assert report.total()["requests"] == 1
    result = CliRunner().invoke(cli.main, ["report", "--ledger", postgres_url, "--format", "jsonl"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert '"cost_usd":"0.3"' in result.stdout


def test_a_reader_without_other_rights_reads_the_ledger(postgres_server: Server, postgres_url: str) -> None:
    """A user who may only select sees the report, and is told what is missing where he wants to run a proxy."""
    with closing(open_store(postgres_url)) as store:
        store.put_entry(Entry(request_id="r1"))
    sql(postgres_url, "GRANT SELECT ON requests, reasoning_proxy_version TO PUBLIC")
    postgres_server.execute("CREATE ROLE reader LOGIN PASSWORD 'reading'")
    try:
        url = postgres_url.replace(f"proxy:{PASSWORD}", "reader:reading")
        with closing(Report.from_ledger(url)) as report:
            assert report.total()["requests"] == 1
        with pytest.raises(ConfigError, match=r"permission denied.*owner"):
            open_store(url)
    finally:
        postgres_server.execute("DROP ROLE reader")


def test_many_rows_are_added_up(postgres_url: str) -> None:
    """Within bounds to the millisecond."""
    open_store(postgres_url).close()
    sql(
        postgres_url,
        "INSERT INTO requests (replica, ts, request_id, decisions, flags) SELECT '', "
        "'2026-11-30T15:00:' || to_char(n / 200.0, 'FM00.000Z'), n::text, '', '' FROM generate_series(1, 11999) n",
    )
    bounds = {"since": "2026-11-30T15:00:10Z", "until": "2026-11-30T15:00:20Z"}
    with closing(Report.from_ledger(postgres_url, **bounds)) as report:
        assert report.total()["requests"] == 2000


# Looking after it


def run(*arguments: str) -> Result:
    """The command line."""
    return CliRunner().invoke(cli.main, [*arguments])


@pytest.fixture
def kept(postgres_url: str) -> Iterator[PostgresStore]:
    """An open store with turns of two clients."""
    with closing(PostgresStore(postgres_url)) as store:
        store.put_turn(Turn(key(1), MARKER, client="a", conversation="c1", weaker=(key(11),)))
        store.put_turn(Turn(key(2), LONG, calls='[{"id": "x"}]', client="a", conversation="c2"))
        store.put_turn(Turn(key(3), "another thought", client="b", conversation="c1"))
        store.put_entry(Entry(request_id="r"))
        assert store.flush()
        yield store


def test_the_store_commands_take_the_url(kept: PostgresStore, postgres_url: str) -> None:
    """On the option or in the settings."""
    found = json.loads(run("store", "stats", "--json", "--store", postgres_url).stdout)
    assert (found["turns"], found["texts"], len(found["clients"])) == (3, 4, 2)
    assert found["text_bytes"] == len(MARKER + LONG + '[{"id": "x"}]' + "another thought")
    assert found["file_bytes"] > found["stored_bytes"] > 3 * 300
    Path("config.toml").write_text(f'[store]\nurl = "{postgres_url}"\n', "utf-8")
    result = run("store", "export", "--client", "a")
    assert [json.loads(line)["reasoning"] for line in result.stdout.splitlines()] == [MARKER, LONG]
    pruned = run("store", "prune", "--max-age-days", "1")
    assert (pruned.exit_code, pruned.stderr) == (0, "")
    assert pruned.stdout.startswith("0 turns deleted, 0 bytes\n")
    forgotten = run("store", "forget", "--conversation", "c1", "--client", "a")
    assert (forgotten.exit_code, forgotten.stderr) == (0, "")
    assert forgotten.stdout.startswith("1 turn forgotten, ")
    assert PASSWORD not in result.output + pruned.output + forgotten.output


async def test_forget_leaves_no_byte_in_the_tables(
    kept: PostgresStore, postgres_server: Server, postgres_url: str
) -> None:
    """Whatever was deleted before is gone from their files, too; the ledger and the others' turns stay."""
    for number in range(40):
        kept.put_turn(Turn(key(100), f"{MARKER} {number}", client="a"))
        assert kept.flush()
    packed = zlib.compress(LONG.encode())
    before = postgres_server.on_disk(postgres_url)
    assert MARKER.encode() in before
    assert packed in before
    result = run("store", "forget", "--client", "a", "--store", postgres_url)
    assert (result.exit_code, result.stderr) == (0, "")
    after = postgres_server.on_disk(postgres_url)
    assert MARKER.encode() not in after
    assert packed not in after
    assert b"another thought" in after
    assert set((await kept.find([key(1), key(2), key(3)])).exact) == {key(3)}
    assert [row["request_id"] for row in kept.entries()] == ["r"]


def test_forget_says_what_another_program_keeps(kept: PostgresStore, postgres_url: str) -> None:
    """A transaction that began before may still read the rows: they are deleted, but not yet their bytes."""
    with psycopg.connect(postgres_url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        result = run("store", "forget", "--client", "a", "--store", postgres_url)
        assert result.exit_code == 1
        assert "deleted rows can still be seen by another program's transaction" in result.stderr
        other.rollback()
        assert run("store", "prune", "--store", postgres_url).stderr == ""
    with open_upkeep(postgres_url) as upkeep:
        assert upkeep.reclaim() is None


def test_who_does_not_own_the_tables_is_told(kept: PostgresStore, postgres_server: Server, postgres_url: str) -> None:
    """A user who may delete rows, but not write the tables anew."""
    names = "texts, turns, weaker, totals, reasoning_proxy_version"
    sql(postgres_url, f"GRANT SELECT, UPDATE, DELETE ON {names} TO PUBLIC")
    postgres_server.execute("CREATE ROLE cleaner LOGIN PASSWORD 'cleaning'")
    try:
        url = postgres_url.replace(f"proxy:{PASSWORD}", "cleaner:cleaning")
        result = run("store", "forget", "--client", "a", "--store", url)
        assert result.exit_code == 1
        assert result.stdout.startswith("2 turns forgotten, ")
        assert "permission denied" in result.stderr
    finally:
        postgres_server.execute("DROP ROLE cleaner")


def test_there_is_nothing_to_look_after_yet(postgres_url: str) -> None:
    """Neither in an empty database nor where no server is; an older schema is brought up to date by `serve` alone."""
    with pytest.raises(NotFound, match="serve"):
        open_upkeep(postgres_url)
    result = run("store", "stats", "--store", f"postgresql://u:{PASSWORD}@127.0.0.1:1/d")
    assert result.exit_code == 2
    assert "refused" in result.stderr
    assert PASSWORD not in result.output


# The URL


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:password@host/db",
        "postgres://user:password@host:5432/db",
        "postgresql://user:p%40%2F%25@host/db?sslmode=verify-full&sslrootcert=/etc/ca.pem",
        "postgresql://user:p#?:!@[::1]:5432/db",
        "postgresql://one:5432,two/db?target_session_attrs=read-write",
        "postgresql:///db?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/db",
        "postgresql://",
    ],
)
def test_urls_of_servers(url: str) -> None:
    """Everything that libpq reads, with one word or the other."""
    assert is_postgres(url)
    assert sqlite_path(url) is None
    assert load(f'{BACKEND}[store]\nurl = "{url}"\n').ledger_url == url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s@cret@host/db",
        "postgresql://user:s/cret@host/db",
        "postgresql://user:s%cret@host/db",
        "postgresql://user:s cret@host/db",
        "postgresql://user:s-cret",
        "postgresql://host/db?Password=s-cret",
        "postgresql://host/db?%70assword=s-cret",
        "postgresql://host/d%00b?password=s-cret",
        "postgresql:user:s-cret@host/db",
        "postgres:/user:s-cret@host/db",
    ],
)
def test_an_url_that_means_something_else_is_refused(url: str) -> None:
    """libpq would take a part of the password for the host, and tell it in its errors. Ours name no part of it."""
    with pytest.raises(ConfigError) as caught:
        load(f'{BACKEND}[store]\nurl = "{url}"\n')
    assert "postgresql://user:password@host:5432/database" in caught.value.message
    assert "cret" not in caught.value.message
    assert "cret" not in hide_in_bad_url(url)


def test_another_scheme_names_what_is_accepted() -> None:
    """Also that of another library, which people copy."""
    for url in ("postgresql+psycopg://u:s-cret@host/db", "pg://u:s-cret@host/db"):
        with pytest.raises(ConfigError, match="`postgresql://user:password@host/database`") as caught:
            open_store(url)
        assert "cret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:s-cret@host:1/db?sslmode=require", "postgresql://***@host:1/db?sslmode=require"),
        ("postgresql://host/db?password=s-cret&user=u", "postgresql://host/db?password=***&user=u"),
        ("postgresql://host/db?user=u&sslpassword=s-cret", "postgresql://host/db?user=u&sslpassword=***"),
    ],
)
def test_the_password_is_not_shown(url: str, shown: str) -> None:
    """By `config show`, `config check` or the text of the settings, whichever way it came in."""
    settings = load(f'{BACKEND}[store]\nurl = "{url}"\n')
    assert f'url = "{shown}"\n' in config.show(settings)
    assert hide_password(url) == shown
    Path("config.toml").write_text(f'{BACKEND}[store]\nurl = "{url}"\n', "utf-8")
    outputs = [CliRunner().invoke(cli.main, ["config", word]).output for word in ("check", "show")]
    variable = {"REASONING_PROXY_STORE__URL": url}
    Path("config.toml").write_text(BACKEND, "utf-8")
    outputs += [CliRunner().invoke(cli.main, ["config", word], env=variable).output for word in ("check", "show")]
    assert shown in outputs[1]
    assert shown in outputs[3]
    assert "cret" not in repr(settings) + str(settings) + "".join(outputs)
