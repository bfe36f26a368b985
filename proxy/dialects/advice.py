"""What helps on an engine: its options as its users write them, and what to know before asking it anything.

The command `doctor` reads it. An engine's module says what differs, beside its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from proxy.families import Family
from proxy.messages import Json

if TYPE_CHECKING:
    from proxy.dialects.plain import Answers, Question

Level = Literal["ok", "note", "hurts"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about something, and the option or setting that helps; empty where nothing is to be done."""

    level: Level
    about: str
    text: str
    remedy: str = ""


class Advice:
    """An engine of which no option is known. Stateless, as its dialect is."""

    parser: ClassVar[str] = ""
    """The option that parts thoughts from texts; `{name}` in it is the name of a parser."""
    parsers: ClassVar[Mapping[str, str]] = {}
    """Family → the name of its parser here."""
    parser_list: ClassVar[str] = ""
    """Where all names of parsers stand."""
    preserve: ClassVar[str] = ""
    """The option that keeps past thoughts in the prompt."""
    cached: ClassVar[str] = ""
    """The option that has cached tokens reported."""
    effort: ClassVar[str] = ""
    """What to do where an effort has no effect."""
    thinks: ClassVar[str] = ""
    """What to do where the server says that a model that thinks does not."""
    any_name: ClassVar[bool] = False
    """A model is served under every name that a request asks for."""
    shows_prompt: ClassVar[tuple[str, str] | None] = None
    """A field of a chat request that has the prompt shown, and the field of the answer that shows it."""
    longer: ClassVar[Mapping[str, Json]] = {}
    """Fields of a request that keep a model from ending its answer at once."""
    overflow: ClassVar[str] = ""
    """What becomes of a prompt beyond the window, where nobody is told."""

    def window(self, tokens: int, row: Mapping[str, Json], answers: Answers) -> str:
        """The option that gives a request so many tokens of window."""
        return ""

    def trained(self, row: Mapping[str, Json], answers: Answers) -> int | None:
        """The window that the model was made for."""
        return None

    def prompt_question(self, body: Mapping[str, Json]) -> Question | None:
        """How to ask for the prompt that a chat request makes, where nothing is generated for it. The answer has it as
        `prompt`."""
        return None

    def is_asleep(self, row: Mapping[str, Json], answers: Answers) -> bool:
        """A request would wake the model, where the list of models does not tell it."""
        return False

    def is_paid(self, row: Mapping[str, Json], answers: Answers) -> bool:
        """The server passes requests for this model on to a hosted service."""
        return False

    def query(self, row: Mapping[str, Json]) -> str:
        """What a request says in its query, so that it loads no model."""
        return ""

    def remarks(self, family: Family, row: Mapping[str, Json], answers: Answers) -> list[Finding]:
        """What only this engine can be asked, or gets wrong."""
        return []

    def parser_option(self, family: str) -> str:
        """The option with the parser's name, or with the place where the names stand."""
        name = self.parsers.get(family)
        if not self.parser or name:
            return self.parser.format(name=name)
        named = self.parser.format(name="NAME")
        return f"{named} ({self.parser_list})" if self.parser_list and named != self.parser else named
