"""Applies repair rules to a body: to its object, or to its bytes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lpc.errors import UsageError
from lpc.requests.repair.moved import MOVED
from lpc.requests.repair.places import with_end
from lpc.requests.repair.reading import Read, read_object
from lpc.requests.repair.rounded import ROUNDED
from lpc.requests.repair.rule import Change, Fields, Notes, Rule
from lpc.requests.repair.same import SAME
from lpc.requests.repair.splicing import spliced
from lpc.requests.rules import Kind

RULES: Final[tuple[Rule, ...]] = (*SAME, *MOVED, *ROUNDED)
"""All rules, in the order in which they are applied, whatever order they are named in."""
_BY_NAME: Final[Mapping[str, Rule]] = {rule.name: rule for rule in RULES}


def rules_of(names: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules by their names, in the order of `RULES`. Raises UsageError: a name is unknown."""
    wanted = set(names)
    if unknown := sorted(wanted - _BY_NAME.keys()):
        raise UsageError(f"unknown repair rule {unknown[0]!r:.40}: use {', '.join(_BY_NAME)}")
    return tuple(rule for rule in RULES if rule.name in wanted)


@dataclass(frozen=True, slots=True)
class Repaired:
    """A body after its repair.

    Attributes:
        fields: the body; the very object that was given if no rule matched.
        named: the body without texts that were moved to its end, so that all turns of a conversation begin alike.
        changes: what was changed.
    """

    fields: Fields
    named: Fields
    changes: tuple[Change, ...] = ()


def repaired(fields: Fields, rules: Sequence[Rule], kind: Kind = "any") -> Repaired:
    """Return a body after its repair. Never raises for a body that is JSON; the body given is not changed.

    Args:
        kind: kind of the engine. A rule is left out if that engine does not read the difference.
    """
    model = fields.get("model")
    name = model.lower() if isinstance(model, str) else ""
    found = fields
    notes, moved = Notes(), list[str]()
    ends: bool | None = None
    for rule in rules:
        if rule.safety == "B" and ends is None:
            ends = with_end(fields, "") is not None
        if rule.concerns(kind, name) and (rule.safety != "B" or ends):
            found, text = rule.apply(found, notes)
            moved += [text] if text else []
    ended = with_end(found, "\n\n".join(moved)) if moved else found
    assert ended is not None, "the end is where it was"
    return Repaired(ended, found, tuple(notes.changes))


def repair(body: Mapping[str, Any], rules: Iterable[str], kind: Kind = "any") -> dict[str, Any]:
    """Return the body of a request after its repair by named rules; the body given stays as it is.

    Args:
        body: of a chat completion, of Anthropic's messages or of the responses API.
        rules: names, of `RULES`; each conversation needs the same ones in all its turns.
        kind: kind of the engine.

    Raises:
        UsageError: a name is unknown.
    """
    return dict(repaired(body, rules_of(rules), kind).fields)


def repair_bytes(body: bytes, rules: Iterable[str], kind: Kind = "any") -> bytes:
    """Return the JSON of a body after its repair. All other bytes stay as they are.

    A body that is not one JSON object in UTF-8, or that names a field twice, is returned as it is. Arguments and errors: as of
    `repair`.
    """
    wanted = rules_of(rules)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    if (read := read_object(text)) is None:
        return body
    found = repaired(read.fields, wanted, kind)
    return written(read, found).encode() if found.fields is not read.fields else body


def written(read: Read, found: Repaired) -> str:
    """Return the JSON of a repaired body. ``read``: the body before."""
    return spliced(read.text, read.fields, found.fields, read)
