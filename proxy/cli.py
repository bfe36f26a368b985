"""The command line. Data goes to stdout, talk to stderr; exit codes: 0 good, 1 failed, 2 usage or configuration."""

# ruff: noqa: PLC0415 - what loads slowly is imported in the command that needs it: `--help` answers at once
# ruff: noqa: PLR0917 - click passes options by name

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proxy import __version__, options, store_commands, tail_command
from proxy.errors import ConfigError, ProxyError

if TYPE_CHECKING:
    from proxy.config import Backend

BY = ("day", "hour", "model", "backend", "client", "effort", "kind", "outcome", "conversation")
FORMATS = ("table", "json", "jsonl", "csv", "html")

CLASH = (
    'the distribution "proxy.py" is installed here too, and its package has the same name, "proxy"; install '
    "reasoning-proxy into an environment of its own: python -m venv .venv && .venv/bin/pip install reasoning-proxy"
)


class _Commands(click.Group):
    """Expected errors become lines on stderr and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ProxyError as error:
            for line in error.message.split("\n"):
                click.echo(f"error: {line}", err=True)
            return ctx.exit(2 if isinstance(error, ConfigError) else 1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="reasoning-proxy %(version)s")
def main() -> None:
    """A proxy for thinking models behind OpenAI-compatible servers.

    \b
    Example:
      reasoning-proxy serve --backend http://127.0.0.1:8080/v1
    """
    _refuse_clash()


def _refuse_clash() -> None:
    """Two distributions with a package of one name overwrite each other's files, whichever came last."""
    try:
        importlib.metadata.distribution("proxy.py")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ConfigError(CLASH)


@main.command()
@options.config
@click.option("--backend", metavar="URL", help='Serve this backend, under the name "default".')
@click.option("--engine", help="What runs there; needs --backend.  [default: auto]")
@click.option("--family", help="The family of its models; needs --backend.  [default: auto]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on.  [default: 8484]")
def serve(
    config: Path | None,
    backend: str | None,
    engine: str | None,
    family: str | None,
    host: str | None,
    port: int | None,
) -> None:
    """Run the proxy. With --backend no file is needed.

    \b
    Example:
      reasoning-proxy serve --backend http://127.0.0.1:8080/v1 --engine llama-server
    """
    _needs_backend(backend, engine, family)
    from proxy.config import load

    overrides = {"server": _given(host=host, port=port)}
    if backend is not None:
        overrides["backends"] = {"default": _given(url=backend, engine=engine, family=family)}
    settings = load(config, overrides=overrides)
    from proxy import app

    app.serve(settings)


@main.command()
@click.option("--keep", is_flag=True, help="Leave the proxy and the engine running until Ctrl-C.")
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Another model, as a GGUF file.",
)
def demo(keep: bool, model: Path | None) -> None:
    """Show what the proxy does, on a real small model. Ends by itself.

    \b
    Example:
      reasoning-proxy demo --keep
    """
    from proxy import demo as show

    sys.exit(show.run(keep=keep, model=model))


@main.command()
@options.config
@click.option("--ledger", metavar="URL", help="The store or JSONL file to read.  [default: as the settings say]")
@click.option("--since", metavar="TIME", help="From this time on: 2026-11-01, 2026-11, today, last week, 7d, 24h.")
@click.option("--until", metavar="TIME", help="Up to this time; a day, week or month counts to its end.")
@click.option("--by", type=click.Choice(BY), default="model", show_default=True, help="One row for each.")
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How rows are written.",
)
@click.option(
    "--compare", metavar="MODEL", help="What the same traffic costs at this model's price, and the break-even."
)
@click.option("--reprice", is_flag=True, help="By today's prices instead of those in the rows, which stay as they are.")
def report(
    config: Path | None,
    ledger: str | None,
    since: str | None,
    until: str | None,
    by: str,
    style: str,
    compare: str | None,
    reprice: bool,
) -> None:
    """Say what was thought, what was said and what it cost.

    \b
    Example:
      reasoning-proxy report --since 7d --by client --compare kimi-k3
    """
    from proxy.progress import bytes_read
    from proxy.report import Report

    settings = None
    if ledger is None or compare is not None or reprice:
        from proxy.config import load

        settings = load(config, require_backends=False)
    tariffs = None
    if settings is not None and (compare is not None or reprice):
        from proxy.tariffs import Tariffs

        tariffs = Tariffs(settings)
    where = ledger if ledger is not None else settings.ledger_url if settings is not None else ""
    with bytes_read("reading the ledger") as told:
        found = Report.from_ledger(where, since=since, until=until, progress=told)
        if reprice and tariffs is not None:
            found = found.repriced(tariffs)
        text = found.render(by, style, compare=compare, tariffs=tariffs)
    click.echo(text.removesuffix("\n"))


