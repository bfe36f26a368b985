"""What an answer came to: tokens by whoever knows them best, and money by whatever bills it."""

from __future__ import annotations

import asyncio
import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from running import Running, serving, settings

from proxy import prices, tokens
from proxy.counting import counted
from proxy.dialects.reading import usage_of
from proxy.errors import ConfigError
from proxy.events import Event, Part, Usage
from proxy.fold import Fold
from proxy.testing import FakeBackend, Request, answer, document, events

THOUGHT, TEXT = "one two three four five six", "seven eight"
COUNT = st.none() | st.integers(0, 5000)


def folded(reasoning: str, text: str) -> Fold:
    """An answer that said so."""
    fold = Fold()
    fold.add(Event(b"", [Part(reasoning=reasoning, text=text)]))
    return fold


@given(
    usage=st.builds(Usage, COUNT, COUNT, COUNT, COUNT),
    reasoning=st.text(max_size=40),
    text=st.text(max_size=40),
    own=st.none() | st.integers(0, 9000),
)
@examples(deadline=None)
def test_the_parts_are_never_negative_and_always_add_up(
    usage: Usage, reasoning: str, text: str, own: int | None
) -> None:
    """Whatever was reported, seen, and counted by whomever."""
    found = counted(folded(reasoning, text), usage, lambda _: own)
    if found is None:
        assert usage.completion is None
        return
    assert found.reasoning >= 0
    assert found.visible >= 0
    assert found.reasoning + found.visible == found.completion
    if usage.completion is not None:
        assert found.completion == usage.completion
    if usage.completion is None or own is None:
        assert found.source in ("estimated", "reported")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(["cost", "cost_details", "upstream_inference_cost", "is_byok", "prompt_tokens"]), inner
        ),
        max_leaves=8,
    )
)
def test_any_usage_can_be_read(value: object) -> None:
    """A service may report anything; a cost is a number that is not negative."""
    found = usage_of({"prompt_tokens": 1, "completion_tokens": 2, "cost": value, "cost_details": value})
    assert found.cost is None or (found.cost.is_finite() and found.cost >= 0)


def test_a_thought_as_long_as_the_whole_beside_a_text_is_not_believed() -> None:
    """It counts something else."""
    found = counted(folded(THOUGHT, TEXT), Usage(completion=12, reasoning=12), lambda text: len(text.split()))
    assert found is not None
    assert (found.reasoning, found.visible, found.source) == (6, 6, "tokenized")


def by_words(request: Request):
    """A tokenizer whose tokens are words."""
    body = request.body
    return document({"tokens": (body.get("content") or body.get("prompt")).split()})


