"""`reasoning-proxy store …` on a SQLite file, beside a proxy that has it open."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from terminals import on_terminal

from proxy import cli
from proxy.messages import Entry
from proxy.store import Store, open_store, open_upkeep
from proxy.store.limits import DAY, Limits
from proxy.store.schema import MIGRATIONS
from proxy.turns import Turn

MARKER = "Zu merkender Satz 5"
"""Too short to be compressed."""
LONG = "Ein langer Gedanke, der zusammengepresst wird. " * 50


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings say that the store is, in an empty folder without the developer's own settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REASONING_PROXY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "reasoning-proxy" / "proxy.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """An open store there, as of a running proxy, with turns of two clients."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.put_turn(Turn(b"1", MARKER, "low", client="openwebui", conversation="c1"))
        store.put_turn(Turn(b"2", LONG, calls='[{"id": "x"}]', client="openwebui", conversation="c2"))
        store.put_turn(Turn(b"3", "another thought", client="agent", conversation="c3"))
        store.put_entry(Entry(request_id="r", client="openwebui", conversation="c1"))
        assert store.flush()
        yield store


def run(*arguments: str) -> Result:
    """The command as a user calls it; unexpected exceptions come through."""
    result = CliRunner().invoke(cli.main, ["store", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def on_disk(path: Path) -> bytes:
    """All bytes of the store's files."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


# stats


def test_stats_for_people(store: Store) -> None:
    """The sums, then a line for each client."""
    result = run("stats")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["turns", "3"]
    assert lines[1].split() == ["texts", "4", "different"]
    assert [line.split()[:2] for line in lines[-2:]] == [["openwebui", "2"], ["agent", "1"]]


def test_stats_for_programs(store: Store) -> None:
    """One JSON object with the same."""
    found = json.loads(run("stats", "--json").stdout)
    assert list(found) == [
        *("turns", "texts", "text_bytes", "stored_bytes", "file_bytes", "oldest_use", "newest_use", "clients")
    ]
    assert found["turns"] == 3
    assert found["text_bytes"] == len(MARKER) + len(LONG) + len('[{"id": "x"}]') + len("another thought")
    assert found["clients"][1].keys() == {"client", "turns", "oldest_use", "newest_use"}


def test_stats_of_an_empty_store(path: Path) -> None:
    """No times and no clients."""
    open_store(f"sqlite:///{path}").close()
    lines = run("stats").stdout.splitlines()
    assert lines[-1].split() == ["used", "-"]
    assert json.loads(run("stats", "--json").stdout)["oldest_use"] is None


@pytest.mark.parametrize("arguments", [("--config", "other.toml"), ("--store", "sqlite:///other.db")])
def test_another_store_is_named(store: Store, arguments: tuple[str, ...]) -> None:
    """By the settings, or directly."""
    Path("other.toml").write_text('[store]\nurl = "sqlite:///other.db"\n', "utf-8")
    open_store("sqlite:///other.db").close()
    assert json.loads(run("stats", "--json", *arguments).stdout)["turns"] == 0
    assert json.loads(run("stats", "--json").stdout)["turns"] == 3


def test_wrong_settings_do_not_matter_where_the_store_is_named(store: Store, path: Path) -> None:
    """They say nothing that is needed."""
    Path("config.toml").write_text("[nonsense]\n", "utf-8")
    assert run("stats").exit_code == 2
    assert run("stats", "--store", f"sqlite:///{path}").exit_code == 0


COMMANDS = [("stats",), ("prune",), ("export",), ("forget", "--client", "x")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_is_not_there_is_not_made(command: tuple[str, ...], tmp_path: Path) -> None:
    """The message says what makes it."""
    result = run(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no store yet" in result.stderr
    assert "serve" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("url", "message"),
    [("memory", "ends with its process"), ("mysql://u:secret@h/d", "no such store"), ("sqlite:///notes.db", "another")],
)
def test_what_is_no_store_is_refused(command: tuple[str, ...], url: str, message: str) -> None:
    """With exit code 2, and without a change."""
    with closing(sqlite3.connect("notes.db")) as connection:
        connection.execute("CREATE TABLE notes (text)")
    before = Path("notes.db").read_bytes()
    result = run(*command, "--store", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "secret" not in result.stderr
    assert Path("notes.db").read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_of_an_older_version_are_left_to_serve(command: tuple[str, ...]) -> None:
    """An older proxy may run on them."""
    with closing(sqlite3.connect("old.db", isolation_level=None)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
    result = run(*command, "--store", "sqlite:///old.db")
    assert result.exit_code == 2
    assert "serve" in result.stderr


@pytest.mark.parametrize("command", [("prune",), ("forget", "--client", "agent")])
def test_a_store_that_another_program_holds_is_told(
    store: Store, path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a traceback, after a few seconds."""
    monkeypatch.setattr("proxy.store.schema.BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        result = run(*command)
        other.execute("ROLLBACK")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: the store could not be read or written: database is locked\n",
    )


# prune


def test_prune_applies_the_settings(store: Store) -> None:
    """As a running proxy would; nothing is over them here."""
    result = run("prune")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("0 turns deleted, 0 bytes\n")


def test_prune_with_limits_of_its_own(store: Store, path: Path) -> None:
    """They win over the settings, of which the other one still counts; free room goes back to the disk."""
    Path("config.toml").write_text("[history]\nmax_mb = 1\nmax_age_days = 0\n", "utf-8")
    letters = random.Random(1)  # noqa: S311 - no secret
    for number in range(100, 160):
        store.put_turn(Turn(bytes([number]), "".join(chr(letters.randrange(0x4E00, 0x9FFF)) for _ in range(10_000))))
    assert store.flush()
    before = len(on_disk(path))
    assert run("prune", "--max-mb", "0").stdout.startswith("0 turns deleted")
    result = run("prune", "--max-age-days", "1")
    assert result.exit_code == 0
    assert int(result.stdout.split()[0]) > 10
    assert len(on_disk(path)) < 1_300_000 < before
    assert path.with_name("proxy.db-wal").stat().st_size == 0
    assert store.healthy()


# export


def test_export_is_one_object_a_line(store: Store) -> None:
    """All, or those that were chosen."""
    result = run("export")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second, _ = map(json.loads, result.stdout.splitlines())
    assert list(first) == [
        *("key", "reasoning", "calls", "details", "client", "conversation", "effort", "created", "used")
    ]
    assert (first["key"], first["reasoning"], first["effort"]) == (b"1".hex(), MARKER, "low")
    assert second["calls"] == [{"id": "x"}]
    chosen = run("export", "--client", "openwebui", "--conversation", "c2").stdout.splitlines()
    assert [json.loads(line)["key"] for line in chosen] == [b"2".hex()]


def test_export_of_nothing(store: Store) -> None:
    """Is empty; the reason is on stderr."""
    result = run("export", "--client", "nobody")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there is no turn of client 'nobody'\n")


def test_a_closed_pipe_ends_an_export_quietly(store: Store) -> None:
    """As of `| head -1`."""
    for number in range(3000):
        store.put_turn(Turn(number.to_bytes(4, "big"), "thought " * 20))
    assert store.flush()
    command = [sys.executable, "-m", "proxy", "store", "export"]
    root = Path(cli.__file__).parent.parent
    with subprocess.Popen(  # noqa: S603 - our own words
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["reasoning"] == MARKER
        process.stdout.close()
        assert process.stderr.read() == b""


# forget


def test_forget_leaves_no_byte(store: Store, path: Path) -> None:
    """Neither in the file nor in its log, while a proxy has it open; the ledger keeps its row."""
    packed = zlib.compress(LONG.encode())
    assert MARKER.encode() in on_disk(path)
    assert packed in on_disk(path)
    result = run("forget", "--client", "openwebui")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("2 turns forgotten, ")
    assert MARKER.encode() not in on_disk(path)
    assert packed not in on_disk(path)
    assert b"another thought" in on_disk(path)
    assert [row["request_id"] for row in store.entries()] == ["r"]
    assert store.healthy()


@pytest.mark.parametrize("seed", range(3))
def test_forget_leaves_no_byte_of_rows_that_were_moved(store: Store, path: Path, seed: int) -> None:
    """SQLite moves rows between pages when others come and go; what it leaves behind goes, too."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    turns = []
    for number in range(2000):
        mine = chance.random() < 0.3
        text = ("merk mich " if mine else "") + chance.randbytes(chance.choice([10, 30, 40, 600])).hex()
        client = "mine" if mine else chance.choice(["a", "b"])
        turns.append(Turn(number.to_bytes(4, "big"), text, client=client, weaker=(chance.randbytes(16),)))
        store.put_turn(turns[-1])
        store.put_turn(chance.choice(turns))
        if number % 200 == 0:
            assert store.flush()
    assert store.flush()
    for client in ("a", "mine"):
        assert run("forget", "--client", client).exit_code == 0
    assert b"merk mich" not in on_disk(path)


def test_forget_a_conversation(store: Store, path: Path) -> None:
    """Of the client's others nothing goes."""
    assert run("forget", "--conversation", "c1", "--client", "openwebui").stdout.startswith("1 turn forgotten, ")
    assert MARKER.encode() not in on_disk(path)
    assert json.loads(run("stats", "--json").stdout)["turns"] == 2


def test_forget_of_nobody(store: Store) -> None:
    """Is no failure, but is said: the name may be misspelt."""
    result = run("forget", "--client", "nobody", "--conversation", "c1")
    assert (result.exit_code, result.stdout) == (0, "0 turns forgotten, 0 bytes\n")
    assert result.stderr == "there is no turn of client 'nobody' and conversation 'c1'\n"


def test_forget_wants_to_know_whose(store: Store) -> None:
    """Without an option nothing is deleted."""
    result = run("forget")
    assert result.exit_code == 2
    assert "--client" in result.stderr
    assert json.loads(run("stats", "--json").stdout)["turns"] == 3


def test_forget_says_when_the_log_could_not_be_emptied(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because somebody reads an older state: the turns are gone, but not yet their bytes, and `prune` removes these."""
    monkeypatch.setattr("proxy.store.schema.BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM turns").fetchone()
        result = run("forget", "--client", "openwebui")
        assert result.exit_code == 1
        assert "proxy.db-wal could not be emptied" in result.stderr
        assert "store prune" in result.stderr
        assert json.loads(run("stats", "--json").stdout)["turns"] == 1
    assert run("prune").exit_code == 0
    assert MARKER.encode() not in on_disk(path)


# How far it is


def told_of(path: Path, work: str, *arguments: object, later: float = 0) -> list[tuple[int, int]]:
    """What an upkeep's method tells of its progress, so many seconds from now."""
    told: list[tuple[int, int]] = []
    with open_upkeep(f"sqlite:///{path}", now=lambda: time.time() + later) as upkeep:
        done = getattr(upkeep, work)(*arguments, told=lambda *both: told.append(both))
        list(done if work == "export" else [])
    return told


def test_progress_counts_up_to_all_that_there_is(store: Store, path: Path) -> None:
    """In steps; of the turns that are chosen, or over the limits."""
    many(store, 250)
    assert told_of(path, "export", None, None) == [(100, 253), (200, 253), (253, 253)]
    assert told_of(path, "export", "openwebui", None) == [(2, 2)]
    assert told_of(path, "forget", "many", "c1") == [(0, 0)]
    assert told_of(path, "forget", None, "c1") == [(1, 1)]
    assert told_of(path, "prune", Limits(max_age_days=3), later=2 * DAY) == [(0, 0)]
    assert told_of(path, "prune", Limits(max_age_days=1), later=2 * DAY) == [
        *((done, 252) for done in (100, 200, 252)),
    ]


def test_progress_towards_a_size_is_an_estimate_that_is_never_passed(store: Store, path: Path) -> None:
    """Turns are taken for equally large."""
    letters = random.Random(1)  # noqa: S311 - no secret
    for number in range(500):
        store.put_turn(Turn(number.to_bytes(4, "big"), letters.randbytes(letters.randrange(8000)).hex()))
    assert store.flush()
    told = told_of(path, "prune", Limits(max_mb=1))
    done, whole = told[-1]
    assert whole * 0.7 < done <= whole
    assert all(one <= all_ for one, all_ in told)


def many(store: Store, count: int) -> None:
    """More turns, of a client of their own."""
    for number in range(count):
        store.put_turn(Turn(b"many" + number.to_bytes(4, "big"), f"thought {number}", client="many"))
    assert store.flush()


@pytest.mark.parametrize(
    ("command", "bar"),
    [
        (("export",), "writing turns"),
        (("prune", "--max-age-days", "1"), "deleting turns"),
        (("forget", "--client", "many"), "deleting turns"),
    ],
)
def test_a_bar_on_the_terminal_and_only_data_in_the_pipe(
    store: Store, path: Path, command: tuple[str, ...], bar: str
) -> None:
    """It says how many turns of how many, and is gone at the end; a pipe for both gets no bar."""
    many(store, 120)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE turns SET used = 1 WHERE client = 'many'")
        connection.commit()
    with Path("out").open("wb") as out, on_terminal("store", *command, stdout=out) as terminal:
        assert terminal.wait() == 0
        assert bar in terminal.shown
        assert f"{123 if command == ('export',) else 120}/" in terminal.shown
        assert terminal.shown.endswith("\x1b[2K")  # the last line is erased
    written = Path("out").read_bytes()
    assert b"\x1b" not in written
    if command == ("export",):
        assert [json.loads(each)["client"] for each in written.splitlines()].count("many") == 120
    else:
        assert written.startswith(b"120 turns ")


@pytest.mark.parametrize("command", [("export",), ("prune",), ("forget", "--client", "openwebui")])
def test_no_bar_without_a_terminal(store: Store, command: tuple[str, ...]) -> None:
    """stderr has words alone, and here none."""
    ended = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "proxy", "store", *command], capture_output=True, check=True, timeout=60
    )
    assert ended.stderr == b""
    assert b"\x1b" not in ended.stdout


def test_an_export_to_the_terminal_itself_has_no_bar(store: Store) -> None:
    """It would stand between the turns."""
    with on_terminal("store", "export") as terminal:
        assert terminal.wait() == 0
        assert len([json.loads(each) for each in terminal.shown.splitlines()]) == 3


def test_help_says_that_the_ledger_stays() -> None:
    """Whoever must delete more has to know."""
    assert "ledger keeps its rows" in " ".join(run("forget", "--help").stdout.split())
