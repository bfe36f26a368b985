"""What a dropped thought costs on a real engine, and that the proxy saves all of it.

One conversation with tool calls, held three times. `pytest -s tests/test_real_memory.py` shows the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import real_engine
from running import serving, settings

pytestmark = pytest.mark.engine
engine = real_engine.engine

TURNS = 10
WORDS = r'root ::= "\nRead" (" it" | " all") ".\n</think>\n\n" ("Done" | "Good" | "Nothing") "."'
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
EVERY: dict[str, Any] = {"model": "any", "tools": TOOLS, "temperature": 0, "seed": 1, "max_tokens": 40}
CALL = {**EVERY, "tool_choice": "required", "thinking_budget_tokens": 16, "logit_bias": [["response", -100]]}
"""The model thinks and calls: it is asked as in the two examples of its template, and may not play the tool itself."""
ANSWER = {**EVERY, "tool_choice": "none", "grammar": WORDS}
"""The model thinks and answers, in few words."""


@dataclass
class Client:
    """A front end that holds the conversation, and what its prompts cost the engine."""

    name: str
    keeps: bool
    said: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)

    async def hold(self, url: str, turns: int = TURNS, **fields: Any) -> None:
        """Question, call, result, answer, and the next question."""
        once = httpx.Limits(max_keepalive_connections=0)  # the engine closes idle connections without notice
        async with httpx.AsyncClient(timeout=120, limits=once) as http:
            for turn in range(turns):
                calls = self.answers[-1].get("tool_calls") if self.answers else None
                question = {"role": "user", "content": "Show me a call."}
                results = [{"role": "tool", "tool_call_id": call["id"], "content": "a.txt"} for call in calls or ()]
                self.said += results or [question]
                body = {**(ANSWER if turn % 2 else CALL), **fields, "messages": self.said}
                response = await http.post(f"{url}/chat/completions", json=body)
                assert response.status_code == 200, response.text
                self._hear(response.json())

    def _hear(self, answer: dict[str, Any]) -> None:
        self.prompts.append(answer["usage"]["prompt_tokens"])
        self.evaluated.append(answer["timings"]["prompt_n"])
        self.answers.append(answer["choices"][0]["message"])
        dropped = () if self.keeps else ("reasoning_content",)
        self.said.append({name: value for name, value in self.answers[-1].items() if name not in dropped})


def table(*clients: Client) -> str:
    """Prompt tokens of all turns, and how many of them the engine had to read."""
    lines = [f"{TURNS} turns of one conversation          prompt tokens  evaluated  of each prompt"]
    for client in clients:
        counts = " ".join(map(str, client.evaluated))
        lines.append(f"{client.name:<38} {sum(client.prompts):>13} {sum(client.evaluated):>10}  {counts}")
    return "\n".join(lines)


async def test_a_client_that_drops_thoughts_costs_no_more_than_one_that_keeps_them(engine):
    """Through the proxy the engine reads what it reads for a client that keeps everything; without it, far more."""
    keeping = Client("keeps all, straight to the engine", keeps=True)
    proxied = Client("drops thoughts, through the proxy", keeps=False)
    dropping = Client("drops thoughts, straight to the engine", keeps=False)
    await Client("before all", keeps=True).hold(engine.url, 1, max_tokens=1)  # the cache holds the same start for each
    await keeping.hold(engine.url)
    policy = {"min_completion_tokens": 0, "thinking_budget": "off", "default_effort": "off"}
    given = settings(engine.url, engine="auto", family="auto", backends={"local": {"url": engine.url}}, policy=policy)
    async with serving(given) as proxy:
        await proxied.hold(proxy.url)
        rows = await proxy.rows(TURNS)
    await dropping.hold(engine.url)
    shown = table(keeping, proxied, dropping)
    sys.stdout.write(f"\n{shown}\n")

    assert sum("tool_calls" in said for said in keeping.answers) >= 2, "the conversation has calls"
    assert all(said["reasoning_content"] for said in keeping.answers), "every answer has a thought"
    assert [row["turns_restored"] for row in rows] == [*range(TURNS)]
    assert sum(proxied.prompts) == sum(keeping.prompts), shown
    assert sum(proxied.evaluated) == pytest.approx(sum(keeping.evaluated), rel=0.01), shown
    assert sum(dropping.evaluated) > 1.25 * sum(proxied.evaluated), shown
