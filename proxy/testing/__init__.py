"""A scripted backend on a real port, for the tests of this project and of its users.

    async with FakeBackend(answer("Two files.", reasoning="Two names came."), style="vllm") as backend:
        ...  # let something talk to backend.url
        assert backend.requests[0].body["reasoning_effort"] == "low"

Replies are values: `answer`, `events`, `raw`, `document`, `error` and `wire` make them, modifiers such as
`.after(seconds)`, `.hold(event)`, `.first(3)`, `.then_abort()` change them. An `answer` is written as the engine named
by `style` writes it, whole or as a stream, as the request asks. The `llama-server` style ends the thought of a running
stream when it is told to, as its server does; `request.writes` tells how much left before a client did.

To try the proxy without a model: `python -m proxy.testing --style llama-server`.
"""

from proxy.messages import ToolCall
from proxy.testing.backend import FakeBackend, Rules
from proxy.testing.engines import STYLES
from proxy.testing.replies import Reply, answer, document, echo, error, events, raw, wire
from proxy.testing.request import Request

__all__ = [
    "STYLES",
    "FakeBackend",
    "Reply",
    "Request",
    "Rules",
    "ToolCall",
    "answer",
    "document",
    "echo",
    "error",
    "events",
    "raw",
    "wire",
]
