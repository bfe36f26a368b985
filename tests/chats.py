"""Chats in memory: requests, what a store would know of them, and the plan after restoring."""

from __future__ import annotations

import json
from typing import Any

from proxy import history, keys, normalise
from proxy.families import load
from proxy.history import Restoring
from proxy.keys import Chain
from proxy.messages import ChatRequest, Facts, Plan, ToolCall
from proxy.recall import Recaller
from proxy.remember import Answer, Rememberer
from proxy.turns import Found, Turn

FAMILIES = load()
SCOPE = keys.scope(b"salt", "key", None, "kimi-k3")
USER = {"role": "user", "content": "What is in /data?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"a":1,"b":"x"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "functions.ls:0", "content": "a.txt"}
ANSWER = {"role": "assistant", "content": "Two."}
LONG = "A long answer that nobody gives twice by chance. " * 5


def asks(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def says(text: str | None, *calls: tuple[str, str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """An assistant's message with calls as (id, name, arguments)."""
    made = [
        {"id": name, "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
        for name, function, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {}), **fields}


def result(name: str, text: str = "-") -> dict[str, Any]:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": name, "content": text}


def request(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    """A request with these messages."""
    return normalise.read(json.dumps({"model": "m", "messages": messages, **fields}).encode())


class Memory:
    """A store that is a list, and one caller's way through the pure steps."""

    def __init__(self, family: str = "kimi-k3", *, engine_refuses: bool = False, **settings: Any) -> None:
        self.turns: list[Turn] = []
        self.made = 0
        self.facts = Facts("b", "kimi", FAMILIES.named(family), "m", refuses_missing=engine_refuses)
        self.settings = Restoring(**settings)

    def find(self, chain: Chain) -> Found:
        """What `Store.find` is to answer."""
        exact: dict[bytes, list[Turn]] = {}
        sole: dict[bytes, list[Turn]] = {}
        for turn in self.turns:
            exact[turn.key] = [old for old in exact.get(turn.key, []) if old.reasoning != turn.reasoning] + [turn]
            for key in turn.weaker:
                sole.setdefault(key, []).append(turn)
        wanted = set(chain.weaker_than(exact))
        return Found(
            {key: exact[key] for key in chain.keys.values() if key in exact},
            {k: v[-1] for k, v in sole.items() if k in wanted and len({turn.reasoning for turn in v}) == 1},
        )

    def plan(
        self, *messages: dict[str, Any], conversation: str | None = None, bare: bool = False, **fields: Any
    ) -> Plan:
        """The plan after restoring."""
        asked = request(*messages, **fields)
        self.chain = Chain(asked.messages, SCOPE)
        self.known = Recaller(self.chain, asked.messages, self.find(self.chain), conversation).all()
        plan = Plan(asked, self.facts, asked.messages)
        return history.restore(plan, self.known, self.settings, answer=1000, bare=bare)

    def answer(
        self,
        *messages: dict[str, Any],
        said: dict[str, Any],
        thought: str,
        details: str = "",
        conversation: str | None = None,
        effort: str | None = None,
    ) -> Plan:
        """Ask, and keep the answer with its thought; the plan under which it was given."""
        plan = self.plan(*messages, conversation=conversation)
        calls = tuple(
            ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id"))
            for call in said.get("tool_calls", [])
        )
        rememberer = Rememberer(self.chain, plan.request.messages, plan.messages, self.known)
        self.made += 1
        answer = Answer(said["content"] or "", calls, thought, details, effort, None, conversation, self.made)
        self.turns += [*rememberer.settled(conversation), *rememberer.answered(answer)]
        return plan


def thoughts(plan: Plan) -> list[str | None]:
    """What each assistant message will say of its thought."""
    return [message.reasoning for message in plan.messages if message.role == "assistant"]


def rules(plan: Plan) -> list[str]:
    """The names of the decisions, in order."""
    return [decision.rule for decision in plan.decisions]
