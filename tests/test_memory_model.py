"""Random chats against a model of the memory: no wrong thought, and none missed where the exact prefix is there.

Users, edits, regenerations, branches, trims, merges, summaries, repeated ids, equal texts, lost calls, mirrored
thoughts, restarts, clients that leave, and requests at once. What may go upstream is said in `memory_model.py`, what
clients do is here, and what is drawn depends on the seed alone.

    pytest tests/test_memory_model.py                                              # as in CI: about 400 steps
    MEMORY_MODEL_STEPS=10000 pytest tests/test_memory_model.py            # as every night
    MEMORY_MODEL_SEED=7 MEMORY_MODEL_STEPS=300 pytest tests/test_memory_model.py
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from memory_model import Ask, Call, Chat, Fault, Generation, Line, Memory, Scope, Style, call_id, shape, visible_paths
from running import events, settings

from proxy import AsyncTransport
from proxy.testing import FakeBackend, Reply, Request, ToolCall, answer

STEPS = int(os.environ.get("MEMORY_MODEL_STEPS", "400"))
SEED = os.environ.get("MEMORY_MODEL_SEED")
SEEDS = [int(SEED)] if SEED else [1, 2, 3, 4]

USERS = [("sk-anna", ""), ("sk-ben", ""), ("sk-webui", "7"), ("sk-webui", "8")]
SCOPES = [Scope(key, end_user, model) for key, end_user in USERS for model in ("m", "n")]
SYSTEMS = ["", "Today is Monday.", "Today is Tuesday."]
QUESTIONS = ["hi", "And now?", "Go on ", "List /data, please.", "Why is that?\n"]
RESULTS = ["a.txt b.txt", "", "no such file\n"]
TEXTS = ["Yes.", "No. ", "\n\nTwo files.\n", "I look.\n", "Done", *(f"Report {n}: {'word ' * 50}\n" for n in (1, 2))]
CALLS: list[Call] = [("ls", '{"path": "/data", "all": true}'), ("ls", "{}"), ("cat", '{"lines": 3, "file": "a.txt"}')]
FRONT_ENDS = ["drop"] * 6 + ["blank", "keep", "trim", "rewrite", "think", "details"]
PIECE = 12  # characters of an event of a stream

OPERATIONS = {"talk": 24, "regenerate": 8, "edit": 5, "branch": 5, "trim": 5, "summarise": 3, "merge": 6}
OPERATIONS |= {"lose_calls": 4, "change_front_end": 7, "change_system": 3, "copy_to_another_scope": 4, "repeat": 4}
OPERATIONS |= {"several_at_once": 6, "leave": 4, "restart": 3, "start": 6}
"""What happens, and how often."""


@dataclass
class Sending:
    """A request with the answer that it will get; after `leave` events of it the client goes away."""

    ask: Ask
    generation: Generation
    reply: Reply
    stream: bool
    leave: int = 0


class World:
    """Clients, their chats, and the proxy between them and a scripted backend."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.step, self.operation = seed, 0, ""
        self.random = Random(seed)  # noqa: S311 - a seed must give the same steps again
        self.memory = Memory()
        self.faults: list[tuple[Fault, str]] = []
        self._store = f"sqlite:///{folder / 'turns.db'}"
        self._sendings: dict[str, Sending] = {}
        self._said: dict[Any, list[tuple[str, tuple[Call, ...]]]] = {}
        self.chats: list[Chat] = []

    async def play(self, steps: int) -> None:
        """So many random steps."""
        async with FakeBackend(rules=self._answer, style="llama-server") as self.backend:
            self._open()
            for self.step in range(1, steps + 1):
                self.chats = [chat for chat in self.chats[-10:] if len(chat.lines) < 24] or [self._new_chat()]
                (self.operation,) = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()))
                await getattr(self, self.operation)(self.random.choice(self.chats))
            await self._http.aclose()

    async def talk(self, *chats: Chat) -> None:
        """Go on: results of the calls that were made, or a further question; all chats at once."""
        await self._ask(*map(self._prepared, chats))

    async def regenerate(self, chat: Chat) -> None:
        """Another answer to the same history."""
        while chat.lines and chat.lines[-1].role == "assistant":
            chat.lines.pop()
        await self.talk(chat)

    async def edit(self, chat: Chat) -> None:
        """An earlier question gets other words, and what stood behind it is gone."""
        if places := [at for at, line in enumerate(chat.lines) if line.role == "user"]:
            chat.lines[self.random.choice(places) :] = [Line("user", self.random.choice(QUESTIONS))]
        await self.talk(chat)

    async def branch(self, chat: Chat) -> None:
        """A copy of the chat, perhaps under the same header; both go on."""
        other = self._copy(chat, conversation=self.random.choice([chat.conversation, self._header()]))
        await self.talk(chat)
        await self.talk(other)

    async def trim(self, chat: Chat) -> None:
        """The front of the history goes, be it in the middle of a tool loop."""
        chat.lines[: self._some_of(chat)] = []
        await self.talk(chat)

    async def summarise(self, chat: Chat) -> None:
        """One message stands for the front of the history."""
        chat.lines[: self._some_of(chat)] = [Line("user", f"Summary: {self.random.choice(QUESTIONS)}")]
        await self.talk(chat)

    async def merge(self, chat: Chat) -> None:
        """Two assistant messages become one, and the results of their calls follow."""
        self._next(chat)
        lines = chat.lines
        turns = [at for at, line in enumerate(lines) if line.role == "assistant"]
        pairs = [pair for pair in pairwise(turns) if {line.role for line in lines[pair[0] + 1 : pair[1]]} <= {"tool"}]
        if pairs:
            at, other = self.random.choice(pairs)
            one, two = lines[at], lines[other]
            text = "\n\n".join(filter(None, (one.text, two.text)))
            both = Line("assistant", text, one.calls + two.calls, one.origins + two.origins)
            lines[at : other + 1] = [both, *lines[at + 1 : other]]
        await self.talk(chat)

    async def lose_calls(self, chat: Chat) -> None:
        """An assistant message keeps its text alone, though the results of its calls stay."""
        if places := [at for at, line in enumerate(chat.lines[:-1]) if line.calls]:
            at = self.random.choice(places)
            chat.lines[at] = replace(chat.lines[at], calls=(), lost=chat.lines[at].calls)
        await self.talk(chat)

    async def change_front_end(self, chat: Chat) -> None:
        """The chat goes on in a program that keeps, changes and mirrors other things."""
        chat.style = self._style()
        await self.talk(chat)

    async def change_system(self, chat: Chat) -> None:
        """Another day, another system prompt."""
        chat.system = self.random.choice(SYSTEMS)
        await self.talk(chat)

    async def copy_to_another_scope(self, chat: Chat) -> None:
        """Another user, or another model, is given the same words."""
        other = self._copy(chat, scope=self.random.choice(SCOPES))
        other.lines = [replace(line, thought="") for line in chat.lines]
        await self.talk(other)

    async def repeat(self, chat: Chat) -> None:
        """The same user says the same in a new chat and gets the same answers; then both go on."""
        other = self._new_chat(chat.scope)
        for line, path in zip(chat.lines[:8], visible_paths(chat.lines), strict=False):
            if line.role != "assistant":
                other.lines.append(line)
            elif [turn.path for turn in line.origins] == [path]:
                await self._ask(self._prepared(other, (line.text, line.calls)))
            else:
                break  # the model did not say it there
        await self.talk(chat)
        await self.talk(other)

    async def several_at_once(self, chat: Chat) -> None:
        """Requests of several chats are on their way together."""
        await self.talk(*{id(one): one for one in (chat, *self.random.choices(self.chats, k=3))}.values())

    async def leave(self, chat: Chat) -> None:
        """The client goes away in mid-stream; it may keep what it has read."""
        sending = self._prepared(chat)
        most = len(sending.generation.thought + sending.generation.text) // PIECE  # and an event that opens the message
        sending.leave = 1 + int(most * self.random.choice([0.3, 0.9, 1]))
        sending.reply = sending.reply.first(sending.leave).then_stall()
        sending.stream = True
        await self._ask(sending)

    async def restart(self, chat: Chat) -> None:
        """The proxy ends and begins anew with the same file."""
        await self._http.aclose()
        self._open()
        await self.talk(chat)

    async def start(self, _: Chat) -> None:
        """A new chat; its first words are those of many."""
        await self.talk(self._new_chat())

    def _new_chat(self, scope: Scope | None = None) -> Chat:
        scope = scope or self.random.choice(SCOPES)
        return self._kept(Chat(scope, self.random.choice(SYSTEMS[:2]), self._header(), self._style()))

    def _copy(self, chat: Chat, **changes: Any) -> Chat:
        return self._kept(replace(chat, lines=[*chat.lines], story=[*chat.story], **changes))

    def _kept(self, chat: Chat) -> Chat:
        self.chats.append(chat)
        return chat

    def _header(self) -> str:
        return self.random.choice(["", "", f"chat-{self.random.randrange(10**6)}"])

    def _style(self) -> Style:
        strip, spell = self.random.choices([False, False, True], k=2)
        return Style(self.random.choice(FRONT_ENDS), strip, spell, self.random.choice(["", None]))

    def _some_of(self, chat: Chat) -> int:
        """How many of its messages go, not all."""
        return self.random.randrange(len(chat.lines)) if chat.lines else 0

    def _next(self, chat: Chat) -> None:
        """What a client says next, if it is its turn."""
        last = chat.lines[-1] if chat.lines else Line("assistant", "")
        if last.role == "assistant":
            ids = [call_id(name, at) for at, (name, _) in enumerate(last.calls)]
            results = [Line("tool", self.random.choice(RESULTS), call_id=id) for id in ids]
            chat.lines += results or [Line("user", self.random.choice(QUESTIONS))]

    def _prepared(self, chat: Chat, said: tuple[str, tuple[Call, ...]] | None = None) -> Sending:
        """The chat's next request and its answer, which is visibly often that of another chat with the same history."""
        self._next(chat)
        number = len(self._sendings) + 1
        ask = Ask(number, chat, self.memory.tick())
        told = self._said.setdefault(ask.paths[-1], [])
        said = said or (self.random.choice(told) if told and self.random.random() < 0.5 else self._words(number))
        told.append(said)
        about = f"#{number}# {chat.scope.key} is asked\nand\u2028I think."
        (thought,) = self.random.choices(["", about, f"\n{about}", f"{about}\n "], [1, 5, 5, 5])
        generation = ask.generation = Generation(number, ask, thought, *said)
        chat.last = ask
        calls = [ToolCall(name, arguments, call_id(name, at)) for at, (name, arguments) in enumerate(generation.calls)]
        reply = answer(generation.text, reasoning=thought or None, calls=calls, split=PIECE)
        sending = Sending(ask, generation, reply, stream=self.random.random() < 0.5)
        self._sendings[str(number)] = sending
        return sending

    def _words(self, number: int) -> tuple[str, tuple[Call, ...]]:
        """A visible answer: a text of a few, a rare one, or calls with or without a text."""
        pick = self.random.random()
        if pick < 0.6:
            return self.random.choice(TEXTS) if pick > 0.1 else f"Report {number}: {'rare word ' * 25}", ()
        rare = ("cat", f'{{"lines": 3, "file": "{number}.txt"}}')
        calls = self.random.sample([*CALLS, rare, rare, rare], self.random.choice([1, 1, 2]))
        return self.random.choice(["", TEXTS[3]]), tuple(calls)

    def _answer(self, request: Request) -> Reply:
        """The backend's rule."""
        sending = self._sendings[request.headers["x-sending"]]
        sending.ask.arrives(request.raw, self.memory.tick())
        self.memory.begins(sending.generation)
        return sending.reply

    async def _ask(self, *sendings: Sending) -> None:
        """Send them together, and look at what the backend received."""
        await asyncio.gather(*map(self._send, sendings))
        for sending in sendings:
            self.faults += [(fault, self.operation) for fault in self.memory.faults(sending.ask)]

    async def _send(self, sending: Sending) -> None:
        """Read the answer to its end and keep it, or leave, and perhaps keep the text so far."""
        ask, generation, chat = sending.ask, sending.generation, sending.ask.chat
        headers = {"authorization": f"Bearer {ask.scope.key}", "x-sending": str(ask.number)}
        headers |= {"x-openwebui-user-id": ask.scope.end_user} if ask.scope.end_user else {}
        headers |= {"x-session-id": ask.conversation} if ask.conversation else {}
        body = {"model": ask.scope.model, "stream": sending.stream, "messages": ask.sent}
        heard = ""
        async with self._http.stream("POST", "/chat/completions", json=body, headers=headers) as response:
            async for piece in response.aiter_text():
                heard += piece
                if sending.leave and len(events(heard)) >= sending.leave:
                    break
        assert response.status_code == 200, heard
        thought, text, calls = message(events(heard) if sending.stream else [heard])
        end = f"left after {text!r}" if sending.leave else f"answer {ask.number} {text[:20]!r}"
        chat.story.append(f"step {self.step}, {self.operation}: {shape(ask.lines)} -> {end}")
        if not sending.leave:
            assert (thought, text, calls) == (generation.thought, generation.text, generation.calls)
            generation.kept, generation.done = True, self.memory.tick()
            chat.lines.append(Line("assistant", text, calls, (generation,), thought))
        elif text.strip() and ask.number % 4:
            chat.lines.append(Line("assistant", text))

    def _open(self) -> None:
        tables = {
            "store": {"url": self._store},
            "families": {"one": {"history": "all"}, "two": {"history": "all"}},
            "models": {"n": {"backend": "local", "upstream": "m", "family": "two"}},
        }
        given = settings(self.backend.url, engine="llama-server", family="one", **tables)
        self._http = httpx.AsyncClient(transport=AsyncTransport(given), base_url="http://proxy.invalid/v1", timeout=20)


