"""`reasoning-proxy tail`: the last rows and those that come, from every kind of ledger, whatever happens to it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from terminals import COLOURS, on_terminal

from proxy import cli, tail_command
from proxy.messages import Entry
from proxy.store import open_store
from proxy.store.following import BATCH, LinesFollowing, SqliteFollowing, Wanted
from proxy.store.growing import LONGEST, GrowingFile
from proxy.store.postgres_following import LATE_SECONDS, PostgresFollowing
from proxy.store.rows import to_line
from proxy.store.schema import MIGRATIONS
from proxy.tail import cells_of, cut, head, json_line, line

FULL: dict[str, Any] = {
    "model": "kimi-k3",
    "backend": "box",
    "client": "chat",
    "effort_sent": "low",
    "reasoning_tokens": 1234,
    "visible_tokens": 56,
    "reasoning_source": "tokenized",
    "cost_usd": "0.0207",
    "duration_ms": 61_500,
    "turns_restored": 2,
    "decisions": ["restore", "floor"],
    "status": 200,
}
NAMES = st.text(max_size=30) | st.sampled_from(["\x1b[31mred\x1b[0m", "\u202eevil", "漢字" * 20, "a\nb", "👩‍👩‍👧"])


def row(**values: Any) -> Entry:
    """A ledger row."""
    return Entry(**({"ts": "2026-11-30T10:00:00.000Z", "request_id": "r"} | values))


def run(*arguments: str) -> Result:
    """The command."""
    return CliRunner().invoke(cli.main, ["tail", *arguments])


def filled(path: Path, *names: str) -> str:
    """A store's file with a row of each model; its URL."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        for name in names:
            store.put_entry(row(model=name, client=name))
    return f"sqlite:///{path}"


def shown(entry: Entry) -> dict[str, Any]:
    """A row as a ledger gives it."""
    found: dict[str, Any] = json.loads(to_line(entry))
    return found


def test_a_line_says_what_was_asked_and_what_came_of_it() -> None:
    """Whole where nobody cuts it."""
    text = line(shown(row(**FULL)))
    for part in ("11-30 10:00:00", "kimi-k3", "box", "low", "1,234/56", "$0.0207", "61.5s", "ok", "restored=2"):
        assert part in text
    assert "restore,floor" in text


@given(name=NAMES, error=st.none() | NAMES, width=st.integers(20, 300), colour=st.booleans())
def test_no_line_is_wider_than_its_terminal(name: str, error: str | None, width: int, colour: bool) -> None:
    """And no name steers it."""
    text = line(shown(row(**(FULL | {"model": name, "error": error}))), width)
    assert cells_of(text) <= width
    assert text.isprintable()
    coloured = line(shown(row(**(FULL | {"model": name}))), width, colour=colour)
    assert ("\x1b[3" in coloured) is colour


@given(st.text(max_size=40), st.integers(0, 30))
def test_a_cut_text_fits(text: str, width: int) -> None:
    """It is whole where it fits, and else its beginning, with an ellipsis that has room."""
    found = cut(text, width)
    assert cells_of(found) <= width
    assert found == text or text.startswith(found.removesuffix("…"))
    assert (found == text) == (cells_of(text) <= width)


def test_the_outcome_is_whole_below_its_head_at_every_width() -> None:
    """From 20 columns to 300."""
    for width in range(20, 301):
        named, text = head(width), line(shown(row(**(FULL | {"outcome": "answer_lost"}))), width)
        assert cells_of(named) <= width
        assert text.startswith("answer_lost", named.index("outcome")), width


def test_what_is_not_known_is_a_dash() -> None:
    """A passed-through request has its path for a model; an estimate says so, a tiny cost is no nothing."""
    bare = line(shown(row(endpoint="/v1/embeddings", attempts=1)))
    assert bare.split() == ["11-30", "10:00:00", "/v1/embeddings", *"-----", "ok"]
    counted = line(
        shown(row(reasoning_tokens=7, reasoning_source="estimated", cost_usd="0.00001", duration_ms=7 * 10**6))
    )
    assert "~7/-" in counted
    assert "<$0.0001" in counted
    assert "1h56m" in counted
    failed = line(shown(row(outcome="upstream_error", status=502, error="it broke\nin two")))
    assert failed.endswith("upstream_error  502 it broke�in two")


@given(NAMES)
def test_json_is_the_whole_row_and_steers_no_terminal(name: str) -> None:
    """Read again, it is the same."""
    entry = shown(row(model=name))
    text = json_line(entry)
    assert text.isprintable()
    assert json.loads(text) == entry


