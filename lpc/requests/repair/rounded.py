"""Rules that round or remove content in the head of a prompt (safety C)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from lpc.requests.families import drops_billing
from lpc.requests.possibly import BILLING, unbilled
from lpc.requests.repair import statements
from lpc.requests.repair.copies import at, replaced
from lpc.requests.repair.places import head_paths, messages_of, with_head
from lpc.requests.repair.rule import Change, Fields, Notes, Rule
from lpc.requests.rules import Kind


class DropsBilling(Rule):
    """Leaves out Claude Code's billing line, as vLLM does itself but in chats with gpt-oss."""

    name = "drop-billing"
    safety = "C"
    change = "Claude Code's billing line, whose `cch=` changes, is left out"
    pattern = "a system prompt that begins with `x-anthropic-billing-header`"

    def concerns(self, kind: Kind, model: str) -> bool:
        """Return whether the engine reads the line."""
        return not drops_billing(model, kind)

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body without the line."""
        found = fields
        for path in reversed(head_paths(fields)):
            text = at(found, path)
            if not text.startswith(BILLING):
                continue
            left = with_head(found, path, unbilled(text))
            if left is not None:
                found = left
                notes.changes.append(Change(self.name, "system", "line", text.partition("\n")[0]))
        return found, ""


_CLOCK: Final = re.compile(r"(?<![0-9:])([0-9]{1,2}):([0-9]{2})(:[0-9]{2})?([.,][0-9]{1,9})?(?![0-9:])")
_CLOCK_AND_ZONE: Final = re.compile(
    r"(?:T|,?[ \t](?:at[ \t])?)(?:[0-9]{1,2}):[0-9]{2}(?::[0-9]{2})?(?:[.,][0-9]{1,9})?"
    r"(?:[ \t]?[aApP]\.?[mM]\b\.?)?(?:[ \t]?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})(?![\w:]))?"
)
_EPOCH: Final = re.compile(r"(?<![0-9.])1[4-9][0-9]{8}(?![0-9])")


class Rounds(Rule):
    """Rounds the times of statements of the present time down, in their place."""

    safety = "C"
    seconds: ClassVar[int]

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with rounded times."""
        found = fields
        for path in head_paths(fields):
            text = rest = at(fields, path)
            for one in reversed(list(statements.times(text, notes.openings.of(text)))):
                changed = self._rounded(text[one.start : one.end])
                if changed != text[one.start : one.end]:
                    rest = rest[: one.start] + changed + rest[one.end :]
                    notes.changes.append(Change(self.name, "system", "", one.text, changed.strip(), text[slice(*one.value)]))
            if rest != text:
                found = replaced(found, path, rest)
        return found, ""

    def _rounded(self, text: str) -> str:
        text = _EPOCH.sub(lambda match: str(int(match[0]) // self.seconds * self.seconds), text)
        if self.seconds > 3600:
            day = _CLOCK_AND_ZONE.sub("", text)
            return day if any(char.isdigit() for char in day) else text  # a time without a date stays
        return _CLOCK.sub(lambda match: f"{match[1]}:00" + (":00" if match[3] else ""), text)


class RoundsToHour(Rounds):
    """Rounds to the hour."""

    name = "round-time-hour"
    change = "times are rounded down to the hour"
    pattern = "as of `move-time`"
    seconds = 3600


class RoundsToDay(Rounds):
    """Leaves out the time of day."""

    name = "round-time-day"
    change = "the time of day is left out behind a date"
    pattern = "as of `move-time`"
    seconds = 86400


class NamesIds(Rule):
    """Puts a name in the place of an id: the same in each turn and each conversation. An id that comes again stays."""

    name = "stable-id"
    safety = "C"
    change = "a random id becomes a name by its place, such as `id-1`"
    pattern = "as of `move-id`; not if the id is in the conversation as well"

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with names."""
        found, names, behind = fields, dict[str, str](), None
        for path in head_paths(fields):
            text = at(fields, path)
            pieces, done = [], 0
            for one in statements.ids(text, notes.openings.of(text)):
                value = text[slice(*one.value)]
                if value not in names:
                    behind = "\n".join(_texts_behind(fields)) if behind is None else behind
                    if value in behind:
                        continue
                    names[value] = f"id-{len(names) + 1}"
                pieces += [text[done : one.value[0]], names[value]]
                done = one.value[1]
                notes.changes.append(Change(self.name, "system", "", value, names[value], value))
            if pieces:
                found = replaced(found, path, "".join([*pieces, text[done:]]))
        return found, ""


def _texts_behind(fields: Fields) -> Iterator[str]:
    """Yield all texts of a body but those of its head."""
    heads = {id(at(fields, path)) for path in head_paths(fields)}
    listed = messages_of(fields)
    left: list[Any] = [fields.get(listed or "input"), fields.get("tools")]
    while left:
        value = left.pop()
        if isinstance(value, str) and id(value) not in heads:
            yield value
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list):
            left += value


ROUNDED: Final = (DropsBilling(), RoundsToHour(), RoundsToDay(), NamesIds())
