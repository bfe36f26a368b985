"""The model server of the soak test: paced streams on loopback, some of which it resets, and a record of each.

    python bench/soak_backend.py --records FILE [--seed 1] [--pace 1.0]

Prints its port, serves until its standard input ends, and has then written one JSON line a request. It is an
`asyncio.Protocol` whose streams are generators of pauses: no HTTP library, no task a stream, so that it leaves the
processor to the proxy.

What happens to a request hangs on the seed and its number alone (`fate`), whenever it comes. The driver knows the same
fates, and leaves some of the requests as they say.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import uvloop

STREAMS_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE_HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
QUESTION = re.compile(r"\[(\d+)\]")
ABRUPT = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends RST."""
EVENTS = (20, 60)
"""How many an answer has, at the least and at the most."""
LAST_GAP = 0.05
"""Seconds between the finish, the usage and a reset behind them."""
AT_ONCE = 0.001
"""The same between a write and a reset: the loop has given all to the kernel, and little more time has passed."""
WORDS = (
    *(
        "the",
        "sea",
        "is",
        "\u00e9t\u00e9",
        "\u601d\u8003",
        "a\nline",
        '"so"',
        "back\\slash",
        "\U0001f30a",
        "\u2028",
        "<b>",
    ),
    *("{x}", "tab\t", "data:", "nought", "&amp;", "\u05e9\u05dc\u05d5\u05dd", "[DONE]"),
)
"""Texts that go wrong where somebody takes them apart carelessly."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to happen to one request."""

    stream: bool
    thoughts: int
    """Events with a piece of the thought; those with a piece of the text follow."""
    words: int
    reset: str
    """`before` the headers, in the `middle`, `behind` the finish, or never."""
    reset_at: int
    """So many events come before a reset in the middle."""
    reset_pause: float
    """And this part of a pause: none at all is the moment at which what was written may be lost."""
    leaves_at: int | None
    """The event with which the client leaves, 0: before the first, one more than there are: with the finish."""
    abrupt: bool
    """It leaves with RST."""
    goes_on: bool
    """The conversation has another turn."""

    @property
    def events(self) -> int:
        return self.thoughts + self.words


def fate(seed: int, number: int) -> Fate:
    """The fate of the request of this number."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - the same in every run
    events = chance.randint(*EVENTS)
    thoughts = chance.randint(5, events - 5)
    return Fate(
        stream=chance.random() >= 0.10,
        thoughts=thoughts,
        words=events - thoughts,
        reset=chance.choice(("before", "middle", "behind")) if chance.random() < 0.05 else "",
        reset_at=chance.randint(0, events),
        reset_pause=chance.choice((0.0, chance.random())),
        leaves_at=chance.randint(0, events + 1) if chance.random() < 0.10 else None,
        abrupt=chance.random() < 0.4,
        goes_on=chance.random() < 0.3,
    )


def summed(before: int, *, thought: bool, text: str) -> int:
    """A running checksum over the events of an answer: of what, in which order. Both sides reckon it."""
    return zlib.crc32((b"t" if thought else b"s") + text.encode(), before)


def more_files() -> int:
    """Raise this process's limit of open files as far as it goes; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Backend:
    """What all connections share: settings, the thoughts that may come back, the records."""

    def __init__(self, seed: int, pace: float, records: TextIO) -> None:
        self.seed = seed
        self.thoughts: dict[int, str] = {}
        self._pace = pace
        self._records = records
        self._chance = random.Random(seed)  # noqa: S311 - pauses, not secrets

    def pause(self) -> float:
        """Seconds to the next event."""
        return self._chance.uniform(0.5, 1.5) / self._pace

    def keep(self, record: dict[str, Any]) -> None:
        """Write a record."""
        self._records.write(json.dumps(record, separators=(",", ":")) + "\n")


class Connection(asyncio.Protocol):
    """One connection of the proxy, and the answer that runs on it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._data = b""
        self._answer: Answer | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return
        self._data = rest[size:]
        if head.startswith(b"POST /v1/chat/completions "):
            self._answer = Answer(self._backend, self, json.loads(rest[:size]))
            return
        known = head.startswith(b"GET /v1/models ")
        body = b'{"object":"list","data":[{"id":"soak","object":"model"}]}' if known else b'{"error":{"message":"no"}}'
        self.transport.write(WHOLE_HEAD % (b"200 OK" if known else b"404 Not Found", len(body), b"") + body)

    def connection_lost(self, _: Exception | None) -> None:
        if self._answer is not None:
            self._answer.ended("gone")

    def reset(self) -> None:
        """End it with RST."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        self.transport.abort()


