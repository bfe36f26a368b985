"""`/metrics`: what is counted, what is looked up, and that no text of a client becomes a label."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from running import serving, settings

from proxy.messages import Entry
from proxy.telemetry import COUNTED, LOOKED_UP, Telemetry
from proxy.testing import FakeBackend, answer

DOCS = Path(__file__).parent.parent / "docs"
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "cached_tokens": 30,
    "completion_tokens_details": {"reasoning_tokens": 20},
}
COUNT = st.none() | st.integers(0, 10_000)


def telemetry() -> Telemetry:
    """One that knows a single model."""
    return Telemetry(dict, lambda model, _: model if model == "m" else None)


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def shown(made: Telemetry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Its exposition."""
    return samples(made.exposition("")[0].decode())


@given(
    prompt=COUNT,
    cached=COUNT,
    parts=st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
    model=st.none() | st.text(max_size=20),
)
def test_the_four_kinds_of_tokens_have_nothing_in_common(
    prompt: int | None, cached: int | None, parts: tuple[int, int] | None, model: str | None
) -> None:
    """Their sum is all tokens that are known, whatever a row says."""
    made = telemetry()
    reasoning, completion = (None, None) if parts is None else (parts[0], sum(parts))
    made.row(
        Entry(
            model=model,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            reasoning_tokens=reasoning,
        )
    )
    kinds = shown(made).get("reasoning_proxy_tokens_total", {})
    assert sum(kinds.values()) == (prompt or 0) + (completion or 0)


def test_names_that_clients_invent_do_not_become_labels() -> None:
    """However many, and whatever stands in them."""
    made = telemetry()
    for number in range(10_000):
        made.row(Entry(model=f'x{number}"}}\n', effort_sent=f"e{number}", reasoning_tokens=1, outcome=f"o{number}"))
    made.row(Entry(model="m"))
    found = shown(made)
    models = {dict(labels)["model"] for labels in found["reasoning_proxy_requests_total"]}
    assert models == {"other", "m"}
    assert sum(map(len, found.values())) < 5000


async def test_a_request_is_counted_and_the_moment_is_looked_up() -> None:
    """Through the open door, in the format that Prometheus asks for."""
    reply = answer("told", reasoning="thought", usage=USAGE)
    async with FakeBackend(reply, style="kimi", model="m") as backend:
        models = {"m": {"backend": "local", "price": {"input": 3, "cached_input": 1, "output": 10}}}
        async with serving(settings(backend.url, models=models)) as proxy:
            await proxy.chat(max_tokens=10)
            await proxy.chat(model="nobody's")
            await proxy.rows(2)
            response = await proxy.http.get(proxy.url.removesuffix("v1") + "metrics")
            found = samples(response.text)
    assert response.headers["content-type"].startswith("text/plain")
    tokens = {dict(labels)["kind"]: value for labels, value in found["reasoning_proxy_tokens_total"].items()}
    assert tokens == {"prompt_uncached": 70, "prompt_cached": 30, "reasoning": 20, "visible": 30}
    (cost,) = found["reasoning_proxy_cost_usd_total"].values()
    assert round(cost, 9) == 0.00074
    assert found["reasoning_proxy_decisions_total"][(("decision", "floor"),)] == 1
    assert found["reasoning_proxy_backend_up"] == {(("backend", "local"),): 1}
    assert found["reasoning_proxy_store_healthy"] == {(): 1}
    assert sum(found["reasoning_proxy_requests_total"].values()) == 2
    asked = {each.name for each in COUNTED} | {each.name for each in LOOKED_UP}
    base = {re.sub(r"_(total|created|bucket|sum|count)$", "", name) for name in found}
    assert base <= asked


async def test_with_clients_metrics_are_for_who_may_see_all() -> None:
    """Others are told what is missing."""
    clients = {"all": {"api_key": "key-of-all", "spend": "all"}, "own": {"api_key": "key-of-own"}}
    async with (
        FakeBackend(answer("x"), style="kimi") as backend,
        serving(settings(backend.url, clients=clients)) as proxy,
    ):
        url = proxy.url.removesuffix("v1") + "metrics"
        found = [
            (await proxy.http.get(url, headers={"authorization": f"Bearer key-of-{name}"} if name else {}))
            for name in ("all", "own", "")
        ]
    assert [response.status_code for response in found] == [200, 403, 401]
    assert 'spend = "all"' in found[1].json()["error"]["message"]


def test_the_page_of_metrics_names_them_all() -> None:
    """With their labels, and none that is not there."""
    text = (DOCS / "metrics.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(reasoning_proxy_\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    for each in (*COUNTED, *LOOKED_UP):
        name = f"{each.name}_total" if each.kind == "counter" else each.name
        assert set(re.findall(r"`(\w+)`", rows.pop(name))) == set(each.labels), name
    assert not rows


def test_the_grafana_dashboard_asks_for_metrics_that_exist() -> None:
    """And for labels that they have."""
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    known = {
        f"{each.name}_total" if each.kind == "counter" else each.name: set(each.labels)
        for each in (*COUNTED, *LOOKED_UP)
    }
    for each in COUNTED:
        if each.kind == "histogram":
            known[f"{each.name}_bucket"] = {*each.labels, "le"}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) >= 12
    for expression in expressions:
        names = re.findall(r"reasoning_proxy_\w+", expression)
        assert names, expression
        assert set(names) <= known.keys(), expression
        labels = set().union(*(known[name] for name in names))
        used = re.findall(r"by \(([^)]*)\)", expression)
        assert {label.strip() for group in used for label in group.split(",")} <= labels, expression
        assert set(re.findall(r'(\w+)=~?"', expression)) <= labels, expression
