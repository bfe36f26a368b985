"""What is measured while the proxy runs, for Prometheus: every name in one table.

Rows of the ledger are counted as they are written; what holds at the moment is looked up when somebody asks. Texts that
clients choose never become labels: a model that nobody is known to serve is `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from proxy import __version__
from proxy.messages import Entry

OTHER = "other"
_MOST = 200
"""Different models, and effort words, that are told apart."""
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_SPEEDS = (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


@dataclass(frozen=True, slots=True)
class Named:
    """A metric: a counter, a gauge, or a histogram with its bounds."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: str = "counter"
    bounds: tuple[float, ...] = ()


_WHERE = ("model", "backend", "client")
COUNTED = (
    Named("reasoning_proxy_tokens", "Tokens of four kinds that have nothing in common", (*_WHERE, "kind")),
    Named(
        "reasoning_proxy_requests",
        "Ledger rows",
        (*_WHERE, "kind", "outcome", "status", "stream"),
    ),
    Named("reasoning_proxy_cost_usd", "What requests cost, in USD", _WHERE),
    Named("reasoning_proxy_unpriced_requests", "Requests that may have cost something and have no price", _WHERE),
    Named("reasoning_proxy_cache_saved_usd", "What tokens from the engine's cache cost less, in USD", _WHERE),
    Named("reasoning_proxy_answers_lost", "Answers of which thinking took all", _WHERE),
    Named("reasoning_proxy_decisions", "Requests that a rule of the proxy changed", ("decision",)),
    Named("reasoning_proxy_flags", "Rows with this flag", ("flag",)),
    Named("reasoning_proxy_turns", "Assistant turns by what became of their thoughts", ("backend", "state")),
    Named("reasoning_proxy_first_byte_seconds", "Until the backend answered", ("backend",), "histogram", _SECONDS),
    Named(
        "reasoning_proxy_first_visible_seconds", "Until the answer itself began", ("backend",), "histogram", _SECONDS
    ),
    Named("reasoning_proxy_duration_seconds", "Until the end", ("backend",), "histogram", _SECONDS),
    Named("reasoning_proxy_thought_tokens", "Tokens of the thought of a chat", ("effort",), "histogram", _TOKENS),
    Named("reasoning_proxy_decode_tokens_per_second", "Pace of answers", ("backend",), "histogram", _SPEEDS),
    Named("reasoning_proxy_prefill_tokens_per_second", "Pace of reading prompts", ("backend",), "histogram", _SPEEDS),
)
"""Of rows. A counter is shown with `_total` behind its name."""
LOOKED_UP = (
    Named("reasoning_proxy_backend_up", "1 where the latest contact went well", ("backend",), "gauge"),
    Named("reasoning_proxy_backend_running", "Requests that have a place there", ("backend",), "gauge"),
    Named("reasoning_proxy_backend_waiting", "Requests that wait for one", ("backend",), "gauge"),
    Named("reasoning_proxy_model_slow", "1 where it is slow", ("backend", "model"), "gauge"),
    Named("reasoning_proxy_model_decode_tokens_per_second", "Smoothed", ("backend", "model"), "gauge"),
    Named("reasoning_proxy_model_prefill_tokens_per_second", "Smoothed", ("backend", "model"), "gauge"),
    Named("reasoning_proxy_generations", "Answers that are being made", ("state",), "gauge"),
    Named("reasoning_proxy_store_healthy", "1 where the store can be written and read", (), "gauge"),
    Named("reasoning_proxy_build_info", "The version", ("version",), "gauge"),
)
"""Of the moment."""
_STATES = ("running", "queued", "detached", "finished")
_OUTCOMES = frozenset(
    [
        *("ok", "length", "answer_lost", "client_disconnected"),
        *("upstream_error", "upstream_unreachable", "rejected"),
    ]
)

Sample = tuple[tuple[str, ...], float]
Look = Callable[[], Mapping[str, Iterable[Sample]]]
"""What holds now: for each name of LOOKED_UP label values and a number."""


