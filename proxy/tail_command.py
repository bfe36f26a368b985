"""The command `reasoning-proxy tail`: requests, as they end."""

# ruff: noqa: PLC0415 - what loads slowly is imported when it is needed: `--help` answers at once
# ruff: noqa: PLR0917 - click passes options by name

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from proxy import options

OUTCOMES = (
    *("ok", "length", "answer_lost", "client_disconnected", "upstream_error", "upstream_unreachable", "rejected"),
)


@click.command()
@options.config
@click.option("--ledger", metavar="URL", help="The store or JSONL file to read.  [default: as the settings say]")
@click.option("--follow", "-f", is_flag=True, help="Go on with those that come, until Ctrl-C; wait for a ledger.")
@click.option("--lines", "-n", type=click.IntRange(0), default=20, show_default=True, metavar="N", help="The last N.")
@click.option("--client", metavar="NAME", help="Of this client, by its name in the settings.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="With this outcome.")
@click.option("--json", "as_json", is_flag=True, help="The whole row of each, as one JSON object a line.")
def tail(
    config: Path | None,
    ledger: str | None,
    follow: bool,
    lines: int,
    client: str | None,
    outcome: str | None,
    as_json: bool,
) -> None:
    """Show the last requests, a line each.

    Time, model, backend, effort, tokens of thought and of visible text, cost, duration, outcome, and what the proxy
    did. A line is cut to the width of the terminal, and whole elsewhere.

    \b
    Example:
      reasoning-proxy tail --follow --outcome answer_lost
    """
    from proxy.store.following import Wanted
    from proxy.tail import tail

    if ledger is None:
        from proxy.config import load

        ledger = load(config, require_backends=False).ledger_url
    # Ctrl-C is how following ends.
    with suppress(KeyboardInterrupt):
        tail(ledger, lines, Wanted(client, outcome), follow=follow, as_json=as_json)