def message(payloads: Sequence[str]) -> tuple[str, str, tuple[Call, ...]]:
    """Thought, text and calls of an answer, whole or streamed."""
    thought = text = ""
    calls: dict[int, list[str]] = {}
    for payload in payloads:
        for choice in json.loads(payload)["choices"] if payload != "[DONE]" else ():
            said = choice.get("message") or choice["delta"]
            thought += said.get("reasoning_content") or ""
            text += said.get("content") or ""
            for at, call in enumerate(said.get("tool_calls") or []):
                known = calls.setdefault(call.get("index", at), ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
    return thought, text, tuple((name, arguments) for name, arguments in calls.values())


def report(world: World) -> str:
    """What went wrong: how often, and the first of each kind with the story of its chat."""
    counts = Counter((fault.kind, operation) for fault, operation in world.faults)
    lines = [f"seed {world.seed}: {len(world.faults)} faults, {dict(world.memory.counts)}"]
    lines += [f"  {count} x {kind} after {operation}" for (kind, operation), count in counts.most_common()]
    for fault in {fault.kind: fault for fault, _ in reversed(world.faults)}.values():
        ask, place = fault.ask, fault.at + fault.ask.shift
        lines += ["", f"{fault.kind}: message {place} of {ask.scope}, {ask.system=}, {ask.conversation=}, {ask.style}"]
        lines += [f"  it says    {shape(ask.lines[: fault.at + 1])}: {ask.sent[place]}"]
        lines += [f"  received   {ask.received[place]}", f"  right is   {fault.why}"]
        lines += [f"  {line}" for line in ask.chat.story[max(0, ask.told - 9) : ask.told + 1]]
    return "\n".join(lines)


@pytest.mark.timeout(60 + STEPS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_thought_is_wrong_and_none_is_missed(seed, tmp_path):
    """Whatever clients do, each thought that goes upstream is a right one, and the exact prefix finds its own."""
    world = World(seed, tmp_path)
    await world.play(STEPS // len(SEEDS))
    if world.faults:
        pytest.fail(report(world), pytrace=False)
    assert all(world.memory.counts[kind] for kind in ("exact", "own", "weak", "grown")), world.memory.counts
