"""Changed copies of a JSON value.

A changed object is an `Edited`, which holds the object that it stands for. So what differs can be found in the text of the JSON
(`splicing`), and nothing else is written again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Path = tuple[str | int, ...]


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
    if isinstance(value, list):
        found = list(value)
        found[int(path[0])] = inner
        return found
    return Edited.of(value, {**value, str(path[0]): inner})


def replaced_all(value: Any, edits: Mapping[Path, Any]) -> Any:
    """Return a copy of a value with others at some paths, none of which begins with another one."""
    if () in edits:
        return edits[()]
    inner: dict[str | int, dict[Path, Any]] = {}
    for path, to in edits.items():
        inner.setdefault(path[0], {})[path[1:]] = to
    if not isinstance(value, list):
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


def ordered(value: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return an object with its members in an order; the object itself if it has that order."""
    return value if list(value) == list(names) else Edited.of(value, {name: value[name] for name in names})
