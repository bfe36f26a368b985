"""`proxy.store.Store` in front of the tables of any engine: a queue that is found in, and a thread that reads."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from proxy.messages import Entry
from proxy.speeds import Speed
from proxy.store.disk import Disk
from proxy.store.found import merge
from proxy.store.ledger import Ledger
from proxy.store.lines import Lines
from proxy.store.writer import Complete, Writer
from proxy.thoughts import Thought
from proxy.turns import Found, Turn

log = logging.getLogger(__name__)


class QueuedStore:
    """A store whose puts wait in memory until one thread has written them."""

    shared: ClassVar[bool] = False
    """Other processes are expected to ask for the turns of this one."""

    readers: ClassVar[int] = 1
    """Threads that read."""

    def __init__(self, disk: Disk, lines: Lines | None = None) -> None:
        self._disk = disk
        self._writer = Writer(disk, lines)
        self._reads = ThreadPoolExecutor(max_workers=self.readers, thread_name_prefix="store-reader")
        self._readable = True
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    @property
    def salt(self) -> bytes:
        """32 random bytes of this store."""
        return self._disk.salt

    async def find(self, keys: Sequence[bytes], weaker: Sequence[bytes] = ()) -> Found:
        """What is known of the keys: in memory, and on disk by one query outside the event loop."""
        # Memory first: the writer takes a turn out of it only after it is on disk.
        held = self._writer.find(keys, weaker)
        if self._closed or not (keys or weaker):
            return merge(held)
        try:
            loop = asyncio.get_running_loop()
            stored = await loop.run_in_executor(self._reads, self._disk.find, keys, weaker)
        except self._disk.errors as error:
            if self._readable:
                log.error("the store cannot be read (%s): turns are not found", error)
            self._readable = False
            return merge(held)
        self._readable = True
        if stored.stale:
            self._writer.mark_used(stored.stale)
        return merge(held, stored)

    def put_turn(self, turn: Turn) -> None:
        """Keep a turn."""
        self._writer.put(turn)

    def put_entry(self, entry: Entry, complete: Complete | None = None) -> None:
        """Append a ledger row, completed by `complete` in the writer's thread."""
        self._writer.put(entry, complete)

    def recent_speeds(self) -> dict[tuple[str, str], Speed]:
        """(backend, upstream model) → what its rows that are written tell, smoothed."""
        return self._disk.speeds()

    def recent_thoughts(self, limit: int = 10_000) -> list[Thought]:
        """Those of the last `limit` rows that are written, oldest first."""
        return self._disk.thoughts(limit)

    def entries(self, limit: int | None = None, *, own: bool = False) -> list[dict[str, Any]]:
        """The last rows of the ledger, newest last, after a flush; with `own` only those of this store object."""
        self.flush()
        return self._disk.entries(limit, own)

    def ledger(self) -> Ledger:
        """The ledger for reading, after a flush."""
        self.flush()
        return self._disk.ledger()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was put before is on disk; false if that took longer than `timeout` seconds."""
        return self._writer.flush(timeout)

    async def written(self, seconds: float) -> None:
        """Wait, so long at the most, until all that was put before is on disk."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by then
                loop.call_soon_threadsafe(done.set)

        self._writer.tell(tell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await done.wait()

    def healthy(self) -> bool:
        """Whether the writer lives and the last write and the last read were good."""
        return self._readable and self._writer.healthy()

    def close(self) -> None:
        """Flush, end the threads, close the file. Closing again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            self._reads.shutdown()
            if self._writer.close():
                self._disk.close()
            else:
                log.error("the store's writer did not end in time: what it had not written is lost")
