"""One model server: what is known about it, who waits for it, and how it is reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proxy import config, probes
from proxy.dialects import DIALECTS, About, Dialect
from proxy.errors import UpstreamError, UpstreamUnreachable
from proxy.families import Family
from proxy.learned import Learned
from proxy.line import Line
from proxy.messages import Facts
from proxy.wire import Answer, Wire

log = logging.getLogger(__name__)

PROBE_SECONDS = 3.0
"""A probe asks for small JSON bodies; a server that takes longer is asked again later."""
PROBE_WAIT = 2.0
"""How long requests wait for a probe from its beginning, so that they are not sent in the wrong dialect."""
PROBE_AGAIN = 5.0
"""Seconds from one probe of a backend to the next."""
PROBE_AGE = 60.0
"""Seconds after which a known backend is looked at again, while requests go on."""
LOADING = 503
"""What llama-server answers to everything until it has its model."""
_MOST_NAMES = 256
"""Models for which the lasting facts are kept."""


class Backend:
    """One model server."""

    def __init__(self, name: str, settings: config.Backend, slow_below: float) -> None:
        self.name = name
        self.settings = settings
        self._wire = Wire(name, settings)
        self._probe: asyncio.Task[None] | None = None
        self._probed = 0.0
        self._found: probes.Found | None = None
        self._trouble = ""
        self.learned = Learned(settings.slow, slow_below)
        self._names: dict[str, str] = {}
        self._lasting: dict[tuple[str, str], Facts] = {}
        self.answered = False
        """The latest contact went well."""
        self.line = Line(settings.max_concurrency, settings.queue_limit)
        """Who waits for a place there."""
        self.found_once = asyncio.Event()
        """A look has brought something."""
        self.measuring: asyncio.Task[None] | None = None
        """What finds out its speed, until a request comes."""
        self._stale = False  # a contact failed since the latest look: another server may stand there now

    @property
    def engine(self) -> str:
        """The engine's name: configured, found, or the plain one until it is found."""
        configured: str = self.settings.engine
        if configured != "auto":
            return configured
        return self._found.engine if self._found else probes.hosted(self.settings.base) or "openai"

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.engine]

    @property
    def models(self) -> tuple[str, ...]:
        """Names that are known to be served here."""
        if self.settings.models:
            return tuple(self.settings.models)
        return tuple(self._found.about) if self._found else ()

    @property
    def is_of_one_model(self) -> bool:
        """A server of one model, which answers to any name."""
        return len(self.models) == 1 and self.dialect.is_own

    def start_probe(self) -> None:
        """Look again at what stands there, in the background; not more often than every PROBE_AGAIN seconds."""
        now = time.monotonic()
        if self._probe is None or (self._probe.done() and now - self._probed >= PROBE_AGAIN):
            self._probe = asyncio.create_task(self._look(), name=f"probe {self.name}")
            self._probed = now

    async def known(self) -> None:
        """Look again where that is due. Only what was never found, or did not answer lately, is waited for a little."""
        if not self.needs_probe or (self._is_known and time.monotonic() - self._probed < PROBE_AGE):
            return
        self.start_probe()
        left = self._probed + PROBE_WAIT - time.monotonic()
        if not self._is_known and self._probe is not None and left > 0:
            await asyncio.wait({self._probe}, timeout=left)

    async def look_again(self) -> None:
        """A model is asked for that nobody is known to serve: it may have come since."""
        self.start_probe()
        if self._probe is not None:
            await asyncio.wait({self._probe}, timeout=PROBE_WAIT)

    @property
    def _is_known(self) -> bool:
        return self._found is not None and not self._stale

    @property
    def needs_probe(self) -> bool:
        """A hosted service that is fully described is not asked: it may want a key that only clients have."""
        return self.settings.engine == "auto" or self.dialect.tells_properties or not self.settings.models

    async def _look(self) -> None:
        try:
            found = await probes.look(self._ask, self.settings.base, self.settings.engine)
        except Exception:  # a probe is never a reason to fail
            log.exception("the probe of backend %s failed", self.name)
            return
        if found is None:
            what = (
                "answers, but does not tell what it is (/v1/models)"
                if self.answered
                else "does not answer: is it running?"
            )
            if what != self._trouble:
                log.warning("backend %s at %s %s", self.name, self.settings.shown_url, what)
            self._trouble = what
            return
        self._trouble, self._stale = "", False
        earlier, self._found = self._found, found.over(self._found)
        self._lasting.clear()
        self.found_once.set()
        if earlier is None or self._found.known != earlier.known:
            limits = sorted({told.context_limit for told in self._found.about.values() if told.context_limit})
            context = ", ".join(map(str, limits)) or "unknown"
            log.info("backend %s: %s %s, context %s", self.name, self._found.engine, self._found.version, context)

    async def _ask(self, url: str, body: Mapping[str, Any] | None) -> tuple[dict[str, str], Any] | None:
        found = await self._wire.ask(url, body, seconds=PROBE_SECONDS)
        if found is None:
            return None
        self.answered = True
        status, headers, content = found
        return headers, content if status == 200 else None

    @property
    def found(self) -> probes.Found | None:
        """What the latest probes found; None where nothing answered yet."""
        return self._found

    def detaches(self, slow: bool) -> bool:
        """Whether an answer outlives its client here."""
        return slow if self.settings.detach == "auto" else self.settings.detach

    def is_busy(self, upstream_model: str) -> bool:
        """Whether one more request had to wait, here or there."""
        slots = self._slots(upstream_model)
        return slots is not None and self.line.running >= slots

    def is_crowded(self, upstream_model: str) -> bool:
        """Whether one of its requests waits there."""
        slots = self._slots(upstream_model)
        return slots is not None and self.line.running > slots

    def _slots(self, upstream_model: str) -> int | None:
        told = self._found.of(upstream_model).slots if self._found else None
        return self.settings.max_concurrency or told or self.dialect.slots

    async def loads(self) -> bool:
        """Whether it still says that it loads its model."""
        found = await self._wire.ask(f"{self.settings.base}/models", None, seconds=PROBE_SECONDS)
        return found is not None and found[0] == LOADING

    def facts(self, upstream_model: str, family: Family, conversation_effort: str | None) -> Facts:
        """What the rules need to know for a request to this backend."""
        key = (upstream_model, family.name)
        if key not in self._lasting:
            if len(self._lasting) >= _MOST_NAMES:  # clients may ask for any name
                self._lasting.clear()
            self._lasting[key] = self._lasting_facts(upstream_model, family)
        name = self.learned.measured_as(upstream_model, alone=self.is_of_one_model)
        return replace(
            self._lasting[key],
            slow=self.learned.slow(name),
            bytes_per_token=self.learned.bytes_per_token(upstream_model),
            rooms=self.learned.thoughts.rooms(family.name),
            conversation_effort=conversation_effort,
        )

    def _lasting_facts(self, upstream_model: str, family: Family) -> Facts:
        """Those that hold until a look or an answer tells something new; templates are long, and read for them."""
        dialect, found = self.dialect, self._found
        told = found.of(upstream_model) if found else About()
        writes = self._names.get(upstream_model, "")
        if told.efforts:
            family = family.model_copy(update={"efforts": told.efforts, "effort_words": {}})
        return Facts(
            backend=self.name,
            engine=self.engine,
            family=family,
            upstream_model=upstream_model,
            context_limit=self.settings.context_limit or told.context_limit,
            effort_option=dialect.effort_option(family.effort_option, told.template),
            switch_on=dialect.switch(family.on, told.template),
            switch_off=dialect.switch(family.off, told.template),
            keep_all=dialect.switch(family.keep, told.template),
            thinks_always=family.always == "everywhere"
            or (family.always == "service" and dialect.is_service)
            or dialect.thinks_always(family.off, told.template),
            effort_refused=dialect.refuses_effort and told.thinks is not True,
            budget_fields=dialect.budget_fields if writes or not dialect.budget_needs_parser else (),
            reasoning_field=writes if writes and dialect.learns_field else dialect.field_for(self.version),
            is_service=dialect.is_service,
            takes_options=dialect.takes_template_options or dialect.effort_places is None,
            takes_developer=dialect.takes_developer or family.developer_role,
            refuses_overflow=dialect.refuses_overflow,
            refuses_missing=dialect.refuses_missing,
            has_control=dialect.control is not None,
            lets_go=dialect.lets_go,
            has_progress=bool(dialect.progress_field),
            whole_only=dialect.whole_only,
        )

    @property
    def version(self) -> str:
        """The server's version, empty where it is not known."""
        return self._found.version if self._found else ""

    def note_names(self, upstream_model: str, names: frozenset[str]) -> None:
        """Take into the record under which name thoughts came."""
        name = next((name for name in ("reasoning_content", "reasoning") if name in names), None)
        if name is not None and name != self._names.get(upstream_model):
            self._names[upstream_model] = name
            self._lasting.clear()

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, query: str = "") -> Answer:
        """Send a request; see `Wire.send`."""
        pooled = self.dialect.reuses_connections
        try:
            answer = await self._wire.send(method, path, headers, body, query=query, pooled=pooled)
        except UpstreamError as error:
            self._stale = True
            if isinstance(error, UpstreamUnreachable):
                self.answered = False
            raise
        self.answered = True
        return answer

    async def give_way(self) -> None:
        """A request comes, which tells the speed as well: it shall not wait behind a measurement of our own."""
        if self.measuring is not None:
            measuring, self.measuring = self.measuring, None
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def aclose(self) -> None:
        """End what runs in the background, and close all connections."""
        await self.give_way()
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._wire.aclose()
