"""The store: what was put is found at once, is on disk within a second, and stays."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from proxy.errors import ConfigError
from proxy.messages import Entry
from proxy.places import sqlite_path
from proxy.speeds import Speed
from proxy.store import Store, open_store, open_upkeep
from proxy.store.found import Uses
from proxy.store.schema import MIGRATIONS
from proxy.store.sqlite import SqliteStore
from proxy.store.writer import Writer
from proxy.turns import Found, Turn

CHILD = """
import sys, time
from proxy.messages import Entry
from proxy.turns import Found, Turn
from proxy.store import open_store
store = open_store("sqlite:///" + sys.argv[1], sys.argv[2])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A place for a store's file."""
    return tmp_path / "proxy.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """An open store in that file."""
    with closing(opened(path)) as store:
        yield store


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that are opened from here on: of a store the one that writes, then the one that reads."""
    found: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def kept(*args: Any, **options: Any) -> sqlite3.Connection:
        found.append(connect(*args, **options))
        return found[-1]

    monkeypatch.setattr(sqlite3, "connect", kept)
    return found


def opened(path: Path, ledger_jsonl: Path | str = "") -> Store:
    """The store in that file."""
    return open_store(f"sqlite:///{path}", str(ledger_jsonl))


def sql(path: Path, statement: str) -> list[Any]:
    """What another program sees in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def key(number: int) -> bytes:
    """The key of a turn."""
    return number.to_bytes(16, "big")


def only(*turns: Turn) -> Found:
    """What is found where each key has one turn."""
    return Found({turn.key: [turn] for turn in turns})


def full_entry(number: int = 1) -> Entry:
    """A row in which every field has a value."""
    entry = Entry()
    samples: dict[str, Any] = {
        "int": number,
        "str": f"é{number}",
        "bool": True,
        "float": number / 3,
        "list[str]": ["a", "b"],
    }
    for field in fields(Entry):
        setattr(entry, field.name, samples[str(field.type).removesuffix(" | None")])
    return entry


def child(body: str, path: Path, ledger_jsonl: Path | str = "") -> subprocess.Popen[bytes]:
    """A process with a store of its own."""
    command = [sys.executable, "-c", CHILD + body, str(path), str(ledger_jsonl)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own words


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that it prints."""
    assert process.stdout
    return process.stdout.readline()


# Turns


async def test_a_reopened_store_finds_the_turn(path: Path) -> None:
    """Text, blanks, NUL and every effort come back as they went in, and the salt is the same."""
    turns = [Turn(key(1), " thought\n\u2028\x00 ", None), Turn(key(2), "", ""), Turn(key(3), "é" * 100_000, "low")]
    with closing(opened(path)) as store:
        salt = store.salt
        for turn in turns:
            store.put_turn(turn)
    with closing(opened(path)) as store:
        assert await store.find([key(4), *(turn.key for turn in turns)]) == only(*turns)
        assert store.salt == salt
        assert len(salt) == 32


def test_each_store_has_its_own_salt(tmp_path: Path) -> None:
    """Hashes of one store say nothing in another."""
    with closing(opened(tmp_path / "a.db")) as a, closing(opened(tmp_path / "b.db")) as b:
        assert a.salt != b.salt