@given(
    lines=st.lists(st.binary(max_size=20).filter(lambda data: b"\n" not in data), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@examples(deadline=None, max_examples=40)
def test_lines_come_once_and_whole_however_they_are_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cuts: list[int]
) -> None:
    """Cut anywhere; what has no end yet is waited for."""
    path = tmp_path_factory.mktemp("growing") / "ledger.jsonl"
    data = b"".join(each + b"\n" for each in lines)
    file, found = GrowingFile(path), list[bytes]()
    with closing(file):
        assert file.more() == []
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            with path.open("ab") as writing:
                writing.write(data[start:end])
            found += file.more()
    assert found == lines


@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n"]), max_size=30).map(b"".join),
    later=st.lists(st.sampled_from([b"d", b"\n"]), max_size=5).map(b"".join),
    block=st.integers(1, 7),
)
@examples(deadline=None, max_examples=80)
def test_backwards_are_the_same_lines_and_none_is_lost_behind_them(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, later: bytes, block: int
) -> None:
    """In blocks of any size; a line without its end comes when that is written."""
    path = tmp_path_factory.mktemp("growing") / "ledger.jsonl"
    path.write_bytes(data)
    with closing(GrowingFile(path)) as file:
        file.open()
        found = list(file.backwards(block))[::-1]
        with path.open("ab") as writing:
            writing.write(later)
        found += file.more()
    assert found == (data + later).split(b"\n")[:-1]


def test_a_line_without_an_end_fills_no_memory(tmp_path: Path) -> None:
    """What is longer than any row is left out, forwards and backwards, and the next row is found."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"x" * (2 * LONGEST + 100))
    with closing(GrowingFile(path)) as file, closing(GrowingFile(path)) as other:
        found = [file.more() for _ in range(4)]
        assert len(file.ending) <= LONGEST
        other.open()
        assert list(other.backwards()) == []
        with path.open("ab") as writing:
            writing.write(b"yz\nrow\n")
        assert (found, file.more(), other.more()) == ([[]] * 4, [b"row"], [b"row"])
        other.open()
        newest, longest = other.backwards()
        assert newest == b"row"
        assert len(longest) <= LONGEST + 65_536


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    """Nothing is lost between the two, and nothing comes twice."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"one\n")
    with closing(GrowingFile(path)) as file:
        assert file.more() == [b"one"]
        with path.open("ab") as old:
            path.rename(tmp_path / "ledger.jsonl.1")
            path.write_bytes(b"three\n")
            old.write(b"two\n")
            old.flush()
            found = file.more() + file.more()
    assert found == [b"two", b"three"]


def test_a_file_that_was_cut_short_begins_anew(tmp_path: Path) -> None:
    """As `copytruncate` does it."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"one\ntwo\n")
    with closing(GrowingFile(path)) as file:
        assert file.more() == [b"one", b"two"]
        path.write_bytes(b"new\n")
        assert file.more() == [b"new"]


def test_a_file_that_was_cut_short_and_grew_again_begins_anew(tmp_path: Path) -> None:
    """Also where it is longer than before by then."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(to_line(row(request_id="r1")))
    with closing(GrowingFile(path)) as file:
        assert len(file.more()) == 1
        rows = [to_line(row(request_id=name)) for name in ("r2", "r3")]
        path.write_bytes(b"".join(rows))
        assert file.more() == [each.rstrip() for each in rows]


