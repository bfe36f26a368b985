"""What was seen of one backend: values, from which `checks.py` makes its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy import config
from proxy.dialects import About, Dialect, Finding
from proxy.doctor.questions import Kept, kept_in, kept_in_tokens
from proxy.families import Family
from proxy.fold import Fold
from proxy.messages import Facts, Json
from proxy.probes import Found


@dataclass(slots=True)
class Said:
    """What came of one request. `problem` is a refusal or a break in words, `cut` says that the time was over.

    `first` and `last` are seconds from the sending to the first and last token, `pieces` how many came. `prompt` is the
    prompt, where the server shows it.
    """

    fold: Fold = field(default_factory=Fold)
    problem: str = ""
    cut: bool = False
    first: float | None = None
    last: float | None = None
    pieces: int = 0
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that the server made, or how many tokens it has; else what went wrong."""

    text: str | None = None
    tokens: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """The prompts of a history with and without its thoughts. Without `tools` it has no tool turn."""

    thinking: Prompt
    bare: Prompt | None = None
    tools: bool = True

    @property
    def kept(self) -> Kept | None:
        """Which thoughts are in the prompt; None where that cannot be told."""
        if self.thinking.text is not None:
            return kept_in(self.thinking.text)
        if self.bare is None or self.thinking.tokens is None or self.bare.tokens is None:
            return None
        return kept_in_tokens(self.thinking.tokens - self.bare.tokens)


@dataclass(frozen=True, slots=True)
class Efforts:
    """The lowest and the highest effort, where the word stands in a request, and the prompts that they made."""

    lowest: str
    highest: str
    where: str
    low: Prompt | None = None
    high: Prompt | None = None

    @property
    def problem(self) -> str:
        """What the server said against one of them."""
        return next((prompt.problem for prompt in (self.low, self.high) if prompt and prompt.problem), "")

    @property
    def obeyed(self) -> bool | None:
        """Whether they differ for the model; None where that cannot be told."""
        if self.low is None or self.high is None or self.problem:
            return None
        if self.low.text is not None and self.high.text is not None:
            return self.low.text != self.high.text
        return True if self.low.tokens != self.high.tokens else None


@dataclass(slots=True)
class Seen:
    """All that was seen. `row` is the model that the rest was tried with, empty where none was.

    `trouble` is why nothing could be seen, `silent` why nothing was generated. `listed` are the models of the server,
    `denied` the configured names that it does not have; `says` is the engine that it says to be, where that is not the
    configured one. `opened`: a prompt ends inside a thought. `again` is the first answer's prompt once more.
    """

    name: str
    settings: config.Settings
    dialect: Dialect
    family: Family
    trouble: Finding | None = None
    found: Found | None = None
    says: str = ""
    listed: tuple[Mapping[str, Json], ...] = ()
    families: Mapping[str, str] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    row: Mapping[str, Json] = field(default_factory=dict)
    facts: Facts | None = None
    silent: Finding | None = None
    opened: bool | None = None
    answer: Said | None = None
    again: Said | None = None
    past: Past | None = None
    efforts: Efforts | None = None

    @property
    def backend(self) -> config.Backend:
        """Its table in the settings."""
        return self.settings.backends[self.name]

    @property
    def model(self) -> str:
        """The model that was tried; empty where none was."""
        return str(self.row.get("id") or "")

    @property
    def answers(self) -> Mapping[str, Json]:
        """What the engine's own paths told."""
        return self.found.answers if self.found else {}

    def about(self, model: str) -> About:
        """What the server tells of a model."""
        return self.found.about.get(model, About()) if self.found else About()

    def is_asleep(self, row: Mapping[str, Json]) -> bool:
        """A request for the model would load or wake it."""
        loaded = self.about(str(row.get("id"))).loaded
        return loaded is False or self.dialect.advice.is_asleep(row, self.answers)

    @property
    def context(self) -> int | None:
        """What one request can have, in tokens."""
        return self.backend.context_limit or (self.facts.context_limit if self.facts else None)