class Answer:
    """One answer while it is written, and its record."""

    def __init__(self, backend: Backend, connection: Connection, asked: dict[str, Any]) -> None:
        self._backend = backend
        self._connection = connection
        self._number = int(QUESTION.findall(asked["messages"][-1]["content"])[0])
        self._fate = fate(backend.seed, self._number)
        self._history = self._came_back(asked["messages"])
        self._sums: list[int] = []
        self._finished = self._over = False
        self._due = self._late = 0.0
        self._loop = asyncio.get_running_loop()
        self._steps = self._stream() if asked.get("stream") else self._whole()
        self._step()

    def _step(self) -> None:
        """Write what is due, and come again after the pause that the answer wants."""
        if self._due:
            self._late = max(self._late, self._loop.time() - self._due)
        pause = next(self._steps, None)
        if pause is not None:
            self._due = self._loop.time() + pause
            self._timer = self._loop.call_at(self._due, self._step)

    def ended(self, how: str) -> None:
        """It is over: `complete`, `reset`, or the other side is `gone`."""
        if how == "gone":
            self._timer.cancel()
        if self._over:
            return
        self._over = True
        self._backend.keep(
            {
                "number": self._number,
                "sums": self._sums,
                "finished": self._finished,
                "end": how,
                "at": time.monotonic(),
                "late": self._late,
                "history": self._history,
            }
        )

    def _came_back(self, messages: list[dict[str, Any]]) -> list[tuple[int, str]]:
        """For each earlier turn its number, and whether its thought came back the `same`, as an `other`, or not."""
        found, number = [], -1
        for message in messages[:-1]:
            if message["role"] == "user":
                number = int(QUESTION.findall(message["content"])[0])
                continue
            thought = message.get("reasoning_content")
            right = thought == self._backend.thoughts.get(number)
            found.append((number, "absent" if thought is None else "same" if right else "other"))
        return found

    def _text(self, at: int) -> str:
        """The piece of the answer that the event of this number has; the clock is the same in all processes."""
        word = WORDS[(self._number + at) % len(WORDS)]
        text = f"{self._number}.{at}@{time.monotonic():.6f} {word} "
        thought = at <= self._fate.thoughts
        self._sums.append(summed(self._sums[-1] if self._sums else 0, thought=thought, text=text))
        if thought and self._fate.goes_on:
            self._backend.thoughts[self._number] = self._backend.thoughts.get(self._number, "") + text
        return text

    def _reset(self) -> None:
        self.ended("reset")
        self._connection.reset()

    def _stream(self) -> Iterator[float]:
        """A stream of events, as the pauses between them."""
        plan, write = self._fate, self._connection.transport.write
        start = (
            f'{{"id":"chatcmpl-{self._number}","object":"chat.completion.chunk","created":1,"model":"soak","choices":'
        )
        yield self._backend.pause()
        if plan.reset == "before":
            return self._reset()
        write(STREAMS_HEAD + _chunk(f'{start}[{{"index":0,"delta":{{"role":"assistant"}},"finish_reason":null}}]}}'))
        for at in range(plan.events + 1):
            if plan.reset == "middle" and at == plan.reset_at:
                yield self._backend.pause() * plan.reset_pause or AT_ONCE
                return self._reset()
            yield self._backend.pause()
            if at == plan.events:
                break
            name = "reasoning_content" if at < plan.thoughts else "content"
            delta = f'{{"{name}":{json.dumps(self._text(at + 1), ensure_ascii=False)}}}'
            write(_chunk(f'{start}[{{"index":0,"delta":{delta},"finish_reason":null}}]}}'))
        write(_chunk(f'{start}[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}'))
        self._finished = True
        yield LAST_GAP
        if plan.reset == "behind" and plan.reset_pause:
            return self._reset()
        usage = _chunk(f'{start}[],"usage":{json.dumps(self._usage())}}}')
        if plan.reset == "behind":
            write(usage)
            yield AT_ONCE
            return self._reset()
        write(usage + _chunk("[DONE]") + b"0\r\n\r\n")
        self.ended("complete")

    def _whole(self) -> Iterator[float]:
        """The same answer as one body, after the same time."""
        plan, write = self._fate, self._connection.transport.write
        thought, said = (
            "".join(self._text(at) for at in part)
            for part in (range(1, plan.thoughts + 1), range(plan.thoughts + 1, plan.events + 1))
        )
        waited, most = 0.0, plan.reset_at if plan.reset == "middle" else plan.events
        for _ in range(most + 1):
            waited += self._backend.pause()
        yield waited
        if plan.reset == "before":
            return self._reset()
        message = {"role": "assistant", "reasoning_content": thought, "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": f"chatcmpl-{self._number}", "object": "chat.completion", "created": 1, "model": "soak"}
        body = json.dumps({**head, "choices": [choice], "usage": self._usage()}).encode()
        closes = b"connection: close\r\n" if plan.reset else b""
        sent = WHOLE_HEAD % (b"200 OK", len(body), closes) + body
        if plan.reset == "middle":
            write(sent[: -len(body) // 2])
            yield AT_ONCE
            return self._reset()
        write(sent)
        self._finished = True
        self.ended("complete")
        if plan.reset == "behind":
            yield AT_ONCE
            self._connection.reset()

    def _usage(self) -> dict[str, int]:
        events = self._fate.events
        return {"prompt_tokens": 50, "completion_tokens": events, "total_tokens": 50 + events}


def _chunk(payload: str) -> bytes:
    data = b"data: %b\n\n" % payload.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(backend: Backend) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(backend), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)  # nothing is ever written to it
    await ended.wait()
    server.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="events a second of one stream")
    asked = parser.parse_args()
    more_files()
    with asked.records.open("w", encoding="utf-8") as records:
        uvloop.run(serve(Backend(asked.seed, asked.pace, records)))


if __name__ == "__main__":
    main()
