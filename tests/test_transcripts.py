"""What each engine writes, played through the whole proxy and read by the official SDK.

A file `transcripts/ENGINE-VERSION/SITUATION.toml` is one answer, twice: `stream` and `whole` are the bytes of the
engine's body, and `choices` with `usage` is what a client shall read from either of them. What a choice does not name
is empty; a call is its id, name and arguments, and an empty id is one that the proxy has to make up. The client's usage
has all that `usage` names. `engine` is the name in the configuration, and `wire` says what is done with the bytes:

    crlf: lines end in CR LF        gzip: the body is compressed        bytewise: each byte is a write

Seen on the wire of llama.cpp b11434 and vLLM 0.32.0, read in the sources of vLLM, SGLang 0.5.23, Ollama 0.33 and
Moonshot's official clients, or in the documentation and recorded answers of the others; LM Studio's are put together
from its changelog. `odd` has what servers were reported to send.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from running import Running, serving

from proxy import config
from proxy.dialects import DIALECTS
from proxy.testing import FakeBackend, Reply, Request, raw

FOLDER = Path(__file__).parent / "transcripts"
USER = {"role": "user", "content": "hi"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("ls", "read")
]
MEDIA = {True: "text/event-stream", False: "application/json"}


@dataclass(frozen=True)
class Transcript:
    """One answer of one engine, and what it says."""

    name: str
    engine: str
    stream: bytes
    whole: bytes
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None
    wire: list[str]

    @classmethod
    def read(cls, file: Path) -> Transcript:
        """A transcript from its file."""
        told = tomllib.loads(file.read_text("utf-8"))
        empty: dict[str, Any] = {
            "role": "assistant",
            "reasoning": "",
            "content": "",
            "finish_reason": None,
            "tool_calls": [],
        }
        return cls(
            name=file.relative_to(FOLDER).with_suffix("").as_posix(),
            engine=told["engine"],
            stream=told["stream"].encode(),
            whole=told["whole"].encode(),
            choices=[empty | choice for choice in told["choices"]],
            usage=told.get("usage"),
            wire=told.get("wire", []),
        )

    def reply(self, *, stream: bool, cuts: Sequence[int]) -> Reply:
        """What the backend answers: a write an event, or cut at these places."""
        data = self.stream if stream else self.whole
        headers = {"content-type": MEDIA[stream]}
        if "crlf" in self.wire:
            data = data.replace(b"\n", b"\r\n")
        places = [end.end() for end in re.finditer(b"\r?\n\r?\n", data)]
        if "bytewise" in self.wire:
            places = list(range(len(data)))
        if "gzip" in self.wire:
            data, places, headers["content-encoding"] = gzip.compress(data), [], "gzip"
        places = sorted({0, *(place % len(data) for place in cuts or places)})
        return raw(*(data[start:end] for start, end in itertools.pairwise([*places, len(data)])), headers=headers)


TRANSCRIPTS = {transcript.name: transcript for transcript in map(Transcript.read, sorted(FOLDER.glob("*/*.toml")))}
every_transcript = pytest.mark.parametrize("transcript", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
in_module = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Stage:
    """One proxy in front of one scripted backend, which plays what is put on."""

    proxy: Running
    sdk: openai.AsyncOpenAI
    playing: dict[str, Any]

    def put_on(self, transcript: Transcript, cuts: Sequence[int] = ()) -> dict[str, Any]:
        """Let the backend answer with a transcript; gives a request that fits.

        The SDK is not told of the tools: it would parse their arguments, and raise where they are cut or interleaved.
        """
        self.playing.update(transcript=transcript, cuts=cuts)
        return {"model": transcript.engine, "messages": [USER], "extra_body": {"tools": TOOLS}}

    async def body(self, transcript: Transcript, cuts: Sequence[int] = (), *, usage: bool) -> bytes:
        """The bytes of a stream as they leave the proxy."""
        self.put_on(transcript, cuts)
        request = {"model": transcript.engine, "messages": [USER], "tools": TOOLS, "stream": True}
        if usage:
            request["stream_options"] = {"include_usage": True}
        answer = await self.proxy.http.post(f"{self.proxy.url}/chat/completions", json=request)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == MEDIA[True]
        return answer.content


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """The stage of all tests here: each engine is a backend of its own, and a model of that name."""
    playing: dict[str, Any] = {}

    def rules(request: Request) -> Reply:
        transcript: Transcript = playing["transcript"]
        return transcript.reply(stream=bool(request.get("stream")), cuts=playing["cuts"])

    async with FakeBackend(rules=rules) as backend:
        one = {"url": backend.url, "family": "generic", "slow": False}
        backends = {
            name: {**one, "engine": name, "models": [name]} for name in {t.engine for t in TRANSCRIPTS.values()}
        }
        tables = {"backends": backends, "server": {"port": 0}, "store": {"url": "memory"}}
        async with serving(config.load(overrides=tables, environ={}, read_file=False)) as proxy:
            async with openai.AsyncOpenAI(base_url=proxy.url, api_key="unused", max_retries=0) as sdk:
                yield Stage(proxy, sdk, playing)


def message_of(choice: Any) -> dict[str, Any]:
    """What one choice of an SDK's answer says, in the words of the transcripts."""
    message = choice.message
    calls = message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    return {
        "role": message.role,
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "content": message.content or "",
        "finish_reason": choice.finish_reason,
        "tool_calls": [[call.id, call.function.name, call.function.arguments] for call in calls],
    }


