"""An OpenTelemetry span for each chat completion, where the process has a tracer provider; else nothing.

Names are those of the GenAI semantic conventions, as of release 0.66b2 of their Python package (2026), in which the
provider is `gen_ai.provider.name`; what only this proxy knows is under `reasoning_proxy.`. No text of a prompt or an
answer is in a span. `opentelemetry-api` is an extra: without it nothing is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proxy.messages import Entry

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan

PROVIDERS = {"kimi": "moonshot_ai", "deepseek": "deepseek", "openai": "openai"}
"""Engines that the conventions have a name for; others go by their own."""
ATTRIBUTES = {
    "gen_ai.request.model": "model",
    "gen_ai.response.model": "upstream_model",
    "gen_ai.request.max_tokens": "max_tokens_sent",
    "gen_ai.request.stream": "stream",
    "gen_ai.conversation.id": "conversation",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.output_tokens": "completion_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
    "reasoning_proxy.backend": "backend",
    "reasoning_proxy.client": "client",
    "reasoning_proxy.kind": "kind",
    "reasoning_proxy.outcome": "outcome",
    "reasoning_proxy.effort": "effort_sent",
    "reasoning_proxy.decisions": "decisions",
    "reasoning_proxy.flags": "flags",
    "reasoning_proxy.turns_restored": "turns_restored",
    "reasoning_proxy.cost_usd": "cost_usd",
}
"""Attribute → field of the ledger row."""


class Span:
    """The span of one request, from its arrival to its row."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._ended: int | None = None

    def headers(self, incoming: Mapping[str, str]) -> dict[str, str]:
        """Those of the request with this span as the parent of what follows."""
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.propagate import inject  # noqa: PLC0415

        kept = {name: value for name, value in incoming.items() if name not in ("traceparent", "tracestate")}
        inject(kept, trace.set_span_in_context(self._span))
        return kept

    def over(self) -> None:
        """The request ends now; its row is complete a little later."""
        self._ended = time.time_ns()

    def end(self, entry: Entry) -> None:
        """Say what came of it."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        span = self._span
        span.update_name(f"chat {entry.model}" if entry.model else "chat")
        told: dict[str, Any] = {name: getattr(entry, field) for name, field in ATTRIBUTES.items()}
        told["gen_ai.provider.name"] = PROVIDERS.get(entry.engine or "", entry.engine)
        told["gen_ai.response.finish_reasons"] = [entry.finish_reason] if entry.finish_reason else None
        if entry.first_byte_ms is not None:
            told["gen_ai.response.time_to_first_chunk"] = entry.first_byte_ms / 1000
        if entry.error is not None or (entry.status or 0) >= 400:
            told["error.type"] = entry.outcome
            span.set_status(Status(StatusCode.ERROR))
        span.set_attributes({name: value for name, value in told.items() if value is not None})
        span.end(self._ended)


def begin(headers: Mapping[str, str]) -> Span | None:
    """The span of a request that comes now, below the one that its `traceparent` names, or the current one; None where
    no provider is set."""
    try:
        from opentelemetry import trace  # noqa: PLC0415
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    from opentelemetry.propagate import extract  # noqa: PLC0415

    parent = extract(headers) if "traceparent" in headers else None
    attributes = {"gen_ai.operation.name": "chat"}
    tracer = provider.get_tracer("reasoning-proxy")
    return Span(tracer.start_span("chat", parent, kind=trace.SpanKind.CLIENT, attributes=attributes))
