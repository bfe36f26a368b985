"""A soak test: many slow streams at once through the real proxy, for minutes, and an account of every event.

    python bench/soak.py [--streams 1000] [--seconds 300] [--seed 1] [--pace 1.0] [--command COMMAND] [--quick]

Three processes: a scripted backend (`soak_backend.py`), the proxy as users start it, and this one, which is all of its
clients. One answer in twenty is reset by the backend, one client in ten leaves, one request in ten wants a whole
answer, and after three answers in ten the conversation goes on without their thoughts, which the backend must get back
byte for byte. Each request is known by its number, which stands in its question, in each event of its answer, and in
its cap, so in its row of the ledger.

Prints each check with its figure (`none`: nothing came up for it), and exits with 1 where one fails. Linux only: it
reads /proc. Times are those of all three processes, and of whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from soak_backend import ABRUPT, EVENTS, Fate, fate, more_files, summed

from proxy.demo.server import environment, free_port, healthy

CONFIG = """\
[backends.soak]
url = "http://127.0.0.1:{port}/v1"
engine = "openai"
family = "generic"
models = ["soak"]
slow = false

[policy]
sampling = "client"

[store]
url = "sqlite:///{folder}/soak.db"
ledger_jsonl = "{folder}/ledger.jsonl"
"""
CAP = 100_000
"""A request asks for so many tokens and its number: a field of the ledger that tells which one a row is about."""
LATE = 2.0
"""Seconds after which the backend must know that a client is gone."""
GROWTH, GROWTH_YOUNG = 0.05, 0.10
"""How much memory and files may grow by their trend, after the start: in a minute or more; and in less, while a process
still warms up."""
SETTLES = 20
"""Seconds after the last stream within which the proxy lets go of connections that it keeps for a while."""
READS = 0.3
"""Seconds that the proxy has at the least to read a request before its client leaves: else it never was one."""
PULSE = 0.05
"""Seconds from one look at the clock to the next, by which this process sees how late it is itself."""
SPARE_FILES = 200
"""What a process opens beside its connections, amply."""
WRONG = ("Traceback", " ERROR ", " CRITICAL ")
"""What no line of the proxy's log has after a good run."""
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclass(slots=True)
class Ask:
    """One request, as its client sees it."""

    number: int
    fate: Fate
    status: int = 0
    request_id: str = ""
    seen: list[int] = field(default_factory=list)
    """Numbers of the events that came."""
    sum: int = 0
    text: str = ""
    finished: bool = False
    usage: bool = False
    done: bool = False
    error: str = ""
    left: float | None = None
    """When the client went away."""
    problem: str = ""
    """What no client should meet."""

    def event(self, payload: bytes, now: float) -> float | None:
        """Take one event of the stream; how old it is, if it tells."""
        if self.done:
            self.problem = "something came behind [DONE]"
        if payload == b"[DONE]":
            self.done = True
            return None
        body = json.loads(payload)
        if "error" in body:
            self.error = str(body["error"].get("code"))
            return None
        self.usage = self.usage or bool(body.get("usage"))
        for choice in body["choices"]:
            self.finished = self.finished or choice["finish_reason"] is not None
            delta = choice["delta"]
            if thought := delta.get("reasoning_content"):
                return self._said(thought, now, thought=True)
            if text := delta.get("content"):
                return self._said(text, now, thought=False)
        return None

    def _said(self, text: str, now: float, *, thought: bool) -> float | None:
        mark, _, _ = text.partition(" ")
        numbers, _, clock = mark.partition("@")
        number, _, at = numbers.partition(".")
        if number != str(self.number):
            self.problem = f"an event of request {number}"
            return None
        self.seen.append(int(at))
        self.sum = summed(self.sum, thought=thought, text=text)
        if not thought:
            self.text += text
        return now - float(clock)

    def whole(self, body: bytes) -> None:
        """Take a body: the answer, or an error."""
        read = json.loads(body)
        if "error" in read:
            self.error = str(read["error"].get("code"))
            return
        choice = read["choices"][0]
        self.finished = self.done = choice["finish_reason"] is not None
        self.usage = bool(read.get("usage"))
        message = choice["message"]
        for thought, text in ((True, message["reasoning_content"]), (False, message["content"])):
            for piece in _pieces(text, self.number):
                self._said(piece, 0.0, thought=thought)


