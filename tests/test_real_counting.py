"""Tokens of a real engine's answers, counted by its own tokenizer."""

from __future__ import annotations

import httpx
import pytest
import real_engine
from running import serving, settings

pytestmark = pytest.mark.engine
engine = real_engine.engine

MOST_MARKUP = 12
"""Tokens around a thought and an answer and at their end: `</think>` alone is four of this model's."""


async def test_parts_add_up_and_the_thought_is_counted_by_the_engine(engine):
    """In every one of random answers, whole and streamed, complete and cut at the cap."""
    given = settings(
        engine.url, engine="llama-server", family="generic", policy={"min_completion_tokens": 0, "sampling": "client"}
    )
    async with serving(given) as proxy, httpx.AsyncClient() as http:
        for seed in range(12):
            fields = {"seed": seed, "temperature": 1.0, "stream": bool(seed % 2), "max_tokens": 120 if seed % 3 else 30}
            question = {"role": "user", "content": f"Say something about the number {seed}."}
            response = await proxy.chat(question, thinking_budget_tokens=20, **fields)
            assert response.status_code == 200
            rows = await proxy.rows(seed + 1)
            said = rows[-1]
            assert said["reasoning_tokens"] + said["visible_tokens"] == said["completion_tokens"]
            if fields["stream"]:
                continue
            message = response.json()["choices"][0]["message"]
            counts = []
            for text in (message.get("reasoning_content") or "", message.get("content") or ""):
                told = await http.post(f"{engine.address}/tokenize", json={"content": text, "add_special": False})
                counts.append(len(told.json()["tokens"]))
            thought, text = counts
            if said["outcome"] == "answer_lost":
                assert said["visible_tokens"] == 0
            elif thought:
                assert said["reasoning_source"] == "tokenized"
                assert said["reasoning_tokens"] == thought
                assert 0 <= said["visible_tokens"] - text <= MOST_MARKUP
