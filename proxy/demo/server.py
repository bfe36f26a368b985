"""The real proxy as a process of its own, in front of the engine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from proxy.demo.front_end import DemoFailed
from proxy.engine import Engine, end, tail

CONFIG = """\
[backends.demo]
url = {url}
slow = true                    # as a large model on a small box is: the default effort is the lowest

[models.{model}]               # a made-up price, USD per million tokens
price = {{ input = 3.0, cached_input = 0.3, output = 15.0 }}

[policy]                       # small numbers for a small model; the defaults are 5000 and 1024
min_completion_tokens = 256
answer_reserve_tokens = 128

[store]
url = {store}
"""

PROXY = """\
import sys, threading
from proxy.cli import main
from proxy.engine import end_with
threading.Thread(target=end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
main(prog_name="reasoning-proxy")
"""
"""`reasoning-proxy` that also ends when its parent was killed and could not end it."""


@contextlib.contextmanager
def proxy(folder: Path, engine: Engine, store: str) -> Iterator[str]:
    """The proxy in front of `engine`, with its store at the URL `store`; gives its own URL. It has ended after the
    block. Raises DemoFailed with the end of its log where it does not start."""
    config = folder / "config.toml"
    # A JSON string is a TOML string, but for characters that JSON would escape by two halves.
    values = {"url": engine.url, "model": engine.model, "store": store}
    quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    config.write_text(CONFIG.format(**quoted), encoding="utf-8")
    with (folder / "proxy.log").open("w+b") as log:
        for _ in range(3):  # another program may take the free port first
            port = free_port()
            words = [str(os.getpid()), "serve", "--config", str(config), "--port", str(port)]
            child = subprocess.Popen(  # noqa: S603 - this interpreter, our own words
                [sys.executable, "-c", PROXY, *words],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes to the demo alone, which ends its children in its order
            )
            try:
                if healthy(port, child):
                    yield f"http://127.0.0.1:{port}/v1"
                    return
            finally:
                end(child, seconds=10)
        raise DemoFailed(f"the proxy does not start:\n{tail(log)}")


def environment() -> dict[str, str]:
    """Without the user's settings for the proxy: those in the demo's own file are to hold."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("REASONING_PROXY_")}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(port: int, child: subprocess.Popen[bytes]) -> bool:
    """Whether the proxy answers, before it ends and within a minute."""
    late = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < late:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success:
                return True
        time.sleep(0.05)
    return False