main.add_command(store_commands.store)
main.add_command(tail_command.tail)


@main.command()
@options.config
@click.option("--backend", metavar="URL", help="Look at this backend alone.")
@click.option("--engine", help="What runs there; needs --backend.  [default: auto]")
@click.option("--family", help="What its models want; needs --backend.  [default: auto]")
@click.option(
    "--generate/--no-generate",
    default=None,
    help="Ask for short answers, also of hosted services, which cost money; or of none.  [default: where it is free]",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON document.")
def doctor(
    config: Path | None,
    backend: str | None,
    engine: str | None,
    family: str | None,
    generate: bool | None,
    as_json: bool,
) -> None:
    """Ask each backend what it does with thoughts, and say what helps.

    Exit code 0: nothing hurts; 1: something does, or a backend is down; 2: the settings or options are wrong.

    \b
    Example:
      reasoning-proxy doctor --backend http://127.0.0.1:8080/v1
    """
    import asyncio

    from proxy import doctor as checks
    from proxy.config import load

    _needs_backend(backend, engine, family)
    overrides = {"backends": {"default": _given(url=backend, engine=engine, family=family)}} if backend else {}
    settings = load(config, overrides=overrides, require_backends=backend is None)
    names = ["default"] if backend is not None else None
    found = asyncio.run(checks.run(settings, names, generate=generate, say=lambda line: click.echo(line, err=True)))
    click.echo(checks.document(found) if as_json else checks.text(found))
    sys.exit(1 if any(each.hurts for each in found) else 0)


@main.command()
@click.argument("request", metavar="REQUEST.json")
@options.config
@click.option("--client", metavar="NAME", help="Ask as this client of the settings.  [default: the first]")
@click.option(
    "--header",
    "lines",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="A header of the request, for rules and to tell user and conversation; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def explain(request: str, config: Path | None, client: str | None, lines: tuple[str, ...], as_json: bool) -> None:
    """Print the plan for a chat request, which is not sent.

    REQUEST.json has the body of a chat completion request; - reads it from stdin. Shown are the decisions with their
    reasons, the turns whose thoughts go back, and the body as it would go upstream. Backends are asked what they are,
    but generate nothing, and the store is only read.

    Exit code 0: it would be sent; 1: it would be refused; 2: the settings or options are wrong.

    \b
    Example:
      reasoning-proxy explain request.json --client openwebui
    """
    import asyncio

    from proxy import explain as explaining
    from proxy.config import load

    def say(line: str) -> None:
        click.echo(line, err=True)

    headers = dict(map(_header, lines))
    if client is not None and "authorization" in headers:
        raise click.UsageError("--client and the header authorization both say who asks; one is enough")
    settings = load(config)
    body = _content(request)
    headers = explaining.as_client(settings, client, headers, say)
    made = asyncio.run(explaining.run(settings, body, headers, say))
    click.echo(explaining.document(made) if as_json else explaining.text(made))


@main.group()
def config() -> None:
    """Check or show the settings.

    \b
    Example:
      reasoning-proxy config check --config config.toml
    """


@config.command()
@options.config
def check(config: Path | None) -> None:
    """Say OK and a line for each backend, or name every problem.

    \b
    Example:
      reasoning-proxy config check --config config.toml
    """
    from proxy.config import hints, load

    settings = load(config)
    for hint in hints(settings):
        click.echo(f"warning: {hint}", err=True)
    click.echo("OK")
    for name, backend in settings.backends.items():
        click.echo(_summary(name, backend))


@config.command()
@options.config
def show(config: Path | None) -> None:
    """Print the effective settings as TOML, secrets hidden.

    \b
    Example:
      REASONING_PROXY_SERVER__PORT=9000 reasoning-proxy config show
    """
    from proxy.config import load, show

    click.echo(show(load(config)), nl=False)


def _needs_backend(backend: str | None, engine: str | None, family: str | None) -> None:
    if backend is None and (engine is not None or family is not None):
        raise click.UsageError("--engine and --family say what --backend URL is; the URL is missing")


def _header(line: str) -> tuple[str, str]:
    """Its lower-case name, and its value."""
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"--header {line!r} is none; it looks like --header 'x-session-id: 42'")
    return name.strip().lower(), value.strip()


def _content(name: str) -> bytes:
    """That of a file, or of stdin."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        what = "give the file of a chat completion request's body, or - for stdin"
        raise click.UsageError(f"{name!r} cannot be read ({reason}); {what}") from None


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _summary(name: str, backend: Backend) -> str:
    if backend.key is None:
        key = "the client's key"
    else:
        key = f"key from {backend.api_key_env}" if backend.api_key_env else "key from the settings"
    models = ", ".join(backend.models) or "asked from it"
    return f"{name}: {backend.shown_url}, engine {backend.engine}, family {backend.family}, {key}, models {models}"
