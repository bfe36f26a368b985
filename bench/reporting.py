"""What a report on a large ledger costs: seconds, CPU and peak memory of the real command, for each kind of ledger.

python bench/reporting.py [--rows 1000000]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from proxy.messages import Entry
from proxy.store.rows import INSERT, to_line, to_sql
from proxy.store.schema import connect, migrate, transaction

MODELS = ("kimi-k3", "kimi-k3.1-pro", "qwen3-30b", "Kimi-K3-UD-IQ1_S")
BATCH = 5_000


def entries(count: int) -> Iterator[Entry]:
    """A year or so of traffic."""
    chance = random.Random(1)  # noqa: S311 - figures, not secrets
    start = datetime(2025, 12, 1, tzinfo=UTC)
    for number in range(count):
        thought, said, prompt = chance.randint(0, 6000), chance.randint(1, 900), chance.randint(50, 60_000)
        cached, model = chance.randint(0, prompt), chance.choice(MODELS)
        cost = ((prompt - cached) * 3 + cached * 0.3 + (thought + said) * 15) / 1e6
        moment = start + timedelta(seconds=30 * number)
        yield Entry(
            ts=f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z",
            request_id=f"req_{number:024x}",
            client=chance.choice(("openwebui", "agents", None)),
            conversation=f"{number // 8:032x}",
            endpoint="/v1/chat/completions",
            model=model,
            upstream_model=model,
            backend=chance.choice(("box", "hosted")),
            effort_sent=chance.choice(("low", "high", "max", None)),
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=thought + said,
            reasoning_tokens=thought,
            visible_tokens=said,
            reasoning_source="tokenized",
            turns_restored=chance.randint(0, 4),
            duration_ms=9_000,
            outcome=chance.choice(("ok",) * 20 + ("answer_lost",)),
            status=200,
            attempts=1,
            cost_usd=None if model.startswith("qwen") else f"{cost:.7f}",
            cache_saved_usd=f"{cached * 2.7 / 1e6:.7f}",
            price_source="config",
            decisions=["restore", "effort", "floor"],
        )


def measured(*arguments: str) -> str:
    """Seconds, CPU and memory of one run of the command."""
    began = time.monotonic()
    command = [sys.executable, "-m", "proxy", "report", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the report failed: {arguments}")
    cpu = usage.ru_utime + usage.ru_stime
    return f"{time.monotonic() - began:6.1f} s, {cpu:6.1f} s of CPU, {usage.ru_maxrss / 1024:5.0f} MB"


def main() -> None:
    """Make the ledgers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    count = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        database, lines = Path(folder, "ledger.db"), Path(folder, "ledger.jsonl")
        connection = connect(database)
        migrate(connection, database)
        batch: list[Entry] = []
        with lines.open("wb") as file, transaction(connection):
            for entry in entries(count):
                batch.append(entry)
                file.write(to_line(entry))
                if len(batch) == BATCH:
                    connection.executemany(INSERT, map(to_sql, batch))
                    batch.clear()
            connection.executemany(INSERT, map(to_sql, batch))
        connection.close()
        for name, path in (("SQLite", database), ("JSON lines", lines)):
            for more in ((), ("--by", "day"), ("--by", "effort"), ("--compare", "kimi-k3")):
                print(f"{name:10} {' '.join(more) or 'default':18} {measured('--ledger', str(path), *more)}")


if __name__ == "__main__":
    main()
