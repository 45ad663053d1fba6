"""Differences of a prompt from an earlier one, piece by piece, and the prompt as it would be without some differences."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, NamedTuple

from lpc.requests.possibly import INSTRUCTIONS
from lpc_apps.logs.chats.request import MEDIA_TOKENS, Part
from lpc_apps.logs.traces.chat import CHARS_PER_TOKEN
from lpc_apps.why.prompts import TOOLS, Prompts, Unit
from lpc_apps.why.replay import Entry
from lpc_apps.why.values import UNICODE, common, edits

Cause = str
"""One of `CAUSES`."""
CAUSES: Final = (
    *("time", "id", "number", "space", "keys", "text", "lines"),
    *("tool_order", "tools", "edited", "truncated", "compacted", "reasoning", "media", "role", "parts", "start", "reply"),
)
"""Values of a text, texts, tools, histories, media; another role, other parts of the same text; ``start``, ``reply``: in a log
without text."""
SIMILAR: Final = 0.5
"""Share of one of two messages that the other one has as well, from which on they are the same message with edits."""


class Key(NamedTuple):
    """What findings are grouped by.

    Attributes:
        where: ``tools``, ``system``, or the role of a message in the history.
        pattern: form of the value; empty: the cause has none.
    """

    cause: Cause
    where: str
    pattern: str = ""


class Change(NamedTuple):
    """One difference.

    Attributes:
        at: characters of the prompt's piece before it.
        own: characters that the other prompt has not.
        text, other: the two texts that differ; empty for causes without a text.
        part, start: part of the message, and character of its text.
    """

    key: Key
    at: int
    own: int
    text: str = ""
    other: str = ""
    part: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Units of a prompt and the units of an earlier one that they correspond to.

    Attributes:
        kind: ``same``; ``patch``, one unit that differs in some text; ``order``, units in another order or form;
            ``added`` and ``dropped``, units of only one of the prompts; ``new``, the rest of the prompt.
        own: units of this prompt.
        start, end: units of the earlier prompt.
        changes: none for ``same`` and ``new``.
    """

    kind: Literal["same", "patch", "order", "added", "dropped", "new"]
    own: tuple[Unit, ...]
    start: int
    end: int
    changes: tuple[Change, ...] = ()


Groups = list[list[Entry]]
"""Entries that stand for each unit of a prompt, after those that are dropped before it."""


def head_pieces(own: Sequence[Unit], other: Sequence[Unit]) -> list[Piece]:
    """Return the pieces of a head: tools and instructions, in the order in which its own prompt has them."""
    (tools, rest), (others, other_rest) = map(_parted, (own, other))
    found = [_tool_pieces(tools, others), _aligned(rest, other_rest, whole=True)]
    starts = [0, len(others)]
    if any(units and units[0].role != TOOLS == units[-1].role for units in (own, other)):
        found.reverse()
        starts = [0, len(other_rest)]
    return [
        replace(piece, start=piece.start + start, end=piece.end + start)
        for start, pieces in zip(starts, found, strict=True)
        for piece in pieces
    ]


def _parted(head: Sequence[Unit]) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """Return the tools and the instructions of a head."""
    return tuple(unit for unit in head if unit.role == TOOLS), tuple(unit for unit in head if unit.role != TOOLS)


def history_pieces(own: Sequence[Unit], other: Sequence[Unit]) -> list[Piece]:
    """Return the pieces of the messages after the head, compared with an earlier request's, with its reply."""
    return list(_aligned(own, other, whole=False))


def without(
    pieces: Sequence[Piece], base: Groups, fixed: "Collection[Key] | None", prompts: Prompts, other: Sequence[Unit]
) -> Groups:
    """Return a prompt without some differences. What it has in addition follows what both prompts have.

    Args:
        base: the earlier prompt without them.
        fixed: the differences; None: all.
        other: the earlier prompt's units.
    """
    groups: Groups = []
    before: list[Entry] = []
    moved: list[Entry] = []
    gone: set[Unit] = set()
    for piece in pieces:
        wanted = [change for change in piece.changes if fixed is None or change.key in fixed]
        there = base[piece.start : piece.end]
        if piece.kind == "new":
            _append(groups, before, moved)
            before, moved = [], []
        if piece.kind == "same":
            found = there
        elif not wanted:
            found = raw(piece.own)
        elif piece.kind == "patch" and len(wanted) == len(piece.changes):
            own = max(piece.own[0].length - sum(change.own for change in wanted), 0)
            found = [[*there[0][:-1], Entry(there[0][-1].unit, own)]] if there[0] else [[]]
        elif piece.kind == "patch":
            found = [[_patched(piece.own[0], other[piece.start], wanted, prompts)]]
        else:
            found = [[] for _ in piece.own]
            if piece.kind == "order":  # tools that only this prompt has are left out: another one may have others
                kept = Counter(unit.canonical for unit in piece.own)
                before += [_kept(entry, kept) for entry in entries_of(there)]
            elif piece.kind == "dropped":
                before += [Entry(entry.unit, 0) for entry in entries_of(there)]
                gone.update(other[piece.start : piece.end])
            else:
                moved += [Entry(unit, unit.length) for unit in piece.own]
        if found and before:
            found = [[*before, *found[0]], *found[1:]]
            before = []
        groups += found
    _append(groups, before, moved)
    if gone:
        gone -= {unit for piece in pieces for unit in piece.own}
        groups = [[Entry(unit, 0 if unit in gone else own) for unit, own in group] for group in groups]
    return groups