class Telemetry:
    """The counters of one proxy. `row` may be called from any thread."""

    def __init__(self, look: Look, known_as: Callable[[str, str | None], str | None]) -> None:
        """`known_as` gives the name of a model that was asked for at a backend; None for one that nobody serves."""
        self._registry = CollectorRegistry()
        self._known_as = known_as
        self._seen: dict[str, set[str]] = {"model": set(), "effort": set()}
        self._of: dict[str, Any] = {}
        for each in COUNTED:
            name = each.name.removeprefix("reasoning_proxy_")
            if each.kind == "histogram":
                made: Any = Histogram(each.name, each.help, each.labels, registry=self._registry, buckets=each.bounds)
            else:
                made = Counter(each.name, each.help, each.labels, registry=self._registry)
            self._of[name] = made
        self._registry.register(_Looked(look))
        Gauge("reasoning_proxy_build_info", "The version", ["version"], registry=self._registry).labels(
            __version__
        ).set(1)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All of it as text, and its content type, in the format that an `Accept` header asks for."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def row(self, entry: Entry) -> None:
        """Count a complete row of the ledger."""
        model, backend, client = self._model(entry), entry.backend or "", entry.client or ""
        where = (model, backend, client)
        for kind, count in _tokens(entry).items():
            self._of["tokens"].labels(*where, kind).inc(count)
        outcome = entry.outcome if entry.outcome in _OUTCOMES else OTHER
        status = f"{entry.status // 100}xx" if entry.status else ""
        stream = "" if entry.stream is None else str(entry.stream).lower()
        self._of["requests"].labels(*where, entry.kind, outcome, status, stream).inc()
        if outcome == "answer_lost":
            self._of["answers_lost"].labels(*where).inc()
        self._money(entry, where)
        for decision in entry.decisions:
            self._of["decisions"].labels("rule" if decision.startswith("rule:") else decision).inc()
        for flag in entry.flags:
            self._of["flags"].labels(flag).inc()
        for state in ("present", "restored", "missing", "filled", "dropped"):
            if count := getattr(entry, f"turns_{state}"):
                self._of["turns"].labels(backend, state).inc(count)
        self._paces(entry, backend)

    def _money(self, entry: Entry, where: tuple[str, ...]) -> None:
        if entry.cost_usd is not None:
            self._of["cost_usd"].labels(*where).inc(float(Decimal(entry.cost_usd)))
        elif entry.attempts and entry.outcome != "upstream_unreachable":
            self._of["unpriced_requests"].labels(*where).inc()
        if entry.cache_saved_usd is not None:
            self._of["cache_saved_usd"].labels(*where).inc(float(Decimal(entry.cache_saved_usd)))

    def _paces(self, entry: Entry, backend: str) -> None:
        if not backend:
            return
        for name in ("first_byte", "first_visible", "duration"):
            milliseconds = getattr(entry, f"{name}_ms")
            if milliseconds is not None:
                self._of[f"{name}_seconds"].labels(backend).observe(milliseconds / 1000)
        for name in ("decode_tokens_per_second", "prefill_tokens_per_second"):
            pace = getattr(entry, name)
            if pace is not None:
                self._of[name].labels(backend).observe(pace)
        if entry.kind == "chat" and entry.reasoning_tokens is not None:
            effort = self._bounded("effort", entry.effort_sent or "")
            self._of["thought_tokens"].labels(effort).observe(entry.reasoning_tokens)

    def _model(self, entry: Entry) -> str:
        if entry.model is None:
            return ""
        name = self._known_as(entry.model, entry.backend)
        return OTHER if name is None else self._bounded("model", name)

    def _bounded(self, label: str, value: str) -> str:
        seen = self._seen[label]
        if value not in seen and len(seen) < _MOST:
            seen.add(value)
        return value if value in seen else OTHER


class _Looked(Collector):
    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        found = self._look()
        for each in LOOKED_UP:
            if each.name in found:
                family = GaugeMetricFamily(each.name, each.help, labels=each.labels)
                for labels, value in found[each.name]:
                    family.add_metric(labels, value)
                yield family

    def describe(self) -> Iterator[Metric]:
        return iter(())


def states(found: Iterable[str]) -> list[Sample]:
    """How many generations are in each state, for `reasoning_proxy_generations`."""
    all_of_them = list(found)
    return [((state,), float(all_of_them.count(state))) for state in _STATES]


def _tokens(entry: Entry) -> dict[str, int]:
    """Those that are known, as kinds that have nothing in common."""
    found: dict[str, int] = {}
    if entry.prompt_tokens is not None:
        cached = min(entry.cached_tokens or 0, entry.prompt_tokens)
        found |= {"prompt_uncached": entry.prompt_tokens - cached, "prompt_cached": cached}
    if entry.completion_tokens is not None and entry.reasoning_tokens is not None:
        found |= {"reasoning": entry.reasoning_tokens, "visible": entry.completion_tokens - entry.reasoning_tokens}
    return {kind: count for kind, count in found.items() if count > 0}
