"""What the demo writes to stdout."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.demo.front_end import Conversation, DemoFailed
from proxy.demo.server import environment
from proxy.errors import ProxyError
from proxy.report import Report

NEXT = """
Next, with a model server of your own:
  reasoning-proxy serve --backend http://127.0.0.1:8080/v1
and point Open WebUI, or any other OpenAI client, at http://127.0.0.1:8484/v1
"""

_SIDES = ("straight to the engine", "through the proxy")
_COMPARED = """\
Compared are the prompts of turn 2. The engine has one slot, and one conversation was held after the other: at turn 2 \
its cache holds what turn 1 of the same conversation left there. Turn 1 itself found {} and {} tokens."""


def console() -> Console:
    """Standard output: as wide as the terminal, or 100 columns where it goes elsewhere."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def opening(out: Console, model: str) -> None:
    """What the reader is looking at."""
    out.print(Text(f"{model} on llama.cpp's own server. Look at its tokens rather than at what it says."))


def turns(out: Console, questions: tuple[str, str], direct: Conversation, proxied: Conversation) -> None:
    """Two turns side by side."""
    both = (direct, proxied)
    _heading(out, "1. Two turns through a front end that keeps only role and content", *questions)
    table = _table("", *_SIDES)
    table.add_row("turn 1  thought", *(f"{len(it.first.thought.split())} words" for it in both))
    table.add_row("        answer", *(_short(it.first.text) for it in both), end_section=True)
    table.add_row("turn 2  thoughts put back", "none", str(proxied.second.restored))
    table.add_row("        prompt tokens cached", *(Text(str(it.second.cached), "bold") for it in both))
    table.add_row("        prompt tokens evaluated", *(Text(str(it.second.fresh), "bold") for it in both))
    table.add_row("        answer", *(_short(it.second.text) for it in both))
    out.print(table)
    out.print(_COMPARED.format(direct.first.cached, proxied.first.cached))


def small_cap(out: Console, question: str, cap: int, direct: Conversation, proxied: Conversation) -> None:
    """An answer lost to thinking, and the same request answered."""
    both = (direct, proxied)
    _heading(out, f"2. The first question alone, with max_tokens = {cap}", question)
    table = _table("", *_SIDES)
    table.add_row("answer", *(_short(it.capped.text) if it.capped.text else Text("(empty)", "bold") for it in both))
    table.add_row("tokens written", *(str(it.capped.written) for it in both))
    table.add_row("finish_reason", *(it.capped.finish for it in both))
    out.print(table)


def decisions(out: Console, proxied: Conversation) -> None:
    """The response headers in which the proxy says what it did."""
    answers = (proxied.first, proxied.second, proxied.capped)
    _heading(out, "3. What the proxy says it did, in the headers of its responses")
    table = _table("x-proxy-…", "turn 1", "turn 2", "small cap")
    for name in ("effort", "max-tokens", "thinking-budget", "history", "decisions"):
        values = (answer.headers.get(f"x-proxy-{name}", "") for answer in answers)
        table.add_row(name, *(Text(re.sub("[;,] ?", "\n", value)) for value in values), end_section=True)
    out.print(table)


def spend(out: Console, store: str, *, requests: int) -> None:
    """The report on the ledger, by the command that users run. Raises DemoFailed where that fails."""
    for _ in range(50):  # a row is on disk within a second
        with contextlib.suppress(ProxyError):
            if sum(row["requests"] for row in Report.from_ledger(store).by("model")) >= requests:
                break
        time.sleep(0.1)
    _heading(out, "4. What it cost, at a made-up price")
    for key in ("model", "effort"):
        out.print(f"\n$ reasoning-proxy report --by {key}", style="italic")
        sys.stdout.flush()
        command = [sys.executable, "-m", "proxy", "report", "--ledger", store, "--by", key]
        done = subprocess.run(command, env=environment(), check=False)  # noqa: S603 - our own words
        if done.returncode:
            raise DemoFailed(f"reasoning-proxy report fails with exit code {done.returncode}")


def _heading(out: Console, text: str, *questions: str) -> None:
    out.print(f"\n{text}", style="bold")
    for question in questions:
        out.print(f"   “{question}”", style="italic")


def _table(*heads: str) -> Table:
    table = Table()
    for head in heads:
        table.add_column(head, overflow="fold")
    table.columns[0].no_wrap = True
    return table


def _short(text: str, words: int = 14) -> Text:
    found = text.split()
    return Text(" ".join(found[:words]) + (" …" if len(found) > words else ""))