def _pieces(text: str, number: int) -> Iterator[str]:
    """The pieces that a whole text was made of."""
    return filter(None, re.split(rf"(?:^|(?<= ))(?={number}\.\d+@)", text))


class Line:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reusable = True

    @classmethod
    async def open(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def post(self, body: bytes) -> None:
        """Send a chat request."""
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the response."""
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.reusable = headers.get("connection") != "close"
        return int(status.split(" ")[1]), headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """A body that comes in chunks."""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def body(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    @property
    def closed(self) -> bool:
        """The proxy has hung up."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self, *, abrupt: bool = False) -> None:
        """Hang up; `abrupt`: with RST."""
        if abrupt:
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
            self._writer.transport.abort()
        else:
            self._writer.close()


class Clients:
    """All clients of the proxy: each place has one conversation after the other."""

    def __init__(self, port: int, seed: int, pace: float) -> None:
        self._port = port
        self._seed = seed
        self._pace = pace
        self._numbers = itertools.count(1)
        self._chance = random.Random(seed)  # noqa: S311 - pauses, not secrets
        self.asks: list[Ask] = []
        self.delays = array("d")
        self.late = array("d")
        self.ends: dict[int, float] = {}
        """When [DONE] came, by the number of the request."""
        self.running = self.events = 0
        self.stopping = False

    async def pulse(self) -> None:
        """Find out how late this process itself is."""
        while True:
            due = time.monotonic() + PULSE
            await asyncio.sleep(PULSE)
            self.late.append(time.monotonic() - due)

    async def place(self, begins: float) -> None:
        """Conversations, from then on until there shall be no more."""
        await asyncio.sleep(begins)
        while not self.stopping:
            await self._conversation()

    async def _conversation(self) -> None:
        messages: list[dict[str, str]] = []
        line: Line | None = None
        while True:
            number = next(self._numbers)
            messages.append({"role": "user", "content": f"What is the answer to question [{number}]?"})
            ask = Ask(number, fate(self._seed, number))
            self.asks.append(ask)
            self.running += 1
            try:
                line = await self._request(line, ask, messages)
            finally:
                self.running -= 1
            text, ask.text = ask.text, ""
            if not (ask.fate.goes_on and text) or self.stopping:
                break
            messages.append({"role": "assistant", "content": text})  # without the thought, as front ends do
            await asyncio.sleep(self._chance.random() / self._pace)
        if line is not None:
            line.close()

    async def _request(self, line: Line | None, ask: Ask, messages: list[dict[str, str]]) -> Line | None:
        """Send one request and hear its answer; the connection, where it can be used again."""
        body: dict[str, Any] = {"model": "soak", "messages": messages, "max_tokens": CAP + ask.number}
        if ask.fate.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            if line is None or line.closed:
                line = await Line.open(self._port)
            line.post(json.dumps(body).encode())
            if not await self._heard(line, ask):
                ask.left = time.monotonic()
                line.close(abrupt=ask.fate.abrupt)
                return None
            if line.reusable:
                return line
        except asyncio.CancelledError:
            ask.problem = "it did not come to its end"
            raise
        except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
            ask.problem = f"{type(error).__name__}: {error}"
            await asyncio.sleep(1 / self._pace)  # a proxy that is down is not asked as fast as that goes
        if line is not None:
            line.close()
        return None

    async def _heard(self, line: Line, ask: Ask) -> bool:
        """Hear the answer to its end; false where the client leaves before."""
        leaves = ask.fate.leaves_at
        seconds = None
        if leaves is not None and (not ask.fate.stream or leaves == 0):  # there is no event to count by
            seconds = READS + self._chance.random() * max(leaves, 1) / self._pace
        try:
            async with asyncio.timeout(seconds):
                ask.status, headers = await line.head()
                ask.request_id = headers.get("x-request-id", "")
                if "content-length" in headers:
                    ask.whole(await line.body(int(headers["content-length"])))
                    return True
                return await self._stream(line, ask, leaves)
        except TimeoutError:
            return False

    async def _stream(self, line: Line, ask: Ask, leaves: int | None) -> bool:
        rest = b""
        async for chunk in line.chunks():
            now = time.monotonic()
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                if event.startswith(b":"):
                    continue
                delay = ask.event(event.removeprefix(b"data: "), now)
                if delay is not None:
                    self.events += 1
                    self.delays.append(delay)
                if leaves and (ask.finished if leaves > ask.fate.events else ask.seen and ask.seen[-1] >= leaves):
                    return False
        if rest:
            ask.problem = "half an event at the end"
        self.ends[ask.number] = time.monotonic()
        return True


@dataclass(frozen=True, slots=True)
class Sample:
    """What the proxy holds at a moment."""

    at: float
    files: int
    memory: int
    """Kilobytes."""
    cpu: float
    """Seconds so far."""
    waited: float
    """Seconds in which its loop could have run, and other processes had the cores."""


def sample(process: int) -> Sample:
    """What /proc says of a process."""
    folder = Path(f"/proc/{process}")
    status = (folder / "status").read_text()
    ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    memory = int(status.partition("VmRSS:")[2].split()[0])
    cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    waited = int((folder / "schedstat").read_text().split()[1]) / 1e9  # of the main thread
    return Sample(time.monotonic(), len(os.listdir(folder / "fd")), memory, cpu, waited)


class Broken(Exception):
    """The run came to nothing; the proxy's log says more."""


class Children:
    """The other processes. None outlives this one, whatever ends it: the kernel sees to that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start one, in a session of its own: Ctrl-C comes to this process alone. What it says goes to `NAME.log`."""
        prctl = ctypes.CDLL(None).prctl
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        child = subprocess.Popen(  # noqa: S603 - our own words, or the user's
            command,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: prctl(DEATH_SIGNAL, signal.SIGKILL),  # noqa: PLW1509 - there are no threads yet
            **{"stdout": log, **more},
        )
        self._stack.callback(_end, child)
        return child


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    if child.poll() is None:
        child.kill()
    child.wait()


class Soak:
    """One run, from the first process to the last figure."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self._asked = asked
        self._folder = folder
        self._samples: list[Sample] = []

    async def run(self) -> bool:
        """Whether all checks were passed."""
        folder = self._folder
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, "by SIGTERM")
        with Children(folder) as children:
            backend = self._backend(children)
            port = free_port()
            proxy = self._proxy(children, port)
            if not healthy(port, proxy):
                raise Broken("the proxy does not start")
            clients = await self._load(proxy, port)
            await self._settled(proxy.pid)
            rows = _lines(folder / "ledger.jsonl")  # before it ends: a row is on disk within a second
            proxy.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                proxy.wait(60)
            assert backend.stdin is not None  # noqa: S101 - it is a pipe
            backend.stdin.close()
            backend.wait(10)
        made = {record["number"]: record for record in _lines(folder / "records.jsonl")}
        account = Account(clients.asks, made, rows)
        account.answers()
        account.ledger(folder / "soak.db")
        account.restored()
        self._held(account)
        account.check("the proxy ends after SIGTERM", proxy.returncode == 0, f"code {proxy.returncode}")
        log = (folder / "proxy.log").read_text().splitlines()
        wrong = [line for line in log if any(word in line for word in WRONG)]
        account.check("its log has no error", not wrong, f"{len(wrong)} of {len(log)} lines", wrong)
        self._figures(account, clients)
        return account.good

    def _backend(self, children: Children) -> subprocess.Popen[bytes]:
        """Start the backend, and tell the proxy's configuration where it is."""
        file, asked = Path(__file__).with_name("soak_backend.py"), self._asked
        words = ["--records", self._folder / "records.jsonl", "--seed", asked.seed, "--pace", asked.pace]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        backend = children.start("backend", [sys.executable, str(file), *map(str, words)], **pipes)
        assert backend.stdout is not None  # noqa: S101 - it is a pipe
        port = backend.stdout.readline().decode().strip()
        if not port:
            raise Broken("the backend does not start")
        (self._folder / "config.toml").write_text(CONFIG.format(port=port, folder=self._folder))
        return backend

    def _proxy(self, children: Children, port: int) -> subprocess.Popen[bytes]:
        words = ["serve", "--config", str(self._folder / "config.toml"), "--port", str(port)]
        more = {"env": environment(), "cwd": self._folder, "stdin": subprocess.DEVNULL}
        return children.start("proxy", [*shlex.split(self._asked.command), *words], **more)

    async def _load(self, proxy: subprocess.Popen[bytes], port: int) -> Clients:
        """All streams, until the last has ended."""
        asked = self._asked
        self._idle = sample(proxy.pid)
        clients = Clients(port, asked.seed, asked.pace)
        ramp = asked.seconds / 20
        self._full = self._idle.at + ramp
        pulse = asyncio.create_task(clients.pulse())
        places = [asyncio.create_task(clients.place(ramp * at / asked.streams)) for at in range(asked.streams)]
        every_place: asyncio.Future[Any] = asyncio.gather(*places, return_exceptions=True)
        watch = asyncio.create_task(self._watch(proxy, clients))
        try:
            await asyncio.wait({watch}, timeout=asked.seconds)
            clients.stopping = True
            self._over = time.monotonic()
            await asyncio.wait({every_place, watch}, timeout=30 + 120 / asked.pace, return_when="FIRST_COMPLETED")
            if watch.done():
                watch.result()
        finally:
            for task in (watch, pulse, *places):
                task.cancel()
            await asyncio.gather(watch, pulse, return_exceptions=True)
        for end in await every_place:
            if isinstance(end, Exception):
                raise end
        return clients

    async def _watch(self, proxy: subprocess.Popen[bytes], clients: Clients) -> None:
        """Sample what the proxy holds, and say how far it is. Raises Broken when it is gone."""
        every = min(5.0, self._asked.seconds / 50)
        said = time.monotonic()
        while True:
            await asyncio.sleep(every)
            if proxy.poll() is not None:
                raise Broken(f"the proxy ended under load, with code {proxy.returncode}")
            now = sample(proxy.pid)
            self._samples.append(now)
            if now.at - said >= 10:
                said = now.at
                print(
                    f"{now.at - self._idle.at:5.0f} s: {clients.running:5} running, {len(clients.asks):6} begun, "
                    f"{clients.events:8} events, {now.files:5} files, {now.memory / 1024:6.1f} MB, "
                    f"{now.cpu - self._idle.cpu:6.1f} CPU s",
                    file=sys.stderr,
                )

    async def _settled(self, proxy: int) -> None:
        """Wait till the proxy holds no more than before."""
        for _ in range(SETTLES):
            self._last = sample(proxy)
            if self._last.files <= self._idle.files:
                return
            await asyncio.sleep(1)

    def _held(self, account: Account) -> None:
        """Check what the proxy held: that its trend leads nowhere after the start.

        That is a fifth of the run, and at least, but for half of a short one, the life of the longest stream: before
        that all streams are young.
        """
        load = self._over - self._full
        begins = self._full + min(load / 2, max(load / 5, EVENTS[1] / self._asked.pace))
        chosen = [moment for moment in self._samples if begins <= moment.at <= self._over]
        times, seconds = [moment.at - begins for moment in chosen], self._over - begins
        for name, values in (
            ("open files", [moment.files for moment in chosen]),
            ("memory, kB", [moment.memory for moment in chosen]),
        ):
            slope, start = statistics.linear_regression(times, values)
            growth = slope * seconds / start
            figure = f"{values[0]} to {values[-1]}, trend {growth:+.1%} in {seconds:.0f} s"
            account.check(f"flat: {name}", growth <= (GROWTH if seconds >= 60 else GROWTH_YOUNG), figure)
        before, after, most = self._idle.files, self._last.files, max(moment.files for moment in self._samples)
        account.check("open files are as before", after <= before, f"{before} before, {most} at most, {after} after")

    def _figures(self, account: Account, clients: Clients) -> None:
        """What has no bound."""
        cpu, waited = self._last.cpu - self._idle.cpu, self._last.waited - self._idle.waited
        events = max(1, clients.events)
        for name, figure in (
            ("requests; events of streams", f"{len(clients.asks)}; {clients.events}"),
            ("CPU of the proxy", f"{cpu:.1f} s, {cpu / events * 1e6:.0f} us an event, whole requests included"),
            ("its loop waited for a core", f"{waited:.1f} s of {self._last.at - self._idle.at:.0f} s"),
            ("from the backend to the client, an event", _percentiles(sorted(clients.delays))),
            ("the same, the end of a stream", _percentiles(account.ends(clients.ends))),
            ("of these, timers of the clients were late", _percentiles(sorted(clients.late))),
            ("and of the backend, the latest of each answer", _percentiles(account.late())),
            ("events that were lost in a reset", account.lost()),
        ):
            print(f"      {name:50} {figure}")


class Account:
    """What the clients saw, against what the backend did and what the ledger says. Prints each check."""

    def __init__(self, asks: list[Ask], made: dict[int, dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        """`made` are the backend's records by the number of the request."""
        self._asks = {ask.number: ask for ask in asks}
        self._made = made
        self._rows = rows
        self.good = True

    def check(self, name: str, good: bool | None, figure: str, faults: Sequence[str] = ()) -> None:
        """Print what a check has come to, and what is wrong; None: there was nothing to be checked."""
        print(f"{'none' if good is None else 'PASS' if good else 'FAIL'}  {name:50} {figure}")
        for fault in faults[:10]:
            print(f"      {fault}")
        if len(faults) > 10:
            print(f"      and {len(faults) - 10} more")
        self.good = self.good and good is not False

    def answers(self) -> None:
        """Each answer is what was written, as far as nobody broke it off."""
        kinds: dict[str, list[Ask]] = {"complete": [], "broken": [], "left": []}
        for ask in self._asks.values():
            made = self._made.get(ask.number)
            broken = made is not None and made["end"] == "reset" and not made["finished"]
            kinds["left" if ask.left is not None else "broken" if broken else "complete"].append(ask)
        for kind, chosen in kinds.items():
            faults = _named((ask.number, _FAULTS[kind](ask, self._made.get(ask.number))) for ask in chosen)
            streams = sum(ask.fate.stream for ask in chosen)
            figure = f"{streams} streams and {len(chosen) - streams} whole answers"
            self.check(_MEANS[kind], not faults if chosen else None, figure, faults)
        left = ((self._made[ask.number], ask.left) for ask in kinds["left"] if ask.number in self._made)
        delays = sorted(record["at"] - at for record, at in left if at is not None)
        name = f"the backend is left within {LATE:.0f} s of its client"
        self.check(name, delays[-1] <= LATE if delays else None, _percentiles(delays))

    def ledger(self, store: Path) -> None:
        """Each request has one row, in both ledgers, which is true."""
        rows = {row["max_tokens_asked"] - CAP: row for row in self._rows}
        ids = {row["request_id"] for row in self._rows}
        with contextlib.closing(sqlite3.connect(store)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM requests").fetchone()
        faults = [f"request {number}: no row" for number in sorted(self._asks.keys() - rows.keys())]
        good = not faults and len(self._asks) == len(self._rows) == len(rows) == len(ids) == count
        figure = f"{len(self._asks)} requests, {len(self._rows)} lines, {count} in SQL, {len(ids)} ids"
        self.check("each request has one row", good, figure, faults)
        faults = _named(
            (number, _row_fault(self._asks[number], self._made.get(number), row))
            for number, row in rows.items()
            if number in self._asks
        )
        outcomes = Counter(row["outcome"] for row in self._rows).most_common()
        self.check("each row tells what happened", not faults, ", ".join(f"{n} {name}" for name, n in outcomes), faults)

    def restored(self) -> None:
        """The thoughts of complete answers went back, and no others."""
        counts, faults = Counter[str](), []
        for record in self._made.values():
            for earlier, came in record["history"]:
                counts[came] += 1
                # Where the finish was written and the client did not see it, the proxy may have come between.
                good = {"same"} if self._asks[earlier].finished else {"absent"}
                if earlier in self._made and self._made[earlier]["finished"]:
                    good.add("same")
                if came not in good:
                    faults.append(f"request {record['number']}: the thought of {earlier} is {came}")
        figure = f"{counts['same']} byte for byte, {counts['absent']} of broken turns stayed away"
        self.check("thoughts come back", not faults if counts["same"] else None, figure, faults)

    def ends(self, came: dict[int, float]) -> list[float]:
        """How long the ends of complete streams took, sorted."""
        complete = (number for number in came if self._made.get(number, {}).get("end") == "complete")
        return sorted(came[number] - self._made[number]["at"] for number in complete)

    def late(self) -> list[float]:
        """How late the backend was at the most, in each answer, sorted."""
        return sorted(record["late"] for record in self._made.values())

    def lost(self) -> str:
        """How much of what was written before a reset did not reach its client. A figure: it may be lost below us."""
        broken = [ask for number, ask in self._asks.items() if self._made.get(number, {}).get("end") == "reset"]
        tails = [
            len(self._made[ask.number]["sums"]) - len(ask.seen) for ask in broken if ask.fate.stream and not ask.left
        ]
        return f"{sum(tails)} in {sum(map(bool, tails))} of {len(tails)} streams"


def _complete(ask: Ask, made: dict[str, Any] | None) -> str:
    """What is wrong with an answer that nobody broke off; empty where nothing is."""
    if made is None:
        return ask.problem or "the backend was not asked"
    wrong = ask.problem or _differs(ask, made)
    if wrong or len(ask.seen) < len(made["sums"]):
        return wrong or f"{len(ask.seen)} of {len(made['sums'])} events came"
    if ask.status != 200 or ask.error or not (ask.finished and ask.done):
        return f"status {ask.status}, error {ask.error!r}, finish: {ask.finished}, [DONE]: {ask.done}"
    return "" if ask.usage or made["end"] == "reset" else "there is no usage"


def _broken(ask: Ask, made: dict[str, Any] | None) -> str:
    """The same for one that the backend reset."""
    assert made is not None  # noqa: S101 - it is the backend's record that says so
    if wrong := ask.problem or _differs(ask, made):
        return wrong
    told = (ask.status, ask.error, ask.finished, ask.done)
    whole = ask.fate.reset == "before" or not ask.fate.stream
    good = (502, "upstream_error", False, False) if whole else (200, "upstream_error", False, True)
    return "" if told == good else f"(status, error, finish, [DONE]) is {told}"


def _left(ask: Ask, made: dict[str, Any] | None) -> str:
    """The same for one that the client did not hear to its end."""
    return ask.problem or ("" if made is None else _differs(ask, made))


def _differs(ask: Ask, made: dict[str, Any]) -> str:
    """Whether what came is something else than the beginning of what was written."""
    sums, count = made["sums"], len(ask.seen)
    if ask.seen != list(range(1, count + 1)) or count > len(sums):
        lost = sorted(set(range(1, max(ask.seen))).difference(ask.seen))
        doubled = [at for at, times in Counter(ask.seen).items() if times > 1]
        return f"of {len(sums)} events lost {lost}, doubled {doubled}" + (
            "" if lost or doubled else ", in another order"
        )
    return "" if not count or ask.sum == sums[count - 1] else "the texts are others"


_FAULTS = {"complete": _complete, "broken": _broken, "left": _left}
_MEANS = {
    "complete": "answers that nobody broke off: each event once",
    "broken": "that the backend broke off: a part and an error",
    "left": "that the client left: a part",
}


def _row_fault(ask: Ask, made: dict[str, Any] | None, row: dict[str, Any]) -> str:
    """What is wrong with the row of a request."""
    finished, reset = (made["finished"], made["end"] == "reset") if made else (False, False)
    if ask.finished or (finished and ask.left is None):
        good = {"ok"}
    elif ask.left is None:
        good = {"upstream_error"}
    else:  # whichever came first
        good = {"client_disconnected"} | ({"ok"} if finished else {"upstream_error"} if reset else set())
    if row["outcome"] not in good:
        return f"its outcome is {row['outcome']}, not {' or '.join(sorted(good))}"
    if ask.request_id not in ("", row["request_id"]) or (ask.status and not ask.request_id):
        return "it has another id than the response"
    restored = sum(how == "same" for _, how in made["history"]) if made else row["turns_restored"]
    return "" if row["turns_restored"] == restored else f"turns_restored is {row['turns_restored']}, not {restored}"


def _named(faults: Iterable[tuple[int, str]]) -> list[str]:
    """Those that are some, with the numbers of their requests."""
    return [f"request {number}: {fault}" for number, fault in faults if fault]


def _percentiles(seconds: Sequence[float]) -> str:
    """Of sorted seconds."""
    if not seconds:
        return "none"
    half, most, last = (seconds[int(part * (len(seconds) - 1))] * 1000 for part in (0.5, 0.99, 1))
    return f"p50 {half:.1f} ms, p99 {most:.1f} ms, at most {last:.1f} ms ({len(seconds)})"


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, help="at a time (1000)")
    parser.add_argument("--seconds", type=float, help="after which no new one begins (300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, help="events a second of one stream (1)")
    parser.add_argument(
        "--command",
        default=shlex.quote(str(Path(sys.executable).with_name("reasoning-proxy"))),
        help="the proxy, as a process of its own and not behind a wrapper (the one beside this Python)",
    )
    parser.add_argument("--quick", action="store_true", help="100 streams at 5 events a second for 20 s")
    asked = parser.parse_args()
    for name, long, short in (("streams", 1000, 100), ("seconds", 300.0, 20.0), ("pace", 1.0, 5.0)):
        if getattr(asked, name) is None:
            setattr(asked, name, short if asked.quick else long)
        if getattr(asked, name) <= 0:
            parser.error(f"--{name} must be more than 0")
    if not Path("/proc/self/fd").is_dir():
        parser.error("there is no /proc here: this test counts the open files of the proxy there, on Linux")
    needed, limit = 2 * asked.streams + SPARE_FILES, more_files()
    if limit < needed:
        parser.error(f"{asked.streams} streams need {needed} open files, and the hard limit (ulimit -Hn) is {limit}")
    return asked


def main() -> None:
    """Run it; the folder with logs, ledger and records stays where a check failed."""
    asked = options()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    good = gone = False
    try:
        good = uvloop.run(Soak(asked, folder).run())
    except (asyncio.CancelledError, KeyboardInterrupt) as reason:
        gone = True
        print("broken off", *reason.args, file=sys.stderr)
    except Broken as problem:
        print(problem, file=sys.stderr)
    finally:
        if good or gone:
            shutil.rmtree(folder)
        else:
            print(f"logs, ledger and records are in {folder}", file=sys.stderr)
    sys.exit(130 if gone else 0 if good else 1)


if __name__ == "__main__":
    main()