def test_a_deleted_file_is_waited_for(tmp_path: Path) -> None:
    """All of the next one is new, and `waits` says what is missing."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(to_line(row(request_id="r1")))
    with closing(LinesFollowing(path, pytest.fail, True)) as ledger:
        assert len(ledger.last(5, Wanted())) == 1
        path.unlink()
        assert ledger.new() == []
        assert "waiting for" in ledger.waits
        path.write_bytes(to_line(row(request_id="r2")))
        assert [each["request_id"] for each in ledger.new()] == ["r2"]
        assert ledger.waits == ""


def test_the_last_lines_are_found_from_the_end(tmp_path: Path) -> None:
    """Of those that are wanted; lines of others are left out with a word."""
    path, told = tmp_path / "ledger.jsonl", list[str]()
    rows = [row(request_id=f"r{number}", client="ab"[number % 2]) for number in range(200)]
    path.write_bytes(b"".join(map(to_line, rows[:100])) + b"no row\n" + b"".join(map(to_line, rows[100:])))
    with closing(LinesFollowing(path, told.append, False)) as ledger:
        found = ledger.last(60, Wanted(client="b"))
    assert [each["request_id"] for each in found] == [f"r{number}" for number in range(81, 200, 2)]
    assert len(told) == 1


def test_a_line_without_its_end_is_a_row_unless_its_end_is_waited_for(tmp_path: Path) -> None:
    """Half a row is none, and no damage."""
    path, rows = tmp_path / "ledger.jsonl", [to_line(row(request_id=name)) for name in ("r1", "r2")]
    path.write_bytes(b"".join(rows)[:-1])
    with (
        closing(LinesFollowing(path, pytest.fail, False)) as ended,
        closing(LinesFollowing(path, print, True)) as open_,
    ):
        assert [each["request_id"] for each in ended.last(5, Wanted())] == ["r1", "r2"]
        assert [each["request_id"] for each in open_.last(5, Wanted())] == ["r1"]
        with path.open("ab") as writing:
            writing.write(b"\n")
        assert [each["request_id"] for each in open_.new()] == ["r2"]
    path.write_bytes(b"".join(rows)[:-9])
    with closing(LinesFollowing(path, pytest.fail, False)) as ended:
        assert [each["request_id"] for each in ended.last(5, Wanted())] == ["r1"]


def test_a_packed_file_has_last_rows_and_cannot_be_followed(tmp_path: Path) -> None:
    """The refusal says what to leave out."""
    path = tmp_path / "ledger.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(to_line(row(model=name)) for name in ("m1", "m2"))))
    assert [each.split()[2] for each in run("--ledger", str(path), "-n", "1").stdout.splitlines()] == ["m2"]
    refused = run("--ledger", str(path), "--follow")
    assert refused.exit_code == 2
    assert "--follow" in refused.stderr
    path.write_bytes(path.read_bytes()[:-12])
    assert run("--ledger", str(path)).exit_code == 2


def test_lines_of_earlier_versions_lack_fields(tmp_path: Path) -> None:
    """Which are null; lines of other programs are no rows."""
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"ts":"2026-11-30T10:00:00Z","model":"m1","colour":"red"}\n{"level":"info"}\n[1]\n', "utf-8")
    found = run("--ledger", str(path), "--json")
    (only,) = map(json.loads, found.stdout.splitlines())
    assert (only["model"], only["cache_saved_usd"]) == ("m1", None)
    assert "no ledger rows" in found.stderr


def test_a_store_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """What its tables lack is null, also of rows that come; the file stays as it is."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("PRAGMA user_version = 1")
        old.execute("INSERT INTO requests (ts, model) VALUES ('2026-11-30T10:00:00Z', 'm1')")
        with closing(SqliteFollowing(path)) as ledger:
            assert [(each["model"], each["cache_write_tokens"]) for each in ledger.last(5, Wanted())] == [("m1", None)]
            old.execute("INSERT INTO requests (ts, model) VALUES ('2026-11-30T10:00:01Z', 'm2')")
            assert [(each["model"], each["flags"]) for each in ledger.new()] == [("m2", [])]
        assert old.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_store_that_is_replaced_or_made_later_is_read_from_its_first_row(tmp_path: Path) -> None:
    """A file without tables is no ledger yet."""
    path = tmp_path / "proxy.db"
    with closing(SqliteFollowing(path)) as ledger:
        assert (ledger.new(), "waiting for" in ledger.waits) == ([], True)
        path.touch()
        assert (ledger.new(), "waiting for" in ledger.waits) == ([], True)
        filled(path, "m1", "m2")
        assert [each["model"] for each in ledger.new()] == ["m1", "m2"]
        assert (ledger.new(), ledger.waits) == ([], "")
        for file in tmp_path.glob("proxy.db*"):
            file.unlink()
        assert (ledger.new(), "waiting for" in ledger.waits) == ([], True)
        filled(path, "m3")
        assert [each["model"] for each in ledger.new()] == ["m3"]


def test_many_rows_at_once_come_in_order_and_once(tmp_path: Path) -> None:
    """In batches; after rows were deleted those that come are still found."""
    path = tmp_path / "proxy.db"
    filled(path)
    with closing(SqliteFollowing(path)) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        assert ledger.last(0, Wanted()) == []
        many = [("2026-11-30T10:00:00Z", str(number)) for number in range(2 * BATCH + 1)]
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO requests (ts, model) VALUES (?, ?)", many)
        writer.execute("COMMIT")
        found = [each["model"] for _ in range(3) for each in ledger.new()]
        assert found == [name for _, name in many]
        assert ledger.new() == []
        writer.execute("DELETE FROM requests")
        assert ledger.new() == []
        writer.execute("INSERT INTO requests (ts, model) VALUES ('2026-11-30T10:00:00Z', 'after')")
        assert [each["model"] for each in ledger.new()] == ["after"]


