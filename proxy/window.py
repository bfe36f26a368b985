"""How much of a model's window a prompt takes, and what is left out where restored thoughts make it too long.

Restored text is not in the client's own count, so a request that the client knows to fit must not fail because of it.
"""

from __future__ import annotations

from proxy import tokens
from proxy.errors import ContextLengthExceeded
from proxy.messages import ChatRequest, Plan

_STEPS = 4
"""Thoughts are left out in quarters of the window: one by one, the prompt's beginning would change with each turn."""
_LEAST_ROOM = 1024
_TEMPLATE, _TEMPLATE_PER_MESSAGE = 32, 8
"""Tokens that the chat template adds of its own."""
_USUAL_BYTES_PER_TOKEN = 10 / 3
_MOST_BYTES_PER_TOKEN = 6
"""No text in use is denser: a prompt that is too long even so is too long."""


def size(plan: Plan) -> int:
    """Bytes of the prompt as it goes to the backend; pictures count at a fixed size."""
    return _said(plan.request) + sum(plan.restored.values())


def _said(request: ChatRequest) -> int:
    return sum(message.size for message in request.messages) + len(request.fields.get("tools", b""))


def prompt_tokens(request: ChatRequest) -> int:
    """Tokens of the client's own prompt, estimated: nothing is known yet of the model that will read it."""
    return tokens.estimate(_said(request), bytes_per_token=_USUAL_BYTES_PER_TOKEN)


def room(plan: Plan) -> int | None:
    """Tokens that the window has left behind the prompt, estimated on the safe side; None where it is unknown."""
    limit = plan.facts.context_limit
    if limit is None:
        return None
    template = _TEMPLATE + _TEMPLATE_PER_MESSAGE * len(plan.request.messages)
    return limit - template - tokens.estimate(size(plan), bytes_per_token=plan.facts.bytes_per_token)


def left_out(plan: Plan, current: int, answer: int) -> list[int]:
    """The positions whose thoughts are left out, so that an answer of `answer` tokens has room.

    The oldest go first, those of the current tool loop (from the position `current` on) last.
    """
    limit, left = plan.facts.context_limit, room(plan)
    if limit is None or left is None:
        return []
    missing = min(max(answer, _LEAST_ROOM), limit // 2) - left
    step = max(limit // _STEPS, 1)
    excess = -(-missing // step) * step * plan.facts.bytes_per_token
    out: list[int] = []
    for at in sorted(plan.restored, key=lambda at: (at >= current, at)):
        if excess <= 0:
            break
        excess -= plan.restored[at]
        out.append(at)
    return out


def check(plan: Plan) -> None:
    """Raise ContextLengthExceeded for a prompt that cannot fit, however densely its text is written."""
    limit = plan.facts.context_limit
    if limit is None:
        return
    least = tokens.estimate(size(plan), bytes_per_token=_MOST_BYTES_PER_TOKEN)
    if least > limit:
        left = " even without the thoughts that were left out" if plan.history.dropped else ""
        raise ContextLengthExceeded(
            f"the prompt has {least} tokens or more, and {plan.facts.upstream_model} on backend {plan.facts.backend} "
            f"takes {limit}{left}: shorten `messages`",
            param="messages",
        )
