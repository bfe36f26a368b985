"""What turn memory costs: CPU time and queries to prepare a request against a long history, and bytes on disk.

    python bench/restoring.py [--turns 10,30,100,300,1000] [--rounds 9]

Each history is a tool loop: an assistant message with one call and its result, for each of which a thought of about
1,000 bytes is restored. CPU time of the whole process, the least of the rounds: it varies less than wall time.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from proxy import history, keys, normalise, policy
from proxy.dialects import DIALECTS
from proxy.families import load
from proxy.messages import Facts, Plan
from proxy.recall import Recalled, Recaller
from proxy.remember import Answer, Rememberer
from proxy.store import sqlite
from proxy.store.turns import Turns
from proxy.turns import Found, Turn

WORDS = Path(__file__).with_name("words.txt")
SCOPE = keys.scope(b"salt", "key", None, "kimi-k3")
FACTS = Facts("local", "llama-server", load().named("kimi-k3"), "m", effort_option="thinking_effort")
PARTS = ("read", "keys", "find", "recall", "restore", "write")


def thought(seed: int, size: int = 1000) -> str:
    """Prose of about that many bytes, as repetitive as prose is."""
    chance = random.Random(seed)  # noqa: S311 - the same text in every run
    words = WORDS.read_text("utf-8").split()
    weights = [1 / (rank + 2) for rank in range(len(words))]
    return " ".join(chance.choices(words, weights, k=size // 6))


def chat(count: int) -> list[dict[str, Any]]:
    """A tool loop of so many turns."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent. " * 50},
        {"role": "user", "content": "Tidy the data folder."},
    ]
    for at in range(count):
        arguments = json.dumps({"cmd": f"ls -la /data/{at}", "timeout": 30})
        call = {"id": f"functions.run:{at}", "type": "function", "function": {"name": "run", "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "one line of a listing\n" * 40})
    return messages


def kept(messages: list[dict[str, Any]]) -> list[Turn]:
    """The turns of a chat, as a proxy would have stored them."""
    request = normalise.read(json.dumps({"model": "m", "messages": messages}).encode())
    found: list[Turn] = []
    known: dict[int, Recalled] = {}
    for at, message in enumerate(request.messages):
        if message.role == "assistant":
            before = request.messages[:at]
            rememberer = Rememberer(keys.Chain(before, SCOPE), before, before, known)
            found += rememberer.answered(Answer("", message.calls, thought(at)))
            known[at] = Recalled(found[-1], found[-1].reasoning)
    return found


class Prepared:
    """One request, prepared step by step; `cpu` has the seconds of each."""

    def __init__(self, store: Any, body: bytes) -> None:
        self._store = store
        self._body = body
        self.cpu: dict[str, float] = {}

    async def run(self) -> Plan:
        """All steps from the client's bytes to those for the backend."""
        request = self._timed("read", lambda: normalise.read(self._body))
        chain = self._timed("keys", lambda: keys.Chain(request.messages, SCOPE))
        started = time.process_time()
        found: Found = await self._store.find(list(chain.keys.values()))
        if weaker := chain.weaker_than(found.exact):
            found = replace(found, sole=(await self._store.find((), weaker)).sole)
        self.cpu["find"] = time.process_time() - started
        known = self._timed("recall", lambda: Recaller(chain, request.messages, found, None).all())
        begun = Plan(request, FACTS, request.messages)
        made = self._timed("restore", lambda: self._decided(begun, known))
        self._timed("write", lambda: DIALECTS["llama-server"].encode(made))
        return made

    def _decided(self, plan: Plan, known: Any) -> Plan:
        return policy.decide(
            history.restore(plan, known, history.Restoring(), answer=5000), policy.Terms(policy.Policy())
        )

    def _timed(self, name: str, step: Callable[[], Any]) -> Any:
        started = time.process_time()
        value = step()
        self.cpu[name] = time.process_time() - started
        return value


async def measure(count: int, rounds: int, folder: Path) -> None:
    """Print one line for a history of so many turns."""
    path = folder / f"{count}.db"
    store = sqlite.SqliteStore(path)
    messages = chat(count)
    told = kept(messages)
    text = sum(len(turn.reasoning.encode()) + len(turn.calls.encode()) for turn in told)
    for turn in told:
        store.put_turn(turn)
    store.flush()
    queries = 0

    class Counted(Turns):
        def __init__(self, connection: sqlite3.Connection) -> None:
            nonlocal queries
            queries += 1
            super().__init__(connection)

    body = json.dumps({"model": "m", "messages": messages}).encode()
    best: dict[str, float] = {}
    original, sqlite.Turns = sqlite.Turns, Counted  # type: ignore[misc]
    for _ in range(rounds):
        queries = 0
        one = Prepared(store, body)
        plan = await one.run()
        if plan.history.restored != count:
            raise SystemExit(f"not all thoughts came back: {plan.history}")
        for name, seconds in one.cpu.items():
            best[name] = min(best.get(name, seconds), seconds)
    sqlite.Turns = original  # type: ignore[misc]
    store.close()
    parts = "  ".join(f"{best[name] * 1000:7.2f}" for name in PARTS)
    total = sum(best.values()) * 1000
    size = path.stat().st_size
    print(f"{count:6}  {len(body) / 1000:8.0f}  {parts}  {total:8.2f}  {queries:7}  {size / text:9.2f}")


async def main() -> None:
    """Measure all histories."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", default="10,30,100,300,1000")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    print("CPU ms to prepare a request; disk is the file's size against that of the texts in it")
    print(f" turns  body, kB  {'  '.join(f'{name:>7}' for name in PARTS)}     total  lookups       disk")
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, asked.turns.split(",")):
            await measure(count, asked.rounds, Path(folder))


uvloop.run(main())  # as the server does