@pytest.mark.parametrize("kind", ["store", "lines"])
def test_the_last_rows_are_shown(tmp_path: Path, kind: str) -> None:
    """As many as wanted, of the client and outcome that are wanted."""
    url = filled(tmp_path / "proxy.db", "m1", "m2", "m3")
    if kind == "lines":
        url = str(tmp_path / "ledger.jsonl")
        Path(url).write_bytes(b"".join(to_line(row(model=name, client=name)) for name in ("m1", "m2", "m3")))
    found = run("--ledger", url, "-n", "2")
    assert (found.exit_code, found.stderr) == (0, "")
    assert [each.split()[2] for each in found.stdout.splitlines()] == ["m2", "m3"]
    assert [
        json.loads(each)["model"] for each in run("--ledger", url, "--client", "m1", "--json").stdout.splitlines()
    ] == ["m1"]
    assert run("--ledger", url, "--outcome", "answer_lost").stdout == ""


def test_nothing_found_is_said() -> None:
    """The name may be misspelt; stdout stays empty."""
    url = filled(Path("proxy.db"), "m1")
    found = run("--ledger", url, "--client", "nobody")
    assert (found.exit_code, found.stdout, found.stderr) == (0, "", "there is no request of client 'nobody'\n")


def test_the_ledger_is_that_of_the_settings() -> None:
    """The store, or the file of lines where the store ends with its process."""
    filled(Path("mine.db"), "m1")
    Path("lines.jsonl").write_bytes(to_line(row(model="m2")))
    Path("config.toml").write_text('[store]\nurl = "sqlite:///mine.db"\n', "utf-8")
    assert run().stdout.split()[2] == "m1"
    Path("config.toml").write_text('[store]\nurl = "memory"\nledger_jsonl = "lines.jsonl"\n', "utf-8")
    assert run().stdout.split()[2] == "m2"


def test_an_unknown_outcome_is_refused_with_those_there_are() -> None:
    """Instead of nothing being shown for ever."""
    found = run("--outcome", "okay", "--follow")
    assert found.exit_code == 2
    assert all(name in found.stderr for name in tail_command.OUTCOMES)


def test_where_there_is_no_ledger_the_remedy_is_named(tmp_path: Path) -> None:
    """Exit code 1, as the report does it; what is no place at all is 2."""
    found = run("--ledger", str(tmp_path / "absent.db"))
    assert found.exit_code == 1
    assert "reasoning-proxy serve" in found.stderr
    assert run("--ledger", "memory").exit_code == 2


@contextmanager
def following(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """The command with --follow, in a process; how its next line is waited for."""
    # A run in the background may have Ctrl-C switched off, and its children too.
    start = "import signal, proxy.cli; signal.signal(signal.SIGINT, signal.default_int_handler); proxy.cli.main()"
    command = [sys.executable, "-c", start, "tail", "--follow", "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ours
    lines: Queue[str] = Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: deque(map(lines.put, process.stdout or ()), 0), daemon=True)
    reader.start()

    def following_line() -> str:
        try:
            return lines.get(timeout=30)
        except Empty:
            raise AssertionError("nothing came") from None

    try:
        yield process, following_line
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


def test_rows_are_shown_as_they_come_until_it_is_told_to_end(tmp_path: Path) -> None:
    """While the proxy writes; Ctrl-C is a good end."""
    url = filled(tmp_path / "proxy.db", "m1")
    with following("--ledger", url) as (process, line_after), closing(open_store(url)) as store:
        assert json.loads(line_after())["model"] == "m1"
        for name in ("m2", "m3"):
            store.put_entry(row(model=name))
            store.flush()
            assert json.loads(line_after())["model"] == name
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """And it says so."""
    path = tmp_path / "ledger.jsonl"
    with following("--ledger", str(path)) as (process, line_after):
        assert process.stderr is not None
        assert "waiting for" in process.stderr.readline()
        path.write_bytes(to_line(row(model="m1")))
        assert json.loads(line_after())["model"] == "m1"


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    """As `| head` does."""
    url = filled(tmp_path / "proxy.db", "m1")
    read, write = os.pipe()
    command = [sys.executable, "-m", "proxy", "tail", "--follow", "--ledger", url]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE)  # noqa: S603 - ours
    os.close(write)
    assert os.read(read, 10)
    os.close(read)
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    said = process.communicate()[1]
    assert (process.returncode, said) == (0, b"")


def test_a_database_server_is_watched(postgres_url: str) -> None:
    """By the numbers of its rows."""
    with closing(open_store(postgres_url)) as store:
        store.put_entry(row(model="m1"))
        store.flush()
        with following("--ledger", postgres_url) as (_, line_after):
            assert json.loads(line_after())["model"] == "m1"
            store.put_entry(row(model="m2"))
            store.flush()
            assert json.loads(line_after())["model"] == "m2"


