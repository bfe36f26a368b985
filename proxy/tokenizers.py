"""Counting in a model's own tokens: by its engine's `/tokenize`, or by a file of its vocabulary.

All of it runs in threads of its own, after an answer: never on a client's path, and never in the event loop, in which
somebody may wait for the row.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import httpx

from proxy import config, tokens
from proxy.counting import Count
from proxy.dialects import Dialect, tokens_in
from proxy.errors import ConfigError
from proxy.probes import origin

log = logging.getLogger(__name__)

SECONDS = 0.5
"""So long an engine may take: a row shall be on disk within a second."""
AGAIN_SECONDS = 60.0
"""After so long an engine that did not answer is asked again."""
_THREADS = 4

T = TypeVar("T")


class Tokenizers:
    """Those of all backends."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")
        self._clients: dict[str, httpx.Client] = {}
        self._silent: dict[str, float] = {}
        self._making = threading.Lock()

    def of(self, backend: str, dialect: Dialect, model: str, pattern: str, authorization: str) -> Count | None:
        """What counts texts in a model's tokens, None where nothing can. `pattern` is that of its words; the caller's
        `authorization` serves where the backend has no key of its own."""
        table = self._settings.backends[backend]
        path, key = table.tokenizer, table.authorization or authorization
        if not dialect.tokenizes:
            return partial(_by_file, path, pattern) if path else None

        def count(text: str) -> int | None:
            found = self._by_engine(backend, dialect, model, key, text)
            return _by_file(path, pattern, text) if found is None and path else found

        return count

    def submit(self, work: Callable[[], T]) -> Future[T] | None:
        """Do it in a thread; None where these have ended."""
        try:
            return self._pool.submit(work)
        except RuntimeError:
            return None

    def _by_engine(self, backend: str, dialect: Dialect, model: str, authorization: str, text: str) -> int | None:
        if self._silent.get(backend, 0.0) > time.monotonic():
            return None
        body = {dialect.tokenizes: text, "model": model, "add_special": False, "add_special_tokens": False}
        headers = {"authorization": authorization} if authorization else {}
        url = f"{origin(self._settings.backends[backend].base)}/tokenize"
        try:
            answer = self._client(backend).post(url, json=body, headers=headers)
            found = tokens_in(answer.json()) if answer.status_code == 200 else None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            found = None
        if found is None:
            self.give_up(backend)
        return found

    def give_up(self, backend: str) -> None:
        """It does not count, or not in time: it is asked again later."""
        log.debug("backend %s does not count tokens", backend)
        self._silent[backend] = time.monotonic() + AGAIN_SECONDS

    def _client(self, backend: str) -> httpx.Client:
        with self._making:
            if backend not in self._clients:
                self._clients[backend] = httpx.Client(timeout=SECONDS, trust_env=False)
            return self._clients[backend]

    def close(self) -> None:
        """End the threads, and close all connections."""
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients.values():
            client.close()


def _by_file(path: str, pattern: str, text: str) -> int | None:
    try:
        return tokens.count(text, tokens.vocabulary(path, pattern))
    except ConfigError as error:
        log.warning("tokens are estimated: %s", error.message)
        return None
