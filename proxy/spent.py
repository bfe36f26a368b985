"""What clients have spent, as the ledger tells it, for their budgets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from decimal import Decimal
from functools import partial

from proxy.budgets import Budgets, Spent
from proxy.errors import ProxyError
from proxy.report import Report
from proxy.store import Store

log = logging.getLogger(__name__)

REREAD_SECONDS = 10.0
"""From one look at what other proxies let their clients spend to the next."""
_TOKENS = ("prompt_tokens", "completion_tokens")


def by_client(store: Store, since: str) -> dict[str, Spent]:
    """What each client has spent since a time."""
    with closing(Report.from_store(store, since=since)) as report:
        rows = report.by("client")
    return {
        row["client"]: Spent(sum(row[name] or 0 for name in _TOKENS), Decimal(row["cost_usd"] or 0))
        for row in rows
        if row["client"] is not None
    }


async def reread(budgets: Budgets, store: Store) -> None:
    """Where several proxies write one ledger, each learns now and then what was spent at the others; without end."""
    while True:
        await asyncio.sleep(REREAD_SECONDS)
        try:
            await asyncio.to_thread(budgets.load, partial(by_client, store))
        except ProxyError as error:
            log.warning("what was spent cannot be read now: %s", error.message)
