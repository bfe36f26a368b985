"""What a client says about thinking: how much, whether at all, in how many tokens, and whose thoughts it wants kept.

Read from the decoded values of the request's `FIELDS` and of its template options in `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from proxy.errors import InvalidRequest
from proxy.messages import Ask, Budget, Json

Values = Mapping[str, Json]

MOST_LETTERS = 64
"""Of an effort word."""
MOST_TOKENS = 2**31 - 1
"""What llama-server takes at the most, and more than any model has."""

_BUDGETS = (
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "thinking_token_budget",
    "thinking_budget",
    "reasoning.max_tokens",
    "thinking.budget_tokens",
)
"""As llama-server (two), vLLM, DashScope, OpenRouter and Anthropic call it."""
_SWITCHES = ("enable_thinking", "think")
_TABLES = ("reasoning", "thinking")
FIELDS = ("reasoning_effort", *_TABLES, *_SWITCHES, *(name for name in _BUDGETS if "." not in name))
OPTIONS = ("thinking_effort", "reasoning_effort", "thinking", "enable_thinking")


def effort(fields: Values, options: Values) -> Ask | None:
    """The word, in whichever spelling it is said. Raises InvalidRequest for one that can be none."""
    ask = next(_efforts(fields, options), None)
    if ask is not None and len(ask.word) > MOST_LETTERS:
        raise InvalidRequest(f"`{ask.where}` has more than {MOST_LETTERS} letters", param=ask.where)
    return ask


def contradicted(fields: Values, options: Values) -> tuple[str, ...]:
    """The places, beside the template options, where another word is said than the one that counts."""
    said = list(_efforts(fields, options))
    places = (ask.where for ask in said[1:] if ask.word != said[0].word)
    return tuple(where for where in places if not where.startswith("chat_template_kwargs."))


def repeated(fields: Values, options: Values) -> tuple[str, ...]:
    """The further places, beside the template options, where the word that counts is said once more."""
    said = list(_efforts(fields, options))
    places = (ask.where for ask in said[1:] if ask.word == said[0].word)
    return tuple(where for where in places if not where.startswith("chat_template_kwargs."))


def _efforts(fields: Values, options: Values) -> Iterator[Ask]:
    """Template options first, as engines read them."""
    for name in ("thinking_effort", "reasoning_effort"):
        if word := _word(options.get(name)):
            yield Ask(word, f"chat_template_kwargs.{name}")
    for name in ("thinking", "enable_thinking"):
        if options.get(name) is False:
            yield Ask("none", f"chat_template_kwargs.{name}")
    if word := _word(fields.get("reasoning_effort")):
        yield Ask(word, "reasoning_effort")
    for name in _TABLES:
        yield from _efforts_in(name, fields.get(name))
    for name in _SWITCHES:
        if fields.get(name) is False:
            yield Ask("none", name)
    if word := _word(fields.get("think")):  # Ollama's, which is a switch and an effort
        yield Ask(word, "think")


def _efforts_in(name: str, value: Json) -> Iterator[Ask]:
    """`reasoning: {effort, enabled}` (OpenRouter, SGLang) and `thinking: {type, effort}` (Moonshot, DeepSeek, GLM)."""
    if value is False:
        yield Ask("none", name)
    if not isinstance(value, dict):
        return
    if value.get("type") == "disabled":
        yield Ask("none", f"{name}.type")
    for key in ("enabled", "enable"):
        if value.get(key) is False:
            yield Ask("none", f"{name}.{key}")
    for key in ("effort", "reasoning_effort"):
        if word := _word(value.get(key)):
            yield Ask(word, f"{name}.{key}")


def _word(value: Json) -> str | None:
    """An effort as text; numbers are words to some engines (SGLang, DeepSeek V4.1)."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None


def switched_on(fields: Values, options: Values) -> str | None:
    """Where the client says that the model shall think, without a word for how much."""
    for name in ("thinking", "enable_thinking"):
        if options.get(name) is True:
            return f"chat_template_kwargs.{name}"
    for name in _SWITCHES:
        if fields.get(name) is True:
            return name
    for name in _TABLES:
        value = fields.get(name)
        table = value if isinstance(value, dict) else {}
        if key := next((key for key in ("type", "enabled", "enable") if table.get(key) in ("enabled", True)), None):
            return f"{name}.{key}"
    return None


def budget(fields: Values) -> Budget | None:
    """The tokens of thought that the client allows; what is no number of tokens is for the engine to refuse."""
    for where in _BUDGETS:
        name, _, key = where.partition(".")
        value = fields.get(name)
        value = value.get(key) if key and isinstance(value, dict) else value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS:
            return Budget(value, where)
    return None


def keeps_all(fields: Values) -> bool:
    """`thinking.keep`, Moonshot's word for the thoughts of all turns, or GLM's refusal to clear them."""
    value = fields.get("thinking")
    return isinstance(value, dict) and (value.get("keep") == "all" or value.get("clear_thinking") is False)
