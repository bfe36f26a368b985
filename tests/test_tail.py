"""`reasoning-proxy tail`: the last rows and those that come, from every kind of ledger, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from proxy import cli
from proxy.messages import Entry
from proxy.store import open_store
from proxy.store.following import LinesFollowing, Wanted
from proxy.store.growing import GrowingFile
from proxy.store.rows import to_line
from proxy.tail import cells_of, json_line, line

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
    return json.loads(to_line(entry))


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


def test_the_last_lines_are_found_from_the_end(tmp_path: Path) -> None:
    """Of those that are wanted; lines of others are left out with a word."""
    path, told = tmp_path / "ledger.jsonl", list[str]()
    rows = [row(request_id=f"r{number}", client="ab"[number % 2]) for number in range(200)]
    path.write_bytes(b"".join(map(to_line, rows[:100])) + b"no row\n" + b"".join(map(to_line, rows[100:])))
    with closing(LinesFollowing(path, told.append, False)) as ledger:
        found = ledger.last(60, Wanted(client="b"))
    assert [each["request_id"] for each in found] == [f"r{number}" for number in range(81, 200, 2)]
    assert len(told) == 1


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


def test_where_there_is_no_ledger_the_remedy_is_named(tmp_path: Path) -> None:
    """Exit code 1, as the report does it; what is no place at all is 2."""
    found = run("--ledger", str(tmp_path / "absent.db"))
    assert found.exit_code == 1
    assert "reasoning-proxy serve" in found.stderr
    assert run("--ledger", "memory").exit_code == 2


@contextmanager
def following(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """The command with --follow, in a process; how its next line is waited for."""
    command = [sys.executable, "-m", "proxy", "tail", "--follow", "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ours
    lines: Queue[str] = Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: [lines.put(each) for each in process.stdout or ()], daemon=True)
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