@pytest.mark.parametrize("style", ["llama-server", "vllm", "sglang"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_counts_the_thought_that_it_does_not_report(style: str, stream: bool) -> None:
    """Off the client's path, by its own tokenizer; what is neither thought nor text is mark-up, and visible."""
    usage = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    reply = answer(TEXT, reasoning=THOUGHT, usage=usage)
    async with FakeBackend(reply, style=style, paths={"/tokenize": by_words}) as backend:
        async with serving(settings(backend.url, engine=style)) as proxy:
            await proxy.chat(stream=stream)
            (row,) = await proxy.rows()
    assert (row["completion_tokens"], row["reasoning_tokens"], row["visible_tokens"]) == (12, 6, 6)
    assert row["reasoning_source"] == "tokenized"


async def test_an_engine_that_does_not_count_is_not_waited_for() -> None:
    """Nor asked again for a while; the row has an estimate."""
    usage = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    reply = answer(TEXT, reasoning=THOUGHT, usage=usage)
    asked = list[Request]()

    def silent(request: Request):
        asked.append(request)
        return document({}).after(30)

    async with FakeBackend(reply, style="llama-server", paths={"/tokenize": silent}) as backend:
        async with serving(settings(backend.url, engine="llama-server")) as proxy:
            await asyncio.wait_for(proxy.chat(stream=True), 5)
            await proxy.rows(1)
            await asyncio.wait_for(proxy.chat(stream=True), 5)
            rows = await proxy.rows(2)
    assert [row["reasoning_source"] for row in rows] == ["estimated", "estimated"]
    assert len(asked) == 1


def vocabulary(path: Path, *words: str) -> Path:
    """A tiktoken.model file of all bytes and some words."""
    known = [bytes([byte]) for byte in range(256)]
    for word in words:
        known += [word.encode()[:end] for end in range(2, len(word) + 1)]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(dict.fromkeys(known))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_a_model_s_own_vocabulary_counts_its_tokens(tmp_path: Path) -> None:
    """As tiktoken reads the file."""
    path = vocabulary(tmp_path / "tiktoken.model", "hello")
    assert tokens.count("hello", tokens.vocabulary(str(path), "")) == 1
    assert tokens.count("hexxo", tokens.vocabulary(str(path), "")) == 4


@pytest.mark.parametrize("text", ["", "no vocabulary", "aGVsbG8= one", "aGVsbG8= 1"])
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    """Where it cannot be read, and where bytes are missing from it."""
    path = tmp_path / "tiktoken.model"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"tiktoken\.model"):
        tokens.vocabulary(str(path), "")


async def test_a_vocabulary_counts_where_the_engine_does_not(tmp_path: Path) -> None:
    """`backends.X.tokenizer`."""
    path = vocabulary(tmp_path / "tiktoken.model", "thought")
    reply = answer("said", reasoning="thought", usage={"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14})
    async with FakeBackend(reply, style="ollama") as backend:
        local = {"url": backend.url, "engine": "ollama", "models": ["m"], "slow": False, "tokenizer": str(path)}
        async with serving(settings(backend.url, engine="ollama", backends={"local": local})) as proxy:
            await proxy.chat()
            (row,) = await proxy.rows()
    assert (row["reasoning_tokens"], row["visible_tokens"], row["reasoning_source"]) == (1, 8, "tokenized")


def test_a_bad_vocabulary_is_named_before_anything_is_served(tmp_path: Path) -> None:
    """With its place in the settings."""
    with pytest.raises(ConfigError, match=r"backends\.local\.tokenizer: .*cannot be read"):
        settings("http://127.0.0.1:1/v1", backends={"local": {"url": "http://h/v1", "tokenizer": str(tmp_path / "no")}})


def test_what_goes_into_a_cache_has_its_own_price() -> None:
    """500 anew at 2, 300 from the cache at 1, 200 into it at 4, by the million."""
    price = prices.Price(input=2, output=0, cached_input=1, cache_write=4)
    usage = Usage(prompt=1000, cached=300, completion=0, written=200)
    assert prices.cost(usage, price) == Decimal("0.0021")
    assert prices.saved(usage, price) == Decimal("0.0003")


USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cached_tokens": 900}


async def priced(backend: FakeBackend, engine: str = "kimi", **tables) -> dict[str, Any]:
    """The row of one answer."""
    async with serving(settings(backend.url, engine=engine, **tables)) as proxy:
        await proxy.chat(model=tables.get("model", "m"))
        return (await proxy.rows())[0]


async def test_a_service_is_billed_by_the_public_table_and_one_s_own_goes_first() -> None:
    """kimi-k3: 100 anew at 3, 900 from the cache at 0.3, 100 written at 15."""
    models: dict[str, dict[str, Any]] = {"m": {"backend": "local", "upstream": "kimi-k3"}}
    async with FakeBackend(answer("ok", usage=USAGE), style="kimi", model="kimi-k3") as backend:
        row = await priced(backend, models=models)
        assert Decimal(row["cost_usd"]) == Decimal("0.00207")
        assert row["price_source"].startswith("genai-prices ")
        assert Decimal(row["cache_saved_usd"]) == Decimal("0.00243")
        models["m"]["price"] = {"input": 0, "output": 10}
        row = await priced(backend, models=models)
    assert (row["cost_usd"], row["price_source"]) == ("0.001", "config")


async def test_one_s_own_server_has_no_public_price() -> None:
    """The same model there costs what the machine costs, which nobody said."""
    async with FakeBackend(answer("ok", usage=USAGE), style="llama-server", model="kimi-k3") as backend:
        row = await priced(backend, engine="llama-server", models={"m": {"backend": "local", "upstream": "kimi-k3"}})
    assert (row["cost_usd"], row["price_source"]) == (None, None)


async def test_what_a_service_says_it_asks_is_what_it_costs() -> None:
    """OpenRouter tells it with the usage."""
    reply = answer("ok", usage={**USAGE, "cost": 0.0123})
    async with FakeBackend(reply, style="openrouter") as backend:
        row = await priced(backend, engine="openrouter")
    assert (row["cost_usd"], row["price_source"]) == ("0.0123", "reported")


def hourly(url: str) -> dict[str, Any]:
    """A machine at 3,600 USD an hour: a dollar a second."""
    return {"local": {"url": url, "engine": "llama-server", "models": ["m"], "slow": False, "usd_per_hour": 3600}}


async def test_a_machine_is_billed_by_its_busy_time() -> None:
    """From the place in its line to the end; reading what the cache had would have taken time, too."""
    timings = {"prompt_n": 10, "cache_n": 40, "predicted_n": 5, "prompt_per_second": 20.0, "predicted_per_second": 9.0}
    reply = events({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], "timings": timings})
    async with FakeBackend(reply.after(0.3), style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", backends=hourly(backend.url))) as proxy:
            await proxy.chat(stream=True)
            (row,) = await proxy.rows()
    assert row["price_source"] == "3600 USD/hour"
    assert 0.3 <= Decimal(row["cost_usd"]) <= Decimal(row["duration_ms"] + 1) / 1000
    assert row["cache_saved_usd"] == "2"


async def test_those_who_share_a_machine_share_its_bill() -> None:
    """Two at once pay together what one alone would."""

    async def both(proxy: Running) -> None:
        await asyncio.gather(proxy.chat(stream=True), proxy.chat(stream=True))

    async with FakeBackend(answer("ok").after(0.5), style="llama-server") as backend:
        async with serving(settings(backend.url, engine="llama-server", backends=hourly(backend.url))) as proxy:
            await both(proxy)
            rows = await proxy.rows(2)
    total = sum(Decimal(row["cost_usd"]) for row in rows)
    longest = max(row["duration_ms"] for row in rows)
    assert Decimal("0.5") <= total <= Decimal(longest + 50) / 1000


async def test_content_is_logged_where_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    """`store.log_content`: prompts, thoughts and answers; not a word of them else."""
    caplog.set_level("INFO")
    for wanted in (False, True):
        caplog.clear()
        async with FakeBackend(answer("told you", reasoning="let me see"), style="kimi") as backend:
            async with serving(settings(backend.url, store={"log_content": wanted})) as proxy:
                await proxy.chat({"role": "user", "content": "what is it"})
        for words in ("told you", "let me see", "what is it"):
            assert (words in caplog.text) is wanted


def test_usage_of_every_service_has_its_place() -> None:
    """What went into a cache, under each of its names."""
    for name in ("cache_write_tokens", "created_cache_tokens"):
        assert usage_of({"prompt_tokens": 9, "prompt_tokens_details": {name: 4}}).written == 4
    assert usage_of(
        json.loads('{"cost": 0.1, "is_byok": true, "cost_details": {"upstream_inference_cost": 0.2}}')
    ).cost == (Decimal("0.3"))
