"""Writes what has changed in an object into its text: all other bytes stay as they are.

A changed object is an `Edited`, which holds the object that it stands for. So the members of a text that belong to changed
values are found, and no other member is written again: numbers, escapes and white space stay. Of a changed string only the part
that differs is written.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from lpc.requests.repair.copies import Edited
from lpc.requests.repair.reading import SCAN, Place, Read, end_of, scanstring, skip

_TRIES: Final = 16
"""Places at which an element may begin that are looked at when a list is read from its end."""
_SHORT: Final = 64
"""Characters up to which a string is written whole."""
_ESCAPE: Final = 6
"""Characters of the longest escape, ``\\u0000``."""
_NEAR: Final = 4096
"""Characters in front of a change, or behind it, by which its place is found."""
_MOST_CUTS: Final = 16
"""Parts in which a string is edited."""

Edit = tuple[int, int, str]
"""Characters [start, end) of a text, and what is to stand there."""


def spliced(text: str, old: Mapping[str, Any], new: Mapping[str, Any], read: Read | None = None) -> str:
    """Return the text of a changed object.

    Args:
        text: JSON of ``old``, without repeated names in one object.
        new: ``old``, or made of it by the functions of `copies`.
        read: the places of its members, if they are known.
    """
    edits: list[Edit] = []
    start = skip(text, 0)
    if read is not None and _has_members_of(new, old):
        for name, value in old.items():
            if new[name] is not value:
                _edit(text, *read.places[name], value, new[name], edits, read.elements.get(name))
        edits.sort()
    else:
        _edit(text, start, -1, old, new, edits)
    pieces, done = [], 0
    for start, end, piece in edits:
        pieces += [text[done:start], piece]
        done = end
    return "".join([*pieces, text[done:]])


def _edit(
    text: str, start: int, end: int, old: Any, new: Any, edits: list[Edit], elements: Sequence[Place] | None = None
) -> None:
    """Add what is to be replaced in the text of a value, in order.

    Args:
        start, end: of its text; -1: not known.
        elements: places of a list's elements, if they are known.
    """
    if new is old:
        return
    if isinstance(old, str) and isinstance(new, str):
        edits += _of_string(text, start, end, old, new)
        return
    if _has_members_of(new, old):
        changed = {key for key, value in old.items() if new[key] is not value}
        for key, place, _ in _members(text, start, old, changed):
            if key in changed:
                _edit(text, place, -1, old[key], new[key], edits)
                changed.discard(key)
                if not changed:
                    return
        return
    numbers = _changed_elements(old, new)
    if numbers is None:
        end = end_of(text, start) if end < 0 else end
        edits.append((start, end, _raw(text, start, end, old, new, elements)))
        return
    for number, place in _elements_at(text, start, end, old, numbers, elements):
        _edit(text, place, -1, old[number], new[number], edits)


def _has_members_of(new: Any, old: Any) -> bool:
    """Return whether an object stands for another one and has the same names in the same order."""
    return isinstance(new, Edited) and new.origin is old and list(old) == list(new)


def _stands_for(new: Any, old: Any) -> bool:
    return isinstance(new, Edited) and new.origin is old


def _changed_elements(old: Any, new: Any) -> list[int] | None:
    """Return the numbers of the changed elements of a list, in order; None: it is not one, or has others."""
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):
        return None
    numbers = [number for number, (before, after) in enumerate(zip(old, new, strict=True)) if before is not after]
    return numbers if all(_stands_for(new[number], old[number]) for number in numbers) else None


def _elements_at(
    text: str, start: int, end: int, old: list[Any], numbers: list[int], known: Sequence[Place] | None
) -> list[tuple[int, int]]:
    """Return the numbers of elements of a list and where they begin, in order.

    A list whose end is known is read from both sides, without the widest gap between these elements.
    """
    if known is not None:
        return [(number, known[number][0]) for number in numbers]
    behind: list[tuple[int, int]] = []
    if end >= 0:
        sides = [-1, *numbers, len(old)]
        widest = max(range(len(sides) - 1), key=lambda at: sides[at + 1] - sides[at])
        from_end = numbers[widest:]
        if from_end and (found := _from_end(text, start, end, old, from_end[0])):
            behind = [(number, found[number]) for number in from_end]
            numbers = numbers[:widest]
    ahead = []
    wanted = set(numbers)
    for number, place, _ in _members(text, start, old, wanted) if wanted else ():
        if number in wanted:
            ahead.append((number, place))
            if number == numbers[-1]:
                break
    return ahead + behind


def _from_end(text: str, start: int, end: int, old: list[Any], first: int) -> dict[int, int]:
    """Return where the elements of a list begin, from its last one back to a number; empty: it was not found in this way.

    An object's first name in quotes is looked for, from the end. What begins with it, is JSON and ends where the object ends is
    the object: from a place inside of a string, strings would be inverted up to the end, and the end is outside of strings.
    """
    found: dict[int, int] = {}
    last = end - 1  # the list's bracket
    for number in range(len(old) - 1, first - 1, -1):
        while last > start and text[last - 1] in " \t\n\r":
            last -= 1
        one = old[number]
        if not isinstance(one, dict) or not one:
            return {}
        begin = _begin_of_object(text, start, last, json.dumps(next(iter(one))))
        if begin is None:
            return {}
        found[number] = begin
        last = text.rfind(",", start, begin)
        if number > first and (last < 0 or text[last + 1 : begin].strip(" \t\n\r")):
            return {}
    return found


def _begin_of_object(text: str, start: int, end: int, name: str) -> int | None:
    at = end
    for _ in range(_TRIES):
        at = text.rfind(name, start, at)
        if at < 0:
            return None
        begin = at - 1
        while begin > start and text[begin] in " \t\n\r":
            begin -= 1
        if text[begin] != "{":
            continue
        try:
            if SCAN(text, begin)[1] == end:
                return begin
        except (ValueError, StopIteration, RecursionError):
            continue
    return None


def _of_string(text: str, start: int, end: int, old: str, new: str) -> list[Edit]:
    """Return how the text of a string is to be edited: in parts if their places are certain."""
    if len(old) > _SHORT:
        found = list[Edit]()
        for first, last, other in _cuts(old, new):
            place = _place_of(text, start, end, old, first, last)
            if place is None:
                break
            found.append((*place, dumped(other, text)[1:-1]))
        else:
            return found
    return [(start, end_of(text, start) if end < 0 else end, dumped(new, text))]


def _cuts(old: str, new: str) -> list[Edit]:
    """Return spans of a text, in order, and what stands in place of each in another text."""
    found = list[Edit]()
    place = done = 0  # in the old text, in the new one
    while True:
        same = _common(old, new, place, done)
        place, done = place + same, done + same
        if done == len(new) or place == len(old):
            break
        again = old.find(new[done : done + _SHORT], place + 1) if len(found) < _MOST_CUTS else -1
        if again < 0:
            behind = _common_end(old, new, min(len(old) - place, len(new) - done))
            return [*found, (place, len(old) - behind, new[done : len(new) - behind])]
        found.append((place, again, ""))
        place = again
    return [*found, (place, len(old), new[done:])] if place < len(old) or done < len(new) else found


def _place_of(text: str, start: int, end: int, old: str, first: int, last: int) -> Place | None:
    """Return the place of characters [first, last) of a string in its text; None: it is not certain.

    It is certain behind the text of all that is before it. It is certain in front of the text of all that is behind it, and if
    neither the string nor its text has these characters twice, unless an escape reaches over its beginning.
    """
    if first == len(old):
        end = end_of(text, start) if end < 0 else end
        return end - 1, end - 1
    gone = dumped(old[first:last], text)[1:-1]
    if first <= _NEAR:
        before = dumped(old[:first], text)[1:-1]
        begin = start + 1 + len(before)
        return (begin, begin + len(gone)) if text.startswith(before + gone, start + 1) else None
    end = end_of(text, start) if end < 0 else end
    if len(old) - last <= _NEAR:
        behind = dumped(old[last:], text)[1:-1]
        stop = end - 1 - len(behind)
        begin = stop - len(gone)
        is_certain = begin > start and text.startswith(gone + behind, begin)
    else:
        begin = text.find(gone, start + 1 + first, end)
        stop = begin + len(gone)
        is_certain = begin >= 0 and text.find(gone, begin + 1, end) < 0 and old.find(old[first:last], 0, first) < 0
    return (begin, stop) if is_certain and not _is_in_escape(text, start, begin) else None


def _is_in_escape(text: str, start: int, place: int) -> bool:
    """Return whether a place in the text of a string, which starts at the other one, is inside of an escape."""
    last = text.rfind("\\", max(start + 1, place - _ESCAPE + 1), place)
    if last < 0:
        return False
    run = text[start : last + 1]
    if (len(run) - len(run.rstrip("\\"))) % 2 == 0:
        return False
    return place < last + (_ESCAPE if text[last + 1] == "u" else 2)


def _common(one: str, other: str, at: int, of_other: int) -> int:
    """Return how many characters from a place on are the same in two texts."""
    most = min(len(one) - at, len(other) - of_other)
    if other.startswith(one[at : at + most], of_other):
        return most
    low, high = 0, _SHORT
    while high < most and other.startswith(one[at + low : at + high], of_other + low):
        low, high = high, 4 * high
    high = min(high, most)
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[at + low : at + middle], of_other + low):
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(one: str, other: str, most: int) -> int:
    """Return how many of so many characters at the end of two texts are the same."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[len(one) - middle : len(one) - low], len(other) - middle):
            low = middle
        else:
            high = middle - 1
    return low


