"""`reasoning-proxy demo`: what the proxy is for, shown on a real small model, measured and checked.

The same conversation is held twice through a front end that drops the thought: straight to the engine, and through the
real proxy process. What the user is to see goes to stdout, progress to stderr.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import httpx
from rich.console import Console

from proxy.demo import shown
from proxy.demo.front_end import Conversation, DemoFailed, FrontEnd
from proxy.demo.server import proxy
from proxy.engine import Engine
from proxy.errors import ProxyError

QUESTIONS = ("How does a bicycle stay upright?", "Why is it harder when it is slow?")
SMALL_CAP = 48
"""`max_tokens` of the last request: less than the thought alone takes."""


def run(*, keep: bool, model: Path | None) -> int:
    """Hold the demo; `keep` leaves all running until Ctrl-C, `model` is a GGUF file to take for the bundled model.

    Returns the exit code: 0, or 1 with the reason on stderr. All processes have ended then.
    """
    talk = Console(stderr=True, highlight=False)
    try:
        with _signals_interrupt(), tempfile.TemporaryDirectory(prefix="reasoning-proxy-demo-") as folder:
            _hold(Path(folder), talk, keep=keep, model=model)
    except ProxyError as error:
        talk.print(f"error: {error.message}", style="red", markup=False, soft_wrap=True)
        return 1
    except httpx.HTTPError as error:
        talk.print(f"error: {type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        talk.print("stopped")
        return 1
    return 0


def _hold(folder: Path, talk: Console, *, keep: bool, model: Path | None) -> None:
    store = f"sqlite:///{folder / 'proxy.db'}"
    talk.print("starting the engine")
    with Engine(model, patience=120 if model is None else 3600) as engine:
        talk.print(f"starting the proxy in front of {engine.url}", markup=False, soft_wrap=True)
        with proxy(folder, engine, store) as url:
            talk.print(f"the proxy is at {url}", markup=False, soft_wrap=True)
            direct = _converse(talk, "straight to the engine", engine.url, engine.model)
            proxied = _converse(talk, "through the proxy", url, engine.model)
            out = shown.console()
            shown.opening(out, engine.model)
            shown.turns(out, QUESTIONS, direct, proxied)
            shown.small_cap(out, QUESTIONS[0], SMALL_CAP, direct, proxied)
            shown.decisions(out, proxied)
            shown.spend(out, store, requests=3)
            _check(direct, proxied, bundled=model is None)
            out.print(shown.NEXT, markup=False, soft_wrap=True, end="")
            if keep:
                _wait(talk, engine.url, url)


def _converse(talk: Console, where: str, url: str, model: str) -> Conversation:
    """The script. The small cap comes last, for it takes the engine's slot from the conversation."""
    with talk.status("") as status:

        def progress(turn: str) -> Callable[[str], None]:
            talk.print(f"{where}: {turn}", markup=False, soft_wrap=True)
            status.update("the model reads")
            return lambda doing: status.update(f"the model {doing}")

        chat = FrontEnd(url, model, progress("turn 1"))
        first = chat.ask(QUESTIONS[0])
        chat.progress = progress("turn 2")
        second = chat.ask(QUESTIONS[1])
        alone = FrontEnd(url, model, progress(f"turn 1 again, with max_tokens = {SMALL_CAP}"))
        return Conversation(first, second, alone.ask(QUESTIONS[0], max_tokens=SMALL_CAP))


def _check(direct: Conversation, proxied: Conversation, *, bundled: bool) -> None:
    """That it was shown and not only said. Raises DemoFailed."""
    with_proxy, without = proxied.second.cached, direct.second.cached
    claims = {
        "no thought was put back at turn 2": proxied.second.restored > 0,
        f"turn 2 found {with_proxy} prompt tokens in the cache, and {without} without the proxy": with_proxy > without,
        f"the answer to max_tokens = {SMALL_CAP} is empty through the proxy": bool(proxied.capped.text.strip()),
    }
    wrong = [claim for claim, holds in claims.items() if not holds]
    if wrong and not bundled:
        wrong.append("a model that does not think, or whose template leaves past thoughts out, cannot show it")
    if wrong:
        raise DemoFailed("the demo did not show what it should:\n  " + "\n  ".join(wrong))


def _wait(talk: Console, engine: str, url: str) -> None:
    """Until Ctrl-C."""
    talk.print(f"still running, until Ctrl-C:\n  engine  {engine}\n  proxy   {url}", markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal come as KeyboardInterrupt, so that every block is left in order."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