def _append(groups: Groups, *rest: list[Entry]) -> None:
    entries = entries_of([*rest])
    if groups and entries:
        groups[-1] = [*groups[-1], *entries]


def _kept(entry: Entry, kept: Counter[str]) -> Entry:
    kept[entry.unit.canonical] -= 1
    return Entry(entry.unit, entry.unit.length if kept[entry.unit.canonical] >= 0 else 0)


def _patched(unit: Unit, other: Unit, changes: Sequence[Change], prompts: Prompts) -> Entry:
    """Return a unit with the other's text in place of some changes."""
    parts = list(unit.parts)
    for change in reversed(changes):
        kind, text = parts[change.part]
        if kind in MEDIA_TOKENS or change.key.cause == "reasoning":
            parts[change.part] = other.parts[change.part] if len(other.parts) == len(unit.parts) else parts[change.part]
        else:
            parts[change.part] = Part(kind, text[: change.start] + change.other + text[change.start + len(change.text) :])
    return Entry(prompts.unit_of(unit.role, tuple(parts)), max(unit.length - sum(change.own for change in changes), 0))


def _tool_pieces(own: tuple[Unit, ...], other: tuple[Unit, ...]) -> Iterator[Piece]:
    if own == other:
        yield from [Piece("same", own, 0, len(other))] if own else []
        return
    names, others = ([unit.name for unit in units] for units in (own, other))
    at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a is not b), min(len(own), len(other)))
    before = sum(unit.length for unit in own[:at])
    before += common(own[at].text, other[at].text) if at < min(len(own), len(other)) else 0
    key: Key | None = None
    if Counter(own) == Counter(other):
        key = Key("tool_order", TOOLS)
    elif Counter(unit.canonical for unit in own) == Counter(unit.canonical for unit in other):
        key = Key("keys", TOOLS)
    elif names == others and all(names):
        for number, (a, b) in enumerate(zip(own, other, strict=True)):
            changes = unit_changes(a, b, TOOLS) or ()
            yield Piece("patch" if changes else "same", (a,), number, number + 1, changes)
        return
    key = key or Key("tools", TOOLS)
    yield Piece("order", own, 0, len(other), (Change(key, before, 0),))


def _aligned(own: Sequence[Unit], other: Sequence[Unit], *, whole: bool) -> Iterator[Piece]:
    """Yield the pieces of two lists of messages.

    Args:
        whole: both are whole, so that what only one has at its end is a difference; else it is the conversation's new part.
    """
    start = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a is not b), min(len(own), len(other)))
    if start:
        yield Piece("same", tuple(own[:start]), 0, start)
    codes = SequenceMatcher(None, other[start:], own[start:], autojunk=False).get_opcodes()
    for number, (code, b1, b2, a1, a2) in enumerate(codes):
        b1, b2, a1, a2 = b1 + start, b2 + start, a1 + start, a2 + start
        if code == "equal":
            yield Piece("same", tuple(own[a1:a2]), b1, b2)
            continue
        last = number == len(codes) - 1 and not whole
        yield from _replaced(own, a1, a2, other, b1, b2, last=last, whole=whole)


def _replaced(
    own: Sequence[Unit], a1: int, a2: int, other: Sequence[Unit], b1: int, b2: int, *, last: bool, whole: bool
) -> Iterator[Piece]:
    """Yield the pieces of messages that stand in the place of others. ``last``: nothing that is equal follows."""
    # The last message of a prompt is new, however much of it was in another one.
    while a1 < a2 - last and b1 < b2:
        changes = unit_changes(own[a1], other[b1], _where(own[a1]))
        if changes is None:
            break
        yield Piece("patch" if changes else "same", (own[a1],), b1, b1 + 1, changes)
        a1, b1 = a1 + 1, b1 + 1
    added, dropped = tuple(own[a1:a2]), tuple(other[b1:b2])
    if last:
        if added:
            yield Piece("new", added, b1, b1)
        return
    key = _key_of(added, dropped, b1, whole=whole)
    if dropped:
        yield Piece("dropped", (), b1, b2, (Change(key, 0, 0),))
    if added:
        yield Piece("added", added, b2, b2, (Change(key, 0, sum(unit.length for unit in added)),))


