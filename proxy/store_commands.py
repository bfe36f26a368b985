"""The commands `reasoning-proxy store …`, which look after the turns, also while a proxy runs on the same store."""

# ruff: noqa: PLC0415 - what loads slowly is imported in the command that needs it: `--help` answers at once

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proxy import options

if TYPE_CHECKING:
    from proxy.store.turns import Gone
    from proxy.store.upkeep import Stats, Upkeep

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def store() -> None:
    """Look after the kept turns: the thoughts, and what is needed to put them back.

    \b
    Example:
      reasoning-proxy store stats
    """


def _place(command: _Command) -> _Command:
    url = click.option("--store", "url", metavar="URL", help="The store.  [default: as the settings say]")
    return options.config(url(command))


def _choice(command: _Command) -> _Command:
    client = click.option("--client", metavar="NAME", help="Of this client, by its name in the settings.")
    conversation = click.option("--conversation", metavar="HASH", help="Of this conversation, as the ledger names it.")
    return client(conversation(command))


@store.command()
@_place
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def stats(config: Path | None, url: str | None, as_json: bool) -> None:
    """Count turns, and the room that they take.

    \b
    Example:
      reasoning-proxy store stats --json
    """
    with _opened(config, url, writes=False) as upkeep:
        found = upkeep.stats()
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found))
    else:
        click.echo(_text(found))


@store.command()
@_place
@click.option("--max-age-days", type=click.IntRange(0), metavar="N", help="Instead of the setting; 0: no limit.")
@click.option("--max-mb", type=click.IntRange(0), metavar="N", help="Instead of the setting; 0: no limit.")
def prune(config: Path | None, url: str | None, max_age_days: int | None, max_mb: int | None) -> None:
    """Apply the limits of [history] now.

    Turns over them are deleted, and the free room goes back to the disk. A running proxy applies the limits by itself,
    but keeps the room for what comes.

    \b
    Example:
      reasoning-proxy store prune --max-age-days 7
    """
    from proxy import progress
    from proxy.store.limits import Limits

    if max_age_days is None or max_mb is None:
        from proxy.config import load

        history = load(config, require_backends=False).history
        max_age_days = history.max_age_days if max_age_days is None else max_age_days
        max_mb = history.max_mb if max_mb is None else max_mb
    with _opened(config, url) as upkeep:
        before = upkeep.file_bytes()
        with progress.rows_done("deleting turns") as told:
            gone = upkeep.prune(Limits(max_age_days, max_mb), told)
        click.echo(_said("deleted", gone))
        with progress.waiting("giving room back"):
            complaint = upkeep.reclaim()
        click.echo(f"{before:,} bytes on disk before, {upkeep.file_bytes():,} now")
    if complaint:
        click.echo(f"warning: {complaint}", err=True)


@store.command()
@_place
@_choice
def export(config: Path | None, url: str | None, client: str | None, conversation: str | None) -> None:
    """Write turns as lines of JSON.

    One object a line, to stdout; all turns, where nothing is chosen.

    \b
    Example:
      reasoning-proxy store export --client openwebui > turns.jsonl
    """
    import msgspec

    from proxy import progress

    some = False
    # On a terminal the turns themselves show how it goes.
    bar = nullcontext() if sys.stdout.isatty() else progress.rows_done("writing turns")
    with _opened(config, url, writes=False) as upkeep, bar as told:
        for turn in upkeep.export(client, conversation, told):
            click.echo(msgspec.json.encode(turn))
            some = True
    if not some:
        _say_none(client, conversation)


@store.command()
@_place
@_choice
def forget(config: Path | None, url: str | None, client: str | None, conversation: str | None) -> None:
    """Delete the turns of a client or conversation.

    With both options, those of the conversation that are also the client's. The texts that no other turn uses go along,
    and nothing of them is left in the file. The ledger keeps its rows: they hold counts and names, and no text.

    The file is written anew, which takes as much room again for a moment; a running proxy waits meanwhile.

    \b
    Example:
      reasoning-proxy store forget --client openwebui
    """
    if client is None and conversation is None:
        raise click.UsageError("say whose turns: --client NAME, --conversation HASH, or both")
    from proxy import progress

    complaint = None
    with _opened(config, url) as upkeep:
        with progress.rows_done("deleting turns") as told:
            gone = upkeep.forget(client, conversation, told)
        click.echo(_said("forgotten", gone))
        if gone.turns:
            with progress.waiting("writing the rest anew"):
                complaint = upkeep.reclaim()
    if not gone.turns:
        _say_none(client, conversation)
    if complaint:
        click.echo(f"error: the turns are deleted, but traces of them may be left on the disk: {complaint}", err=True)
        click.echo("error: run `reasoning-proxy store prune` to remove these", err=True)
        sys.exit(1)


def _opened(config: Path | None, url: str | None, *, writes: bool = True) -> Upkeep:
    from proxy.store import open_upkeep

    if url is None:
        from proxy.config import load

        url = load(config, require_backends=False).store.url
    return open_upkeep(url, writes=writes)


def _said(what: str, gone: Gone) -> str:
    return f"{gone.turns:,} {'turn' if gone.turns == 1 else 'turns'} {what}, {gone.bytes:,} bytes"


def _say_none(client: str | None, conversation: str | None) -> None:
    chosen = [f"client {client!r}"] if client is not None else []
    chosen += [f"conversation {conversation!r}"] if conversation is not None else []
    click.echo(f"there is no turn{' of ' if chosen else ''}{' and '.join(chosen)}", err=True)


def _text(found: Stats) -> str:
    used = f"{found.oldest_use} to {found.newest_use}" if found.turns else "-"
    lines = [
        f"turns         {found.turns:,}",
        f"texts         {found.texts:,} different",
        f"text bytes    {found.text_bytes:,}",
        f"stored bytes  {found.stored_bytes:,}",
        f"file bytes    {found.file_bytes:,}",
        f"used          {used}",
    ]
    if found.clients:
        names = [one.client or "-" for one in found.clients]
        wide = max(12, *map(len, names))
        lines += ["", f"{'client':<{wide}}  {'turns':>9}  last used"]
        lines += [
            f"{name:<{wide}}  {one.turns:>9,}  {one.newest_use}" for name, one in zip(names, found.clients, strict=True)
        ]
    return "\n".join(lines)
