"""Changed copies of a JSON value, and the same change in its text: all other bytes stay as they are.

A changed object is an `Edited`, which holds the object that it stands for. So the members of a text that belong to changed
values can be found, and no other member is written again: numbers, escapes and white space stay.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from json.scanner import make_scanner
from typing import Any, Final, cast

Path = tuple[str | int, ...]
_SCAN: Final = cast(Any, make_scanner)(json.JSONDecoder())
"""Returns the value at a place of a text and its end, as `json.JSONDecoder.raw_decode` does."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class Edited(dict[str, Any]):
    """An object in place of another one, its ``origin``."""

    __slots__ = ("origin",)
    origin: Mapping[str, Any]

    @classmethod
    def of(cls, origin: Mapping[str, Any], fields: Mapping[str, Any]) -> "Edited":
        """Return an object with these fields in place of another one."""
        found = cls(fields)
        found.origin = origin.origin if isinstance(origin, Edited) else origin
        return found


def object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None: it is not one, names a field twice, or has NaN or an infinity."""
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


def _refuse(name: str) -> float:
    raise ValueError(name)


def at(value: Any, path: Path) -> Any:
    """Return the value at a path."""
    for name in path:
        value = value[name]
    return value


def replaced(value: Any, path: Path, to: Any) -> Any:
    """Return a copy of a value with another one at a path."""
    if not path:
        return to
    inner = replaced(value[path[0]], path[1:], to)
    if isinstance(value, Mapping):
        return Edited.of(value, {**value, str(path[0]): inner})
    return [inner if number == path[0] else one for number, one in enumerate(value)]


def replaced_all(value: Any, edits: Mapping[Path, Any]) -> Any:
    """Return a copy of a value with others at some paths, none of which begins with another one."""
    if () in edits:
        return edits[()]
    inner: dict[str | int, dict[Path, Any]] = {}
    for path, to in edits.items():
        inner.setdefault(path[0], {})[path[1:]] = to
    if isinstance(value, Mapping):
        return Edited.of(value, {**value, **{str(name): replaced_all(value[name], each) for name, each in inner.items()}})
    found = list(value)
    for number, each in inner.items():
        found[int(number)] = replaced_all(found[int(number)], each)
    return found


def without(value: Any, path: Path) -> Any:
    """Return a copy of a value without the element of a list at a path."""
    *outer, number = path
    kept = [one for place, one in enumerate(at(value, tuple(outer))) if place != number]
    return replaced(value, tuple(outer), kept)


def spliced(text: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the text of a changed object.

    Args:
        text: JSON of ``old``, without repeated names in one object.
        new: ``old``, or made of it by the functions of this module.
    """
    edits: list[tuple[int, int, str]] = []
    _edit(text, _skip(text, 0), old, new, edits)
    pieces, done = [], 0
    for start, end, piece in edits:
        pieces += [text[done:start], piece]
        done = end
    return "".join([*pieces, text[done:]])


def _edit(text: str, start: int, old: Any, new: Any, edits: list[tuple[int, int, str]]) -> None:
    """Add what is to be replaced in the text of a value, which starts at a place, in order."""
    if new is old:
        return
    pairs = _pairs(old, new)
    if pairs is None:
        end = _end(text, start)
        edits.append((start, end, _raw(text, start, end, old, new)))
        return
    changed = {key for key, (before, after) in pairs.items() if before is not after}
    for key, place, _ in _members(text, start, old, changed):
        if key in changed:
            _edit(text, place, *pairs[key], edits)
            changed.discard(key)
            if not changed:
                return


def _pairs(old: Any, new: Any) -> dict[Any, tuple[Any, Any]] | None:
    """Return the corresponding values of two with the same members in the same order; None: they have others."""
    if isinstance(old, Mapping) and isinstance(new, Edited) and new.origin is old:
        return {key: (old[key], new[key]) for key in old} if list(old) == list(new) else None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = dict(enumerate(zip(old, new, strict=True)))
        return found if all(a is b or _stands_for(b, a) for a, b in found.values()) else None
    return None


def _stands_for(new: Any, old: Any) -> bool:
    return isinstance(new, Edited) and new.origin is old


def _raw(text: str, start: int, end: int, old: Any, new: Any, *, outermost: bool = True) -> str:
    """Return the text of a changed value. ``start``, ``end``: of the text of the value before."""
    if new is old:
        return text[start:end]
    if isinstance(old, Mapping) and _stands_for(new, old) and old.keys() == new.keys():
        if outermost and (encoder := _encoder(text[start:end], old)) is not None:
            return encoder.encode(new)
        pieces = {
            key: f"{dumped(key, text)}: {_raw(text, at, to, old[key], new[key], outermost=False)}"
            for key, at, to in _members(text, start, old, ())
        }
        return "{" + ", ".join(pieces[key] for key in new) + "}"
    if isinstance(old, list) and isinstance(new, list):
        places = {id(old[key]): (at, to, old[key]) for key, at, to in _members(text, start, old, ())}
        found = []
        for one in new:
            place = places.get(id(one.origin if isinstance(one, Edited) else one))
            found.append(dumped(one, text) if place is None else _raw(text, *place, one))
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
    is_object = isinstance(old, Mapping)
    place, number = _skip(text, start + 1), 0
    while text[place] not in "}]":
        key: Any = number
        if is_object:
            key, place = _SCAN(text, place)
            place = _skip(text, _skip(text, place) + 1)
        end = -1 if key in wanted else _end(text, place)
        yield key, place, end
        end = _end(text, place) if end < 0 else end
        place, number = _skip(text, end), number + 1
        if text[place] == ",":
            place = _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _end(text: str, start: int) -> int:
    end: int = _SCAN(text, start)[1]
    return end


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


def ordered(value: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return an object with its members in an order; the object itself if it has that order."""
    return value if list(value) == list(names) else Edited.of(value, {name: value[name] for name in names})