async def test_a_turn_is_found_before_it_is_written(path: Path, connections: list[sqlite3.Connection]) -> None:
    """While another process holds the file the turn is found; where nothing is asked, there is no query."""
    with closing(opened(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        statements: list[str] = []
        connections[1].set_trace_callback(statements.append)
        store.put_turn(Turn(key(1), "thought"))
        assert await store.find([key(1), key(1)]) == only(Turn(key(1), "thought"))
        assert await store.find([]) == Found()
        assert len(statements) == 1
        other.execute("ROLLBACK")
        assert store.flush()
        assert await store.find([key(1)]) == only(Turn(key(1), "thought"))
        assert len(statements) == 2


async def test_a_thousand_keys_are_one_query(path: Path, connections: list[sqlite3.Connection]) -> None:
    """Known, unknown and repeated keys are asked for together, with the weaker ones and all texts."""
    with closing(opened(path)) as store:
        for number in range(0, 1000, 2):
            store.put_turn(Turn(key(number), f"thought {number}", calls="[]", weaker=(key(number + 1),)))
        store.flush()
        statements: list[str] = []
        connections[1].set_trace_callback(statements.append)
        numbers = [*range(1000), 2, 4]
        found = await store.find([key(number) for number in numbers], [key(number + 1) for number in numbers])
        assert len(statements) == 1
        turns = [Turn(key(number), f"thought {number}", calls="[]") for number in range(0, 1000, 2)]
        assert found.exact == only(*turns).exact
        assert list(found.sole.values()) == turns


async def test_more_keys_than_sqlite_takes_are_found(store: Store) -> None:
    """Above SQLite's limit of variables the keys are asked for in parts."""
    store.put_turn(Turn(key(69_999), "thought"))
    store.flush()
    assert list((await store.find([key(number) for number in range(70_000)])).exact) == [key(69_999)]


async def test_a_store_that_cannot_be_read_finds_what_is_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken disk costs the stored thoughts, not the request; it is logged once and shows in `healthy`."""
    store.put_turn(Turn(key(1), "thought"))
    store.flush()

    def broken(*_: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with monkeypatch.context() as patch:
        patch.setattr("proxy.store.sqlite._File.find", broken)
        assert await store.find([key(1)]) == Found()
        assert await store.find([key(1)]) == Found()
        assert not store.healthy()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert await store.find([key(1)]) == only(Turn(key(1), "thought"))
    assert store.healthy()


def prose(size: int) -> str:
    """Sentences of our own documents, shuffled."""
    text = " ".join(file.read_text() for file in sorted((Path(__file__).parent.parent / "docs").glob("*.md")))
    sentences = re.findall(r"[A-Z`][^.|]{40,300}\.", text)
    picked = random.Random(size)  # noqa: S311 - no secret
    return " ".join(picked.choice(sentences) for _ in range(size // 40))[:size]


def test_thoughts_take_less_room_than_their_texts(path: Path) -> None:
    """Each is kept once, and compressed."""
    texts = [f"{number} {prose(5_000 + number)}" for number in range(200)]
    with closing(opened(path)) as store:
        for number, text in enumerate(texts):
            store.put_turn(Turn(key(number), text, weaker=(key(1000 + number),)))
            store.put_turn(Turn(key(500 + number), text))
    assert sql(path, "SELECT count(*), sum(uses) FROM texts") == [(200, 400)]
    assert path.stat().st_size < sum(map(len, texts))


async def test_a_damaged_text_costs_its_own_turns(
    path: Path, caplog: pytest.LogCaptureFixture, connections: list[sqlite3.Connection]
) -> None:
    """They are not found, and a weaker key to one leads nowhere; the others are there."""
    with closing(opened(path)) as store:
        store.put_turn(Turn(key(1), "a" * 500, weaker=(key(11),)))
        store.put_turn(Turn(key(1), "b" * 500))
        store.put_turn(Turn(key(2), "", calls="c" * 500))
        store.put_turn(Turn(key(3), "gone"))
        assert store.flush()
        connections[0].execute("UPDATE texts SET data = x'00' WHERE id IN (1, 3)")
        connections[0].execute("DELETE FROM texts WHERE id = 4")
        found = await store.find([key(1), key(2), key(3)], [key(11)])
        assert found == only(Turn(key(1), "b" * 500))
        assert caplog.text.count("is damaged") == 2
        assert store.healthy()


async def test_the_tables_of_the_first_version_are_brought_up_to_date(path: Path) -> None:
    """Turns move with their times, and nothing is left where they were; the ledger and the salt stay."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        rows = [(key(1), "first marker", "low", 1_700_000_000), (key(2), "x" * 9000, None, 1_700_000_001)]
        rows += [(key(3), "first marker", "", 1_700_000_002), (key(4), "", None, 1_700_000_003)]
        connection.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", rows)
        connection.execute("INSERT INTO requests (request_id, decisions, flags) VALUES ('r', '', '')")
        connection.commit()
        ((salt,),) = connection.execute("SELECT value FROM meta WHERE name = 'salt'")
    with closing(opened(path)) as store:
        found = await store.find([key(number) for number in range(5)])
        assert found == only(*(Turn(row[0], row[1], row[2], blanks=None, made=row[3] * 1000) for row in rows))
        assert store.salt == salt
        assert [row["request_id"] for row in store.entries()] == ["r"]
    assert sql(path, "SELECT created FROM turns ORDER BY id") == [(row[3],) for row in rows]
    assert len(path.read_bytes().split(b"first marker")) == 2  # noqa: ASYNC240 - nothing else runs here
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    with open_upkeep(f"sqlite:///{path}") as upkeep, upkeep.writing() as stored:
        assert stored.bytes() == stored.recount()
    names = {name for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"meta", "speeds", "requests", "texts", "turns", "weaker", "totals"}


@pytest.mark.parametrize("version", [1, 2])
def test_the_speeds_of_an_older_version_are_kept(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the first figures, which later rows move; one that was rounded to 0 is none."""
    with monkeypatch.context() as patch:
        patch.setattr("proxy.store.schema.MIGRATIONS", MIGRATIONS[:version])
        opened(path).close()
    assert sql(path, "PRAGMA user_version") == [(version,)]
    with closing(sqlite3.connect(path)) as connection:
        speeds = [("box", "a", 10.0), ("box", "b", 0.25), ("box", "c", 0.0)]
        connection.executemany("INSERT INTO speeds VALUES (?, ?, ?)", speeds)
        connection.commit()
    with closing(opened(path)) as store:
        assert store.recent_speeds() == {("box", "a"): Speed(10.0), ("box", "b"): Speed(0.25)}
        entry = spoken("a", 20.0)
        entry.prompt_tokens, entry.prefill_tokens_per_second = 100, 300.0
        store.put_entry(entry)
        store.flush()
        assert store.recent_speeds() == {("box", "a"): Speed(13.0, 300.0), ("box", "b"): Speed(0.25)}
    opened(path).close()
    assert sql(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    with closing(opened(path.with_name("new.db"))):
        columns = "SELECT name, type, \"notnull\", pk FROM pragma_table_info('speeds')"
        assert sql(path, columns) == sql(path.with_name("new.db"), columns)


def test_a_migration_that_breaks_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finds the file as it was."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO turns VALUES (x'00', 'thought', NULL, 1)")
        connection.commit()

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("proxy.store.schema.pack", full)
        with pytest.raises(ConfigError, match="full"):
            opened(path)
    assert sql(path, "PRAGMA user_version") == [(1,)]
    assert sql(path, "SELECT reasoning FROM turns") == [("thought",)]
    opened(path).close()


# Rows


def test_the_table_has_exactly_the_fields_of_an_entry(store: Store, path: Path) -> None:
    """With their types: the names are public. Fields of later versions come last in the table."""
    types = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT", list[str]: "TEXT"}
    hints = get_type_hints(Entry)
    expected = []
    for field in fields(Entry):
        hint = hints[field.name]
        plain = hint if hint in types else next(part for part in hint.__args__ if part in types)
        expected.append((field.name, types[plain]))
    assert sorted((row[1], row[2]) for row in sql(path, "PRAGMA table_info(requests)")) == sorted(expected)
    assert sql(path, "PRAGMA index_info(requests_ts)")[0][2] == "ts"


def test_a_row_comes_back_as_it_was_put(store: Store, path: Path) -> None:
    """Full and empty, newest last; SQL holds comma lists and null."""
    store.put_entry(full_entry())
    store.put_entry(Entry(ts="2026-11-30T10:00:00.000Z"))
    assert store.entries() == [asdict(full_entry()), asdict(Entry(ts="2026-11-30T10:00:00.000Z"))]
    assert store.entries(1) == [asdict(Entry(ts="2026-11-30T10:00:00.000Z"))]
    assert store.entries(0) == []
    assert sql(path, "SELECT decisions, flags, model, stream FROM requests") == [
        ("a,b", "a,b", "é1", 1),
        ("", "", None, None),
    ]


def test_own_rows_are_those_of_this_store_object(path: Path) -> None:
    """Rows of earlier processes and of others on the same file are left out on demand."""
    with closing(opened(path)) as earlier:
        earlier.put_entry(Entry(request_id="earlier"))
    with closing(opened(path)) as store, closing(opened(path)) as other:
        assert store.entries(own=True) == []
        for number in range(4):
            mine = (store, other)[number % 2]
            mine.put_entry(Entry(request_id=f"{number}"))
            mine.flush()
        assert [row["request_id"] for row in store.entries(own=True)] == ["0", "2"]
        assert [row["request_id"] for row in store.entries(1, own=True)] == ["2"]
        assert [row["request_id"] for row in store.entries()] == ["earlier", "0", "1", "2", "3"]


def test_complete_runs_in_the_writers_thread_before_the_row_is_written(store: Store) -> None:
    """Counting tokens is heavy and does not belong on the event loop."""
    threads = []

    def complete(entry: Entry) -> None:
        threads.append(threading.current_thread())
        entry.reasoning_tokens = 7

    store.put_entry(Entry(), complete)
    assert store.entries()[0]["reasoning_tokens"] == 7
    assert [thread.name for thread in threads] == ["store-writer"]


def test_a_failing_complete_is_logged_and_the_row_is_written(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A counter with a fault costs a count, not the row."""

    def complete(entry: Entry) -> None:
        raise ValueError("no tokenizer")

    store.put_entry(Entry(request_id="r1"), complete)
    assert [row["request_id"] for row in store.entries()] == ["r1"]
    assert "r1" in caplog.text
    assert "no tokenizer" in caplog.text


def test_slow_counting_holds_up_no_turn(store: Store, path: Path) -> None:
    """Turns of a batch are written first, and rows as soon as a quarter of a second was counted."""
    done = threading.Event()

    def complete(entry: Entry) -> None:
        time.sleep(0.3)

    def last(entry: Entry) -> None:
        done.wait(10)

    store.put_entry(Entry(request_id="slow"), complete)
    store.put_entry(Entry(request_id="stuck"), last)
    store.put_turn(Turn(key(1), "thought"))
    until(lambda: bool(sql(path, "SELECT 1 FROM requests")))
    assert sql(path, "SELECT request_id FROM requests") == [("slow",)]
    assert sql(path, "SELECT data FROM texts") == [(b"thought",)]
    done.set()
    assert [row["request_id"] for row in store.entries()] == ["slow", "stuck"]


def spoken(model: str, decode: float) -> Entry:
    """A row of an answer at that speed, long enough to judge by."""
    return Entry(backend="box", upstream_model=model, completion_tokens=10, decode_tokens_per_second=decode)


def test_speeds_go_on_after_a_restart(path: Path) -> None:
    """Later rows move the figure of earlier runs."""
    with closing(opened(path)) as store:
        assert store.recent_speeds() == {}
        for speed, model in ((5.0, "a"), (7.5, "b")):
            store.put_entry(spoken(model, speed))
    with closing(opened(path)) as store:
        assert store.recent_speeds() == {("box", "a"): Speed(5.0), ("box", "b"): Speed(7.5)}
        store.put_entry(spoken("a", 15.0))
        store.flush()
        assert store.recent_speeds()["box", "a"] == Speed(8.0)


def test_a_value_that_no_table_holds_costs_its_own_row_only(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a surrogate pair is logged; a number above 64 bits is left out; the rest of the batch is written."""
    with closing(opened(path, tmp_path / "ledger.jsonl")) as store:
        store.put_entry(Entry(request_id="good"))
        store.put_entry(Entry(request_id="large", prompt_tokens=2**70))
        store.put_entry(Entry(request_id="half", model="\ud83d"))
        store.put_turn(Turn(key(1), "\ud83d"))
        store.put_turn(Turn(key(2), "thought"))
        store.put_entry(Entry(request_id="good too"))
        found = {row["request_id"]: row["prompt_tokens"] for row in store.entries()}
        assert found == {"good": None, "large": None, "good too": None}
        assert sql(path, "SELECT key FROM turns") == [(key(2),)]
        assert caplog.text.count("is lost") >= 3
        assert store.healthy()


# JSONL


def test_jsonl_lines_equal_the_rows_of_the_table(tmp_path: Path, path: Path) -> None:
    """Same names, same order, null for missing, arrays for lists; the file is private and its folder is made."""
    ledger = tmp_path / "logs" / "ledger.jsonl"
    with closing(opened(path, ledger)) as store:
        for number in range(3):
            store.put_entry(full_entry(number))
        store.put_entry(Entry(), lambda entry: setattr(entry, "error", "line\nend\u2028"))
        rows = store.entries()
        lines = ledger.read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert [json.loads(line) for line in lines] == rows
        assert [list(json.loads(line)) for line in lines] == [[field.name for field in fields(Entry)]] * 4
    assert ledger.stat().st_mode & 0o777 == 0o600
    assert ledger.parent.stat().st_mode & 0o777 == 0o700


def test_a_jsonl_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path, path: Path) -> None:
    """A folder is no file; the setting is named."""
    with pytest.raises(ConfigError, match=r"store\.ledger_jsonl"):
        opened(path, tmp_path)


def test_a_broken_last_line_stays_apart(tmp_path: Path, path: Path) -> None:
    """After the machine went down within a line, the next row begins on a line of its own."""
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b'{"v": 1}\n{"v": ')
    with closing(opened(path, ledger)) as store:
        store.put_entry(Entry(request_id="next"))
    lines = ledger.read_bytes().splitlines()
    assert lines[:2] == [b'{"v": 1}', b'{"v": ']
    assert json.loads(lines[2])["request_id"] == "next"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_rows_wait_while_the_disk_of_the_jsonl_is_full(tmp_path: Path, path: Path) -> None:
    """The table goes on; the lines follow when there is room, none twice."""
    ledger = tmp_path / "ledger.jsonl"
    ledger.symlink_to("/dev/full")
    with closing(opened(path, ledger)) as store:
        store.put_entry(Entry(request_id="1"))
        assert not store.flush(0.3)
        assert not store.healthy()
        assert sql(path, "SELECT request_id FROM requests") == [("1",)]
        ledger.unlink()
        store.put_entry(Entry(request_id="2"))
        assert store.flush()
        assert store.healthy()
    assert [json.loads(line)["request_id"] for line in ledger.read_bytes().splitlines()] == ["1", "2"]


def test_a_rotated_jsonl_file_is_made_anew(tmp_path: Path, path: Path) -> None:
    """Whoever moves the file away needs no signal."""
    ledger = tmp_path / "ledger.jsonl"
    with closing(opened(path, ledger)) as store:
        for name in ("old", "new"):
            store.put_entry(Entry(request_id=name))
            store.flush()
            if name == "old":
                ledger.rename(tmp_path / "old.jsonl")
    assert [json.loads(line)["request_id"] for line in ledger.read_bytes().splitlines()] == ["new"]


# Threads, processes, disks


async def test_threads_write_at_once(path: Path, tmp_path: Path) -> None:
    """Nothing is lost or doubled."""
    with closing(opened(path, tmp_path / "ledger.jsonl")) as store:

        def work(worker: int) -> None:
            for number in range(200):
                store.put_turn(Turn(key(worker * 200 + number), f"{worker}"))
                store.put_entry(Entry(request_id=f"{worker}-{number}"))
                if number == 100:
                    store.flush()

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = [row["request_id"] for row in store.entries()]
        assert sorted(ids) == sorted(f"{worker}-{number}" for worker in range(8) for number in range(200))
        assert len((await store.find([key(number) for number in range(1600)])).exact) == 1600
        lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["request_id"] for line in lines] == ids


async def test_who_waits_for_its_row_does_not_wait_for_what_others_use(path: Path) -> None:
    """Turns are found, and so noted as used, all the time: a row that is on disk is told of all the same."""
    over = threading.Event()
    with closing(opened(path)) as store:
        assert isinstance(store, SqliteStore)
        writer = store._writer

        def use() -> None:
            while not over.wait(0.001):
                writer.mark_used(Uses({1}))

        thread = threading.Thread(target=use)
        thread.start()
        try:
            began = time.monotonic()
            for number in range(20):
                store.put_entry(Entry(request_id=str(number)))
                await store.written(5)
                assert sql(path, "SELECT count(*) FROM requests") == [(number + 1,)]
            assert time.monotonic() - began < 5
        finally:
            over.set()
            thread.join()


def test_kill_9_after_a_flush_loses_nothing(path: Path, tmp_path: Path) -> None:
    """What was flushed is in table and lines, and the file opens again."""
    body = """
for number in range(300):
    store.put_turn(Turn(number.to_bytes(16, "big"), "thought"))
    store.put_entry(Entry(request_id=str(number)))
store.flush()
print("flushed", flush=True)
time.sleep(60)
"""
    process = child(body, path, tmp_path / "ledger.jsonl")
    with process:
        assert line_of(process) == b"flushed\n"
        process.send_signal(signal.SIGKILL)
    with closing(opened(path)) as store:
        assert [row["request_id"] for row in store.entries()] == [str(number) for number in range(300)]
    assert sql(path, "SELECT count(*) FROM turns") == [(300,)]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert len((tmp_path / "ledger.jsonl").read_bytes().splitlines()) == 300


def test_what_was_put_is_on_disk_within_a_second(path: Path, tmp_path: Path) -> None:
    """Without a flush, and the process killed a second later."""
    body = 'store.put_entry(Entry(request_id="1"))\ntime.sleep(1)\nprint("put", flush=True)\ntime.sleep(60)'
    process = child(body, path, tmp_path / "ledger.jsonl")
    with process:
        assert line_of(process) == b"put\n"
        process.send_signal(signal.SIGKILL)
    assert sql(path, "SELECT request_id FROM requests") == [("1",)]
    assert len((tmp_path / "ledger.jsonl").read_bytes().splitlines()) == 1


def test_a_program_that_ends_without_closing_loses_nothing(path: Path) -> None:
    """Agent code that uses the library rarely closes anything."""
    with child('store.put_entry(Entry(request_id="1"))', path) as process:
        assert process.wait(30) == 0
    assert sql(path, "SELECT request_id FROM requests") == [("1",)]


def test_processes_share_a_new_file(path: Path, tmp_path: Path) -> None:
    """All start at once on a file that none has made yet, and agree on the salt."""
    body = """
for number in range(100):
    store.put_entry(Entry(request_id=str(number)))
    time.sleep(0.001)
store.close()
print(store.salt.hex(), flush=True)
"""
    processes = [child(body, path, tmp_path / "ledger.jsonl") for _ in range(4)]
    salts = set()
    for process in processes:
        with process:
            salts.add(line_of(process))
            assert process.wait(30) == 0
    assert len(salts) == 1
    assert sql(path, "SELECT count(*), count(DISTINCT request_id) FROM requests") == [(400, 100)]
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines()
    assert len([json.loads(line) for line in lines]) == 400


async def test_a_full_disk_raises_nothing_and_heals(
    path: Path, connections: list[sqlite3.Connection], caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be written waits, is found, and follows when there is room; the log says both."""
    with closing(opened(path)) as store:
        pages = connections[0].execute("PRAGMA page_count").fetchone()[0]
        connections[0].execute(f"PRAGMA max_page_count = {pages}")
        turn = Turn(key(1), os.urandom(50_000).hex())
        store.put_turn(turn)
        store.put_entry(full_entry())
        assert not store.flush(0.3)
        assert not store.healthy()
        assert await store.find([key(1)]) == only(turn)
        assert "full" in caplog.text
        connections[0].execute("PRAGMA max_page_count = 1000000")
        assert store.flush()
        assert store.healthy()
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        assert store.entries() == [asdict(full_entry())]
    assert sql(path, "SELECT count(*) FROM turns") == [(1,)]


class Sink:
    """Writes into a list, when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.broken = False
        self.written: list[Turn | Entry] = []

    def write_turns(self, turns: Sequence[Turn]) -> None:
        """Wait until it may, or fail."""
        self.may.wait(10)
        if self.broken:
            raise OSError("no space left")
        self.written += turns

    def write_entries(self, entries: Sequence[Entry]) -> None:
        """The same."""
        self.may.wait(10)
        if self.broken:
            raise OSError("no space left")
        self.written += entries

    def write_uses(self, uses: Uses) -> None:
        """Nobody finds anything here."""

    def tidy(self) -> bool:
        """Nothing is too much."""
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, 10 seconds at the most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_full_queue_waits_for_a_writer_that_makes_progress(caplog: pytest.LogCaptureFixture) -> None:
    """A put waits a moment instead of losing something."""
    sink = Sink()
    writer = Writer(sink, limit=10_000)
    for number in range(10):
        writer.put(Entry(request_id=f"{number}"))
    threading.Timer(0.05, sink.may.set).start()
    started = time.monotonic()
    writer.put(Entry(request_id="10"))
    assert time.monotonic() - started < 0.2
    assert writer.close()
    assert [entry.request_id for entry in sink.written if isinstance(entry, Entry)] == [str(n) for n in range(11)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_full_queue_on_a_dead_disk_loses_the_oldest_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The newest turn is the one that an agent asks for; no put waits for a disk that takes nothing."""
    sink = Sink()
    sink.broken = True
    sink.may.set()
    writer = Writer(sink, limit=10_000)
    writer.put(Entry(request_id="0"))
    until(lambda: not writer.healthy())
    started = time.monotonic()
    for number in range(1, 30):
        writer.put(Turn(key(number), "") if number % 2 else Entry(request_id=f"{number}"))
    assert time.monotonic() - started < 0.5
    assert key(29) in writer.find([key(29)]).exact
    assert not writer.find([key(1)]).exact
    lost = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert f"the turn {key(1).hex()}" in lost[0] or "the ledger row of 0" in lost[0]
    sink.broken = False
    assert writer.flush(5)
    assert writer.healthy()
    assert len(lost) + len(sink.written) == 30
    assert writer.close()


def test_only_one_put_waits_for_a_writer_that_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """Else a hundred requests would stand still for 0.2 s each, one after the other."""
    sink = Sink()
    writer = Writer(sink, limit=10_000)
    started = time.monotonic()
    for number in range(40):
        writer.put(Entry(request_id=f"{number}"))
    assert time.monotonic() - started < 0.5
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    sink.may.set()
    assert writer.close()
    lost = [record for record in caplog.records if "is lost" in record.getMessage()]
    assert len(lost) + len(sink.written) == 40


def test_closing_on_a_dead_disk_ends_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A shutdown does not wait for a disk that takes nothing."""
    sink = Sink()
    sink.broken = True
    sink.may.set()
    writer = Writer(sink)
    writer.put(Entry())
    writer.put(Turn(key(1), "thought"))
    assert writer.close(5)
    assert "closed before 2 turns and rows" in caplog.text
    assert not writer.healthy()


async def test_closing_twice_is_once_and_later_puts_are_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing raises after the end."""
    store = opened(path)
    store.put_turn(Turn(key(1), "thought"))
    store.close()
    store.close()
    store.put_entry(Entry(request_id="late"))
    assert await store.find([key(1)]) == Found()
    assert store.flush()
    assert not store.healthy()
    assert "the ledger row of late came after the store was closed" in caplog.text
    assert sql(path, "SELECT count(*) FROM turns") == [(1,)]


# Files


def test_files_and_new_folders_are_private(tmp_path: Path) -> None:
    """0600 and 0700, with the log and its index; a folder that was there keeps its mode."""
    tmp_path.chmod(0o755)
    old = os.umask(0)
    try:
        with closing(opened(tmp_path / "new" / "deep" / "proxy.db")) as store:
            store.put_entry(Entry())
            store.flush()
            files = sorted((tmp_path / "new" / "deep").iterdir())
            assert [file.name for file in files] == ["proxy.db", "proxy.db-shm", "proxy.db-wal"]
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "deep").stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_newer_schema_is_refused_and_kept(path: Path) -> None:
    """The message says what to do."""
    opened(path).close()
    sql(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"newer reasoning-proxy.*left as it is.*upgrade"):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["header", "page"])
def test_a_damaged_file_is_refused_and_kept(path: Path, damage: str) -> None:
    """The message says what to do, and nothing is thrown away."""
    opened(path).close()
    content = bytearray(path.read_bytes())
    content[0 if damage == "header" else 100 : 200] = b"\xff" * 100
    path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"damaged.*left as it is.*move it away"):
        opened(path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_kept(path: Path) -> None:
    """A wrong path must not mix tables."""
    sql(path, "CREATE TABLE notes (text)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        opened(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A folder is no file, and a file no folder."""
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "proxy.db"):
        with pytest.raises(ConfigError, match="cannot be opened"):
            opened(path)


async def test_memory_leaves_nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does all else that a file does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(open_store("memory")) as store:
        store.put_turn(Turn(key(1), "thought"))
        store.put_entry(spoken("m", 2.0))
        assert store.flush()
        assert await store.find([key(1), key(2)]) == only(Turn(key(1), "thought"))
        assert len(store.entries()) == 1
        assert store.recent_speeds() == {("box", "m"): Speed(2.0)}
        assert store.healthy()
        assert len(store.salt) == 32
    assert os.listdir(tmp_path) == []


def test_what_urls_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three slashes and a relative path, four and an absolute one; the plain word is under the state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sqlite_path("sqlite") == tmp_path / "reasoning-proxy" / "proxy.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sqlite_path("sqlite") == tmp_path / ".local" / "state" / "reasoning-proxy" / "proxy.db"
    assert sqlite_path("sqlite:///a/b.db") == Path("a/b.db")
    assert sqlite_path("sqlite:////a/b.db") == Path("/a/b.db")
    assert sqlite_path("memory") is None


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "sqlite:///folder/", "proxy.db", "mysql://u:secret@h/d"]
)
def test_another_url_is_refused(url: str) -> None:
    """The message names what is accepted, and no password."""
    with pytest.raises(ConfigError, match=r"`sqlite`.*`sqlite:///file`.*`memory`") as caught:
        open_store(url)
    assert "secret" not in caught.value.message


def test_the_store_is_what_the_protocol_promises(store: Store) -> None:
    """The type checker compares them; this shows that it is the SQLite one."""
    assert isinstance(store, SqliteStore)


def test_a_quiet_store_logs_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Ordinary work leaves no line."""
    caplog.set_level(logging.DEBUG)
    store.put_entry(Entry())
    store.put_turn(Turn(key(1), "thought"))
    store.flush()
    assert [record for record in caplog.records if record.name.startswith("proxy")] == []