def _raw(
    text: str, start: int, end: int, old: Any, new: Any, elements: Sequence[Place] | None = None, *, outermost: bool = True
) -> str:
    """Return the text of a changed value. ``start``, ``end``: of the text of the value before."""
    if new is old:
        return text[start:end]
    if isinstance(old, dict) and _stands_for(new, old) and old.keys() == new.keys():
        if outermost and (encoder := _encoder(text[start:end], old)) is not None:
            return encoder.encode(new)
        pieces = {
            key: f"{dumped(key, text)}: {_raw(text, at, to, old[key], new[key], outermost=False)}"
            for key, at, to in _members(text, start, old, ())
        }
        return "{" + ", ".join(pieces[key] for key in new) + "}"
    if isinstance(old, list) and isinstance(new, list):
        known = [(at, to) for _, at, to in _members(text, start, old, ())] if elements is None else elements
        texts = {id(one): text[at:to] for one, (at, to) in zip(old, known, strict=True)}
        if None not in (same := [texts.get(id(one)) for one in new]):
            return f"[{', '.join(map(str, same))}]"
        places = {id(one): (at, to, one) for one, (at, to) in zip(old, known, strict=True)}
        found = []
        for one in new:
            place = places.get(id(one.origin if isinstance(one, Edited) else one))
            if place is None:
                found.append(dumped(one, text))
            else:
                found.append(text[place[0] : place[1]] if one is place[2] else _raw(text, *place, one))
        return "[" + ", ".join(found) + "]"
    return dumped(new, text)


