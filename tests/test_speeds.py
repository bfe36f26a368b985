"""What the ledger's rows teach, in every store: how fast a model reads and writes, and how long it thought."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.messages import Entry
from proxy.speeds import LEAST_DECODED, LEAST_PREFILLED, SMOOTHING, Speed, measured, smoothed
from proxy.store import Store, open_store
from proxy.thoughts import MOST, Thought, thought_of

figures = st.none() | st.floats(0.001, 1e9) | st.sampled_from([0.0, -1.0, math.nan, math.inf])
counts = st.none() | st.integers(0, 100)
names = itertools.count()


def row(**fields: Any) -> Entry:
    """A row with enough tokens for both figures."""
    plenty = Entry(backend="box", upstream_model="m", prompt_tokens=1000, completion_tokens=1000)
    return replace(plenty, **fields)


rows = st.builds(
    row,
    kind=st.sampled_from(["chat", "probe", "passthrough"]),
    decode_tokens_per_second=figures,
    prefill_tokens_per_second=figures,
    completion_tokens=counts,
    prompt_tokens=counts,
    cached_tokens=counts,
)


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two stores at one place, as of two processes; in memory there is but one."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/proxy.db"
    with ExitStack() as stack:
        if request.param == "memory":
            one = stack.enter_context(closing(open_store("memory")))
            yield one, one
        else:
            yield stack.enter_context(closing(open_store(url))), stack.enter_context(closing(open_store(url)))


@pytest.fixture
def store(stores: tuple[Store, Store]) -> Store:
    """One of them."""
    return stores[0]


def thoughts(store: Store, *entries: Entry, limit: int = 10_000) -> list[Thought]:
    """What the store tells after these rows."""
    for entry in entries:
        store.put_entry(entry)
    assert store.flush()
    return store.recent_thoughts(limit)


# What counts


@pytest.mark.parametrize(
    ("fields", "decode"),
    [
        ({}, 7.0),
        ({"completion_tokens": LEAST_DECODED}, 7.0),
        ({"completion_tokens": LEAST_DECODED - 1}, None),
        ({"completion_tokens": None}, None),
        ({"decode_tokens_per_second": None}, None),
        ({"decode_tokens_per_second": 0.0}, None),
        ({"decode_tokens_per_second": math.inf}, None),
        ({"kind": "passthrough", "outcome": "client_disconnected"}, 7.0),
    ],
)
def test_a_decode_speed_counts_where_the_answer_had_tokens_enough(fields: dict[str, Any], decode: float | None) -> None:
    """Whatever the kind of the row and its end; an unknown number of tokens is too few."""
    assert measured(replace(row(decode_tokens_per_second=7.0), **fields)) == Speed(decode, None)


@pytest.mark.parametrize(
    ("fields", "prefill"),
    [
        ({"prompt_tokens": LEAST_PREFILLED}, 90.0),
        ({"prompt_tokens": LEAST_PREFILLED - 1}, None),
        ({"prompt_tokens": 1000, "cached_tokens": 1000 - LEAST_PREFILLED}, 90.0),
        ({"prompt_tokens": 1000, "cached_tokens": 1001 - LEAST_PREFILLED}, None),
        ({"prompt_tokens": 1000, "cached_tokens": 2000}, None),
        ({"prompt_tokens": None}, None),
        ({"prefill_tokens_per_second": None}, None),
        ({"prefill_tokens_per_second": -1.0}, None),
        ({"prefill_tokens_per_second": math.nan}, None),
    ],
)
def test_a_prefill_speed_counts_where_enough_of_the_prompt_was_read_anew(
    fields: dict[str, Any], prefill: float | None
) -> None:
    """What lay in the cache was not read; an unknown part in the cache is none, an unknown prompt too short."""
    assert measured(replace(row(prefill_tokens_per_second=90.0), **fields)) == Speed(None, prefill)


def test_the_first_figure_is_taken_as_it_is_and_later_ones_move_it() -> None:
    """Each figure by itself; one that is not there changes nothing."""
    speed = smoothed(None, Speed(10.0, None))
    assert speed == Speed(10.0, None)
    speed = smoothed(speed, Speed(20.0, 300.0))
    assert speed == Speed(10.0 + SMOOTHING * 10.0, 300.0)
    assert smoothed(speed, Speed()) == speed
    assert smoothed(None, Speed()) == Speed()


@given(seen=st.lists(st.floats(0.001, 1e9), min_size=1))
def test_a_smoothed_speed_lies_between_the_slowest_and_the_fastest(seen: list[float]) -> None:
    """Whatever the order."""
    speed = reduce(smoothed, (Speed(figure) for figure in seen), Speed()).decode
    assert speed is not None
    assert min(seen) * (1 - 1e-9) <= speed <= max(seen) * (1 + 1e-9)


# What a store keeps of it


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(st.tuples(rows, st.integers(0, 1), st.sampled_from("ab"), st.booleans()), max_size=12))
@example(written=[(row(decode_tokens_per_second=speed), 0, "a", False) for speed in (8.0, 2.0, 4.0)])
@example(written=[(row(decode_tokens_per_second=3.0, prefill_tokens_per_second=9.0), by, "a", True) for by in (0, 1)])
def test_a_store_smooths_as_the_rules_do(
    stores: tuple[Store, Store], written: list[tuple[Entry, int, str, bool]]
) -> None:
    """Over any rows of two models, in one batch or many, by one process or two that take turns."""
    backend = f"backend {next(names)}"
    expected: dict[tuple[str, str], Speed] = {}
    last = stores[0]
    for entry, number, model, flush in written:
        if stores[number] is not last:
            assert last.flush()
        last = stores[number]
        last.put_entry(replace(entry, backend=backend, upstream_model=model))
        if flush:
            assert last.flush()
        if measured(entry) != Speed():
            expected[backend, model] = smoothed(expected.get((backend, model)), measured(entry))
    assert last.flush()
    found = {names: speed for names, speed in stores[0].recent_speeds().items() if names[0] == backend}
    assert found == {
        names: Speed(*(None if figure is None else pytest.approx(figure, rel=1e-9) for figure in speed))
        for names, speed in expected.items()
    }


def test_rows_without_a_speed_or_a_name_teach_nothing(store: Store) -> None:
    """Too few tokens, no backend, no model: there is no speed, not an empty one."""
    store.put_entry(row(decode_tokens_per_second=5.0, completion_tokens=1))
    store.put_entry(row(decode_tokens_per_second=5.0, backend=None))
    store.put_entry(row(decode_tokens_per_second=5.0, upstream_model=None))
    store.put_entry(row())
    assert store.flush()
    assert store.recent_speeds() == {}


def test_an_answer_that_is_counted_in_the_writers_thread_counts(store: Store) -> None:
    """Where an engine reports no usage, its tokens are counted just before the row is written."""

    def complete(entry: Entry) -> None:
        entry.completion_tokens = LEAST_DECODED

    store.put_entry(row(completion_tokens=None, decode_tokens_per_second=5.0), complete)
    assert store.flush()
    assert store.recent_speeds() == {("box", "m"): Speed(5.0)}


# Thoughts


def thinking(tokens: int | None, **fields: Any) -> Entry:
    """A row of an answer with a thought."""
    return replace(Entry(backend="box", family="qwen3"), **{"reasoning_tokens": tokens, **fields})


def test_thoughts_come_oldest_first(stores: tuple[Store, Store]) -> None:
    """Of all processes, with the effort that was sent, empty where none was."""
    one, other = stores
    assert thoughts(one) == []
    assert thoughts(one, thinking(30, effort_sent="high")) == [Thought("box", "qwen3", "high", 30)]
    thoughts(other, thinking(10), thinking(20, backend="other", family="kimi-k2"))
    assert thoughts(one, thinking(5, effort_sent="")) == [
        Thought("box", "qwen3", "high", 30),
        Thought("box", "qwen3", "", 10),
        Thought("other", "kimi-k2", "", 20),
        Thought("box", "qwen3", "", 5),
    ]


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"outcome": "ok"}, 7),
        ({"outcome": "length"}, 7),
        ({"outcome": "client_disconnected"}, None),
        ({"outcome": "upstream_error"}, None),
        ({"kind": "probe"}, None),
        ({"kind": "side"}, None),
        ({"kind": "passthrough"}, None),
        ({"reasoning_tokens": None}, None),
        ({"backend": None}, None),
        ({"family": None}, None),
        ({"reasoning_tokens": 0}, 0),
        ({"reasoning_tokens": 0, "effort_sent": None}, 0),
        ({"effort_sent": "none"}, None),
        ({"flags": ["rescued"]}, None),
        ({"thinking_budget_sent": 0}, None),
        ({"thinking_budget_sent": 100}, 7),
        ({"outcome": "answer_lost"}, 14),
        ({"flags": ["usage_repaired", "answer_now"]}, 14),
        ({"thinking_budget_sent": 7}, 14),
        ({"reasoning_tokens": MOST}, MOST),
    ],
)
def test_which_rows_tell_how_long_a_model_thinks(store: Store, fields: dict[str, Any], taken: int | None) -> None:
    """Chats that came to an end and were to think. A thought that was ended before its end counts double."""
    entry = replace(thinking(7), **fields)
    expected = [] if taken is None else [Thought("box", "qwen3", entry.effort_sent or "", taken)]
    assert thoughts(store, entry) == expected
    assert thought_of(entry) == next(iter(expected), None)


def test_the_limit_is_of_rows_and_not_of_thoughts(store: Store) -> None:
    """So that a ledger in which few rows have one is not searched from its end to its beginning."""
    many = [thinking(number, kind="chat" if number % 3 == 0 else "probe") for number in range(30)]
    assert [thought.tokens for thought in thoughts(store, *many)] == list(range(0, 30, 3))
    assert [thought.tokens for thought in thoughts(store, limit=4)] == [27]
    assert thoughts(store, limit=2) == []
    assert thoughts(store, limit=0) == []