def assert_says(heard: list[dict[str, Any]], transcript: Transcript) -> None:
    """The choices that were heard are those of the transcript. Made-up ids are not blank, and each is another one."""
    ids = [call[0] for choice in heard for call in choice["tool_calls"]]
    assert all(isinstance(id, str) and id.strip() for id in ids)
    assert len(set(ids)) == len(ids)
    for choice, told in zip(heard, transcript.choices, strict=True):
        for call, (id, *_) in zip(choice["tool_calls"], told["tool_calls"], strict=False):
            call[0] = id and call[0]
    assert heard == transcript.choices


def assert_counts(usage: Any, transcript: Transcript) -> None:
    """The usage is the engine's, and nobody's where it gave none."""
    told = transcript.usage
    if told is None or usage is None:
        assert usage is told
        return
    found = usage.model_dump()
    for name, value in told.items():
        inner = {key: found[name][key] for key in value} if isinstance(value, dict) else found[name]
        assert inner == value


@every_transcript
@in_module
async def test_the_sdks_accumulator_reads_a_stream_as_the_message_that_it_is(stage, transcript):
    """`chat.completions.stream()` adds up to the message and its usage: role, ids and names are said once."""
    request = stage.put_on(transcript)
    async with stage.sdk.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        await stream.until_done()
        heard = stream.current_completion_snapshot
        if all(choice["finish_reason"] != "length" for choice in transcript.choices):
            assert await stream.get_final_completion()  # it raises for a cut answer
    assert_says([message_of(choice) for choice in heard.choices], transcript)
    assert_counts(heard.usage, transcript)