_ENCODERS: Final = tuple(
    json.JSONEncoder(ensure_ascii=escapes, separators=separators)
    for escapes in (False, True)
    for separators in ((",", ":"), (", ", ": "))
)


def _encoder(raw: str, value: Any) -> json.JSONEncoder | None:
    """Return what writes a value exactly as its text has it; None: it was written otherwise.

    It writes all numbers and escapes of the value's parts as they were.
    """
    encoders = _ENCODERS[:2] if raw.isascii() and "\\u" not in raw else _ENCODERS
    return next((encoder for encoder in encoders if encoder.encode(value) == raw), None)


def _members(text: str, start: int, old: Any, wanted: Collection[Any]) -> Iterator[tuple[Any, int, int]]:
    """Yield the members of an object or a list: name or number, start and end of the text of the value.

    The end of a member that is wanted is looked for only when the next one is.
    """
    is_object = isinstance(old, dict)
    place, number = skip(text, start + 1), 0
    while text[place] not in "}]":
        key: Any = number
        if is_object:
            key, place = scanstring(text, place + 1)
            place = skip(text, skip(text, place) + 1)
        end = -1 if key in wanted else end_of(text, place)
        yield key, place, end
        end = end_of(text, place) if end < 0 else end
        place, number = skip(text, end), number + 1
        if text[place] == ",":
            place = skip(text, place + 1)


def dumped(value: Any, text: str) -> str:
    """Return JSON of a value, with escapes for all but ASCII if a text has nothing else."""
    if not text.isascii():
        found = json.dumps(value, ensure_ascii=False)
        try:
            found.encode()
        except UnicodeEncodeError:  # a surrogate without its other half
            pass
        else:
            return found
    return json.dumps(value)