@pytest.mark.parametrize("columns", [20, 47, 80, 300])
def test_no_line_wraps_on_a_terminal(tmp_path: Path, columns: int) -> None:
    """Outcomes are in colour there, the head is on stderr, and hostile names do nothing."""
    path = tmp_path / "ledger.jsonl"
    evil = "\x1b[2J\x9b31m\u202e漢字" * 9
    rows = [FULL, FULL | {"model": evil, "outcome": "answer_lost"}, FULL | {"error": evil, "outcome": "upstream_error"}]
    path.write_bytes(b"".join(to_line(row(**each)) for each in rows))
    with on_terminal("tail", "--ledger", str(path), columns=columns) as terminal:
        assert terminal.wait() == 0
        coloured = terminal.shown
    lines = COLOURS.sub("", coloured).splitlines()
    assert len(lines) == 1 + len(rows)
    assert all(cells_of(each) <= columns and each.isprintable() for each in lines)
    assert "\x1b[32mok" in coloured
    assert "\x1b[31m" in coloured


def test_ctrl_c_on_a_terminal_is_a_good_end(tmp_path: Path) -> None:
    """Exit code 0 and no traceback; NO_COLOR is obeyed."""
    url = filled(tmp_path / "proxy.db", "m1")
    with on_terminal("tail", "--ledger", url, "--follow", NO_COLOR="1") as terminal:
        terminal.wait_for("m1")
        terminal.press_ctrl_c()
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
        assert not COLOURS.search(terminal.shown)


def test_a_file_is_followed_through_rotation_and_truncation(tmp_path: Path) -> None:
    """By the command itself."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(to_line(row(model="m1")))
    with following("--ledger", str(path)) as (_, line_after):
        assert json.loads(line_after())["model"] == "m1"
        path.rename(tmp_path / "ledger.jsonl.1")
        path.write_bytes(to_line(row(model="m2")))
        assert json.loads(line_after())["model"] == "m2"
        path.write_bytes(to_line(row(model="m3", error="longer than what stood here before")))
        assert json.loads(line_after())["model"] == "m3"


def test_of_a_database_late_rows_and_those_of_an_earlier_version_are_shown(postgres_url: str) -> None:
    """Of two proxies the later number may be committed first; one that was rolled back is not waited for for ever."""
    open_store(postgres_url).close()
    put = "INSERT INTO requests (replica, ts, model) VALUES ('x', '2026-11-30T10:00:00Z', %s)"
    now = 0.0
    with (
        closing(PostgresFollowing(postgres_url, lambda: now)) as ledger,
        closing(psycopg.connect(postgres_url)) as slow,
        closing(psycopg.connect(postgres_url, autocommit=True)) as quick,
    ):
        quick.execute("ALTER TABLE requests DROP COLUMN cache_saved_usd")
        quick.execute(put, ["m1"])
        assert [(each["model"], each["cache_saved_usd"]) for each in ledger.last(5, Wanted())] == [("m1", None)]
        slow.execute(put, ["m2"])
        quick.execute(put, ["m3"])
        assert [each["model"] for each in ledger.new()] == ["m3"]
        slow.commit()
        assert [each["model"] for each in ledger.new()] == ["m2"]
        slow.execute(put, ["m4"])
        slow.rollback()
        quick.execute(put, ["m5"])
        assert [each["model"] for each in ledger.new()] == ["m5"]
        now = LATE_SECONDS + 1
        assert ledger.new() == []
        assert ledger._late == {}


def test_a_database_that_went_away_is_asked_again(postgres_url: str) -> None:
    """Nothing is lost, and the word about it names no password."""
    now = 0.0
    with closing(open_store(postgres_url)) as store, closing(PostgresFollowing(postgres_url, lambda: now)) as ledger:
        assert ledger.last(5, Wanted()) == []
        with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [ledger._connection.info.backend_pid])
        store.put_entry(row(model="m1"))
        assert store.flush()
        assert ledger.new() == []
        assert "waiting for postgresql://***@" in ledger.waits
        assert ledger.new() == []
        now = 10.0
        assert [each["model"] for each in ledger.new()] == ["m1"]
        assert ledger.waits == ""


def test_an_empty_database_is_no_ledger_yet(postgres_url: str) -> None:
    """Without --follow that is an error with its remedy."""
    found = run("--ledger", postgres_url)
    assert found.exit_code == 1
    assert "serve" in found.stderr