def _key_of(added: tuple[Unit, ...], dropped: tuple[Unit, ...], at: int, *, whole: bool) -> Key:
    if whole:
        return Key("text", "system", "message")
    if dropped and not added and any(unit.thoughts for unit in dropped) and not any(unit.without_thoughts for unit in dropped):
        return Key("reasoning", "history")
    if not added and dropped and (at == 0 or len(dropped) > 1):
        return Key("truncated", "history")
    if len(dropped) > 1 and sum(unit.length for unit in dropped) > 2 * sum(unit.length for unit in added):
        return Key("compacted", "history")
    return Key("edited", "history")


def _where(unit: Unit) -> str:
    return "system" if unit.role in INSTRUCTIONS else unit.role


@lru_cache(maxsize=20_000)
def unit_changes(own: Unit, other: Unit, where: str) -> tuple[Change, ...] | None:
    """Return what a unit has differently; None: it is another message."""
    if own.role != other.role:
        # The texts are equal from the role on, so the other prompt lacks the role only.
        same = {own.role, other.role} == set(INSTRUCTIONS) and own.parts == other.parts
        return (Change(Key("role", where), 0, len(own.role)),) if same else None
    if len(own.parts) != len(other.parts) and _whole(own.parts) == _whole(other.parts):
        return (Change(Key("parts", where), common(own.text, other.text), 0),)
    found: list[Change] = []
    parts, others = own.parts, other.parts
    start = common(own.text, other.text)
    if [part.kind for part in parts] != [part.kind for part in others] or own.thoughts != other.thoughts:
        if not (own.thoughts or other.thoughts):
            return None
        found.append(Change(Key("reasoning", "history"), start, sum(map(len, own.thoughts))))
        rest = _stripped(own.without_thoughts)
        return tuple(found) if rest and rest == _stripped(other.without_thoughts) else None
    at = different = others_different = 0
    for number, (part, before) in enumerate(zip(parts, others, strict=True)):
        length = MEDIA_TOKENS.get(part.kind, 0) * CHARS_PER_TOKEN or len(part.text)
        if part == before:
            pass
        elif part.kind in MEDIA_TOKENS:
            found.append(Change(Key("media", where, part.kind), at, 0, part=number))
        else:
            for edit in edits(part.text, before.text):
                size = edit.end - edit.start
                cause = _cause(edit.value, where)
                pattern = "" if edit.value in ("text", "lines", "keys") else edit.pattern
                if edit.value in ("text", "lines"):
                    different, others_different = different + size, others_different + len(edit.other)
                size = 0 if edit.value == "keys" or edit.pattern == UNICODE else size
                text = part.text[edit.start : edit.end]
                found.append(Change(Key(cause, where, pattern), at + edit.start, size, text, edit.other, number, edit.start))
        at += length
    kept = max(1 - different / max(own.length, 1), 1 - others_different / max(other.length, 1))
    if kept < SIMILAR and where not in ("system", TOOLS):
        return None
    # Only the first change's place in the rendered text is known.
    return tuple(change._replace(at=start + change.at - found[0].at) for change in found)


def _cause(value: str, where: str) -> Cause:
    if value in ("text", "lines", "email"):
        found = "text" if value == "email" else value
        return "tools" if where == TOOLS else found if where == "system" else "edited"
    return value


def _whole(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with adjacent texts as one, without white space."""
    found: list[Part] = []
    for part in parts:
        text = "".join(part.text.split()) if part.kind == "text" else part.text
        if found and part.kind == found[-1].kind == "text":
            found[-1] = Part("text", found[-1].text + text)
        else:
            found.append(Part(part.kind, text))
    return found


def _stripped(parts: Sequence[Part]) -> list[Part]:
    """Return the parts without white space at their ends, which servers and clients cut behind thoughts."""
    return [Part(part.kind, part.text.strip()) if part.kind == "text" else part for part in parts]


def entries_of(groups: Groups) -> list[Entry]:
    """Return the entries of a prompt in order."""
    return list(chain.from_iterable(groups))


def raw(units: Sequence[Unit]) -> Groups:
    """Return a prompt as it is."""
    return [[Entry(unit, unit.length)] for unit in units]
