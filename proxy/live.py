"""Answers while they run: how far each is, and how its thought is ended before its time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Literal

from proxy import headers
from proxy.errors import AlreadyAnswering, NotSupported, ProxyError, UpstreamTimeout
from proxy.events import Event
from proxy.jsons import JsonError, dumps, loads
from proxy.messages import Json, Plan
from proxy.planning import Planned
from proxy.record import Record

log = logging.getLogger(__name__)

CONTROL_SECONDS = 10.0
"""How long an engine may take to end a thought; it answers at once, or hangs."""


def check(plan: Plan) -> None:
    """Raises NotSupported where the engine cannot end this request's thought, AlreadyAnswering where there is none."""
    facts = plan.facts
    if not facts.has_control:
        raise NotSupported(f"{facts.engine} on backend {facts.backend} cannot end a thought that runs")
    if not plan.controlled:
        raise AlreadyAnswering("this request is answered without a thought of any length: there is none to end")


class Live:
    """One answer as it comes in. `aclose` ends what it still does."""

    def __init__(
        self, made: Planned, record: Record, *, headers: Mapping[str, str], seconds: float, wanted: bool
    ) -> None:
        """`headers` are the request's. The answer is asked for after so many `seconds` of thought, if not 0; or as soon
        as the engine has begun, where it is `wanted` already."""
        self._backend = made.route.backend
        self._plan = made.plan
        self._record = record
        self._headers = headers
        self._seconds = seconds
        self._id: Json = None  # the engine's own, once it is there
        self._thinks_since: float | None = None
        self.answers = False
        """It has no thought that could be ended any more."""
        self._wanted = wanted
        self._asking: asyncio.Task[None] | None = None

    def saw(self, event: Event, answer_id: Json) -> None:
        """The next event of the answer."""
        self._id = answer_id
        if self.answers:
            return
        for part in event.parts:
            if part.text or part.calls or part.finish:
                self.answers = True
            elif part.reasoning and self._thinks_since is None:
                self._thinks_since = time.monotonic()
        if self.answers or self._asking is not None:
            return
        since = self._thinks_since
        late = self._seconds and since is not None and time.monotonic() - since >= self._seconds
        if (self._wanted or late) and self._plan.controlled:
            self._asking = asyncio.create_task(self._ask_and_log(), name="answer now")

    def again(self) -> None:
        """What follows is another answer to the same request, with a thought of its own."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._id, self._thinks_since, self.answers = None, None, False

    async def answer_now(self) -> Literal["answering", "pending"]:
        """End the thought, or, where nothing came yet, as soon as the engine has begun.

        Raises AlreadyAnswering where there is no thought to end, NotSupported where the engine cannot.
        """
        if self.answers:
            raise AlreadyAnswering("the answer has begun: there is no thought to end")
        check(self._plan)
        if self._id is None:
            self._wanted = True
            return "pending"
        await self._ask()
        return "answering"

    async def _ask_and_log(self) -> None:
        try:
            await self._ask()
        except ProxyError as error:
            log.warning("request %s: its thought goes on: %s", self._record.entry.request_id, error.message)

    async def _ask(self) -> None:
        control = self._backend.dialect.control
        assert control is not None  # noqa: S101 - `controlled` plans have one
        body = dumps({"id": self._id, **control.action})
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                answer = await self._backend.send("POST", control.path, headers.upstream(self._headers), body)
                found = loads(await answer.read())
        except TimeoutError:
            raise UpstreamTimeout(f"backend {self._backend.name} does not answer to {control.path}") from None
        except JsonError:
            found = None
        told = found if isinstance(found, dict) else {}
        if answer.status == 200 and told.get("success") is True:
            self._record.flag("answer_now", True)
        elif answer.status == 200:
            raise AlreadyAnswering(f"the engine ends no thought: {told.get('message') or 'it does not say why'}")
        else:
            raise NotSupported(f"backend {self._plan.facts.backend} answers {answer.status} to {control.path}")

    async def aclose(self) -> None:
        """The answer is over."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
