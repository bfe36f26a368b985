"""Run a scripted backend that thinks and repeats, to try the proxy without a model."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from proxy.testing import STYLES, FakeBackend, echo


async def serve(options: argparse.Namespace) -> None:
    """Answer until the process is stopped."""
    backend = FakeBackend(
        rules=lambda request: echo(request, options.gap), style=options.style, model=options.model, port=options.port
    )
    async with backend:
        sys.stdout.write(f"{options.style} at {backend.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proxy.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--style", choices=sorted(STYLES), default="openai", help="how to write (default: %(default)s)")
    parser.add_argument("--model", default="fake", help="its name in the list of models (default: %(default)s)")
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between two words (default: %(default)s)")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
