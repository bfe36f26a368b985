"""`/spend`: what was thought, what was said and what it cost, as a page, as JSON and as CSV of the same rows.

The page has no script and asks nothing of any other host. With `[clients]` it is shown to those who have a key, as
`Bearer` or as the password of `Basic`: their own requests, or all with `spend = "all"`.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.dashboard.shown import Asked, Spend, gathered
from proxy.errors import InvalidRequest
from proxy.pipeline import Pipeline
from proxy.report import KEYS

if TYPE_CHECKING:
    from jinja2 import Template

_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_POLICY = "default-src 'none'; style-src 'nonce-{nonce}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_PERIODS = ("today", "yesterday", "7d", "30d", "this month", "last month")


def routes(pipeline: Pipeline) -> list[Route]:
    """Those of `/spend`, `/spend.json` and `/spend.csv`."""
    page = _Dashboard(pipeline)
    given = {"/spend": page.html, "/spend.json": page.json, "/spend.csv": page.csv}
    return [Route(path, answer, methods=["GET"]) for path, answer in given.items()]


class _Dashboard:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._one = asyncio.Semaphore(1)  # a report at a time: a large ledger takes both cores

    async def html(self, request: Request) -> Response:
        import secrets  # noqa: PLC0415 - for nothing else

        nonce = secrets.token_urlsafe(16)
        headers = {**_HEADERS, "content-security-policy": _POLICY.format(nonce=nonce)}
        asked, problem, status = self._asked(request), "", 200
        try:
            spend = await self._spend(request, asked)
        except InvalidRequest as error:
            asked, problem, status = Asked(by=asked.by if asked.by in KEYS else "model"), error.message, 400
            spend = await self._spend(request, asked)
        body = _template().render(
            spend=spend, asked=asked, problem=problem, nonce=nonce, periods=_PERIODS, keys=list(KEYS)
        )
        return Response(body, status, headers, "text/html; charset=utf-8")

    async def json(self, request: Request) -> Response:
        spend = await self._spend(request, self._asked(request))
        return Response(msgspec.json.encode(spend.document()), 200, _HEADERS, "application/json")

    async def csv(self, request: Request) -> Response:
        asked = self._asked(request)
        text = await self._read(request, lambda report: report.render(asked.by, "csv"), asked)
        name = f'attachment; filename="spend-by-{asked.by}.csv"'
        return Response(text + "\n", 200, {**_HEADERS, "content-disposition": name}, "text/csv; charset=utf-8")

    def _asked(self, request: Request) -> Asked:
        given = request.query_params
        return Asked(given.get("since") or None, given.get("until") or None, given.get("by") or "model")

    async def _spend(self, request: Request, asked: Asked) -> Spend:
        if asked.by not in KEYS:
            raise InvalidRequest(f"`by` {asked.by!r} is unknown; known are {', '.join(KEYS)}", param="by")
        spend: Spend = await self._read(request, functools.partial(gathered, asked), asked)
        return spend.beside(self._pipeline, self._pipeline.onlooker(request.headers).client)

    async def _read(self, request: Request, work: Any, asked: Asked) -> Any:
        """Something of the report that this onlooker may see, made in a thread: no stream is held up by it."""
        from proxy.report import Report  # noqa: PLC0415 - rich and jinja2 are not needed to serve

        client = self._pipeline.onlooker(request.headers).client

        def read() -> Any:
            report = Report.from_store(self._pipeline.store, since=asked.since, until=asked.until, client=client)
            try:
                return work(report)
            finally:
                report.close()

        async with self._one:
            return await asyncio.to_thread(read)


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415

    from proxy.report.shown import cell  # noqa: PLC0415

    made = Environment(
        loader=PackageLoader("proxy.dashboard", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.globals["cell"] = cell
    return made.get_template("spend.html.jinja")
