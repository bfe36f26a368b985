"""Spans: only where a provider is set, with the names of the conventions, and in the trace of the caller."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from running import serving, settings

from proxy import spans
from proxy.testing import FakeBackend, answer, error

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "cached_tokens": 30,
    "completion_tokens_details": {"reasoning_tokens": 20},
}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What the process's provider got; it is no provider of other tests."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def test_without_a_provider_there_is_no_span() -> None:
    """Nothing is made that nobody would see."""
    assert spans.begin({"traceparent": PARENT}) is None


def test_names_are_those_of_the_conventions() -> None:
    """Of the release that is installed; all others are this project's own."""
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for name in spans.ATTRIBUTES if name.startswith("gen_ai.")} <= known
    assert all(name.startswith(("gen_ai.", "reasoning_proxy.")) for name in spans.ATTRIBUTES)
    assert {"gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.response.finish_reasons"} <= known


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_in_its_callers_trace(exported: InMemorySpanExporter, stream: bool) -> None:
    """And the backend's own spans hang below it."""
    reply = answer("told you", reasoning="let me see", usage=USAGE)
    async with FakeBackend(reply, style="kimi") as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat(stream=stream, max_tokens=10, headers={"traceparent": PARENT})
        await proxy.rows()
        sent = backend.requests[-1].headers["traceparent"]
    (span,) = [span for span in exported.get_finished_spans() if span.name.startswith("chat")]
    assert span.name == "chat m"
    assert span.kind is trace.SpanKind.CLIENT
    told = dict(span.attributes or {})
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "moonshot_ai"
    assert told["gen_ai.request.max_tokens"] == 5000
    assert told["gen_ai.usage.input_tokens"] == 100
    assert told["gen_ai.usage.cache_read.input_tokens"] == 30
    assert told["gen_ai.usage.reasoning.output_tokens"] == 20
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert told["reasoning_proxy.outcome"] == "ok"
    assert "told you" not in str(told)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sent.split("-")[1:3] == [PARENT.split("-")[1], f"{span.context.span_id:016x}"]
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time >= span.start_time


async def test_an_error_is_the_spans_too(exported: InMemorySpanExporter) -> None:
    """With the outcome as its type."""
    async with FakeBackend(error(500, "no"), style="kimi") as backend, serving(settings(backend.url)) as proxy:
        await proxy.chat()
        await proxy.rows()
        await asyncio.to_thread(proxy.pipeline.store.flush)
    (span,) = [span for span in exported.get_finished_spans() if span.name.startswith("chat")]
    assert not span.status.is_ok
    assert dict(span.attributes or {})["error.type"] == "upstream_error"
