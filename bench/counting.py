"""How well tokens are counted: answers of the embedded engine, by the proxy's own counting and by what it reports.

    python bench/counting.py [--answers 100]

For each random answer: the thought and the text by the engine's `/tokenize`, and what is left of its
`completion_tokens`, which is mark-up and the end of the turn; and how far tiktoken's offline encoding, which knows
nothing of the model, is from the engine's own count of the thought.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from pathlib import Path

import httpx

from proxy import tokens
from proxy.counting import counted
from proxy.engine import Engine
from proxy.events import Event, Part, Usage
from proxy.fold import Fold

WORDS = (Path(__file__).parent / "words.txt").read_text("utf-8").split()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--answers", type=int, default=100)
    wanted = parser.parse_args().answers
    markup: Counter[int] = Counter()
    errors, sums = [], 0
    with Engine() as engine, httpx.Client(timeout=120) as client:

        def own(text: str) -> int:
            told = client.post(f"{engine.address}/tokenize", json={"content": text, "add_special": False}).json()
            return len(told["tokens"])

        for seed in range(wanted):
            question = " ".join(random.Random(seed).sample(WORDS, 6))  # noqa: S311 - figures, not secrets
            body = {
                "model": "any",
                "messages": [{"role": "user", "content": f"Tell me about {question}"}],
                "max_tokens": 200,
                "thinking_budget_tokens": 24 + seed % 60,
                "seed": seed,
            }
            told = client.post(f"{engine.url}/chat/completions", json=body).json()
            message, completion = told["choices"][0]["message"], told["usage"]["completion_tokens"]
            thought, text = message.get("reasoning_content") or "", message.get("content") or ""
            fold = Fold()
            fold.add(Event(b"", [Part(reasoning=thought, text=text)]))
            found = counted(fold, Usage(completion=completion), own)
            guess = counted(fold, Usage(completion=completion))
            if found is None or guess is None:
                continue
            sums += found.reasoning + found.visible == completion
            markup[completion - own(thought) - own(text)] += 1
            if thought:
                errors.append(tokens.count(thought) / max(1, own(thought)) - 1)
    print(f"answers whose thought and visible part add up to the engine's count: {sums} of {wanted}")
    print(f"tokens of mark-up and end in an answer: {dict(sorted(markup.items()))}")
    print(f"tiktoken's count of a thought against the engine's: mean {statistics.mean(errors):+.1%}, ", end="")
    print(f"least {min(errors):+.1%}, most {max(errors):+.1%}")


if __name__ == "__main__":
    main()
