"""What a repair rule is: a named change of a request's body that keeps the beginning of its prompt the same.

Each rule is a pure function of the body. So all turns of a conversation are changed alike, after restarts and in all gateways.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

from lpc.requests.repair.pattern import form_of
from lpc.requests.repair.statements import Openings
from lpc.requests.rules import Kind

Safety = Literal["A", "B", "C"]
SAFETY: Final[Mapping[Safety, str]] = {
    "A": "the model reads the same, but for order, spacing or names of calls",
    "B": "content is moved to the end of the last user's message or tool's result",
    "C": "content is rounded or removed",
}
Fields = Mapping[str, Any]


class Change(NamedTuple):
    """What a rule has changed at one place.

    Attributes:
        place: ``tools``, ``system``, or the role of a message.
        what: what was changed, in fixed words and numbers; empty: see ``value``.
        text, other: what was there, and what stands there now. Text of users.
        value: what was changed. Text of users.
    """

    rule: str
    place: str
    what: str
    text: str = ""
    other: str = ""
    value: str = ""

    @property
    def pattern(self) -> str:
        """Form of what was changed, without its text."""
        return self.what or form_of(self.value)


@dataclass(frozen=True, slots=True)
class Notes:
    """What the rules of one body have found.

    Attributes:
        changes: what they have changed.
        openings: of texts that several of them search.
    """

    changes: list[Change] = field(default_factory=list)
    openings: Openings = field(default_factory=Openings)


class Rule(ABC):
    """A repair.

    Attributes:
        name: name by which settings ask for it.
        safety: one of `SAFETY`.
        change: what it does, in a sentence.
        pattern: what it looks for.
        unread: parts of model names, in lower case, whose templates do not read the difference.
    """

    name: ClassVar[str]
    safety: ClassVar[Safety]
    change: ClassVar[str]
    pattern: ClassVar[str]
    unread: ClassVar[tuple[str, ...]] = ()

    def concerns(self, kind: Kind, model: str) -> bool:
        """Return whether an engine of a kind reads the difference that this rule removes. ``model``: in lower case."""
        del kind
        return not any(part in model for part in self.unread)

    @abstractmethod
    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return a changed body, or the body itself, and the text that is to be moved to its end; empty: none.

        Args:
            fields: the body, which is not changed. Values of an unknown shape stay as they are.
            notes: gets what was changed.
        """