@every_transcript
@in_module
async def test_a_plain_loop_over_the_chunks_hears_the_same(stage, transcript):
    """Agent code takes id and name from a call's first fragment, and looks into every chunk without asking."""
    told: dict[int, dict[str, Any]] = {}
    async for chunk in await stage.sdk.chat.completions.create(**stage.put_on(transcript), stream=True):
        assert chunk.usage is None
        for choice in chunk.choices:
            empty: dict[str, Any] = {
                "role": "",
                "reasoning": "",
                "content": "",
                "finish_reason": None,
                "tool_calls": [],
            }
            one = told.setdefault(choice.index, empty)
            one["role"] += choice.delta.role or ""
            one["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            one["content"] += choice.delta.content or ""
            one["finish_reason"] = choice.finish_reason or one["finish_reason"]
            for part in choice.delta.tool_calls or []:
                if part.index == len(one["tool_calls"]):
                    one["tool_calls"].append([part.id, part.function.name, ""])
                one["tool_calls"][part.index][2] += part.function.arguments or ""
    assert_says([told[index] for index in sorted(told)], transcript)


@every_transcript
@in_module
async def test_a_whole_answer_is_the_same_message_as_the_streamed_one(stage, transcript):
    """Thought, text, calls, finish and usage do not depend on how they were asked for."""
    heard = await stage.sdk.chat.completions.create(**stage.put_on(transcript))
    assert_says([message_of(choice) for choice in heard.choices], transcript)
    assert_counts(heard.usage, transcript)


@every_transcript
@pytest.mark.parametrize("asked", [True, False], ids=["usage", "no-usage"])
@in_module
async def test_what_leaves_as_a_stream_is_strict(stage, transcript, asked):
    """One `data` line an event and `[DONE]` at the end, each finish once, each call opened in order and once, and the
    usage last, in a chunk of its own, only for who asked for it."""
    chunks = chunks_of(await stage.body(transcript, usage=asked))
    assert all(chunk["object"] == "chat.completion.chunk" and isinstance(chunk["choices"], list) for chunk in chunks)
    used = [at for at, chunk in enumerate(chunks) if chunk.get("usage") is not None]
    assert len(used) == (asked and transcript.usage is not None)
    assert all(chunks[at]["choices"] == [] for at in used)

    finishes, roles, opened = Counter[int](), Counter[int](), dict[int, list[str]]()
    for at, choice in choices_of(chunks):
        assert type(choice["index"]) is int
        assert choice.get("usage") is None
        reason, delta = choice.get("finish_reason"), choice["delta"]
        assert reason is None or reason.strip()
        finishes[choice["index"]] += reason is not None
        assert not (reason and any(at > last for last in used))
        roles[choice["index"]] += delta.get("role") is not None
        assert delta.get("reasoning") is None  # this client knows the thought by its other name
        for fragment in delta.get("tool_calls") or []:
            assert_goes_on(opened.setdefault(choice["index"], []), fragment)
    expected = range(len(transcript.choices))
    assert finishes == roles == Counter(expected)
    assert [len(opened.get(index, [])) for index in expected] == [len(one["tool_calls"]) for one in transcript.choices]


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    """The JSON of a stream's events. Each is one line, and nothing stands beside them."""
    assert b"\r" not in body
    *events, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def choices_of(chunks: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each choice of each chunk, with the number of its chunk."""
    return ((at, choice) for at, chunk in enumerate(chunks) for choice in chunk["choices"])


def assert_goes_on(opened: list[str], fragment: dict[str, Any]) -> None:
    """A fragment opens the next call, whole in its id, type and name, or brings an opened one more arguments alone."""
    index, function = fragment["index"], fragment["function"]
    assert type(index) is int
    assert isinstance(function.get("arguments", ""), str)
    if index < len(opened):
        assert not {"id", "type", "name"} & (fragment.keys() | function.keys())
        return
    assert index == len(opened)
    assert fragment["type"] == "function"
    assert function["name"]
    assert isinstance(fragment["id"], str)
    assert fragment["id"].strip()
    opened.append(fragment["id"])


CUT = [
    "llama-server-b11434/two-calls",
    "openrouter/one-call",
    "moonshot/two-calls",
    "minimax/thought-and-answer",
    "odd/bytewise",
    "odd/crlf",
    "odd/gzip",
    "odd/id-late",
    "odd/two-choices-with-calls",
]


@given(name=st.sampled_from(CUT), cuts=st.lists(st.integers(0, 10_000), min_size=1, max_size=12))
@hypothesis_settings(max_examples=60, deadline=None)
@in_module
async def test_where_the_network_cuts_changes_no_byte(stage, name, cuts):
    """Inside a tag, a character, a line end or an event: what leaves is what leaves for one event a write."""
    transcript = TRANSCRIPTS[name]
    assert await stage.body(transcript, cuts, usage=True) == await stage.body(transcript, usage=True)


def test_every_engine_thinks_answers_and_calls():
    """Each engine has an answer, one call and two calls."""
    found: dict[str, set[str]] = {}
    for name in TRANSCRIPTS:
        engine, _, situation = name.partition("/")
        found.setdefault(engine, set()).add(situation.removeprefix("thought-and-"))
    lacking = {engine: {"answer", "one-call", "two-calls"} - has for engine, has in found.items() if engine != "odd"}
    assert {engine: names for engine, names in lacking.items() if names} == {}


def test_every_engine_has_transcripts():
    """An engine without an answer that it really sends is a guess."""
    assert {transcript.engine for transcript in TRANSCRIPTS.values()} >= set(DIALECTS)
