"""Reads a JSON object with the places of its members in the text.

So a changed member is found in a text that is read once. The values themselves are read by the C code of `json`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.scanner import make_scanner
from typing import Any, Final, NamedTuple, cast

Place = tuple[int, int]
"""Where the text of a value begins and ends."""
Scan = Callable[[str, int], tuple[Any, int]]
scanstring: Final[Scan] = cast(Any, json.decoder).scanstring
"""Returns a string behind its first quote, and its end."""
_LISTS: Final = frozenset({"tools"})
"""Lists whose elements' places are kept: rules change the order of these, and all of them."""
_SPACES: Final = frozenset(" \t\n\r")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
SCAN: Final[Scan] = cast(Any, make_scanner)(json.JSONDecoder())
"""Returns the value at a place of a text and its end, as `json.JSONDecoder.raw_decode` does."""


class Read(NamedTuple):
    """A JSON object and its text.

    Attributes:
        places: of its members, by name.
        elements: places of the elements of those lists whose order may change.
    """

    text: str
    fields: dict[str, Any]
    places: Mapping[str, Place]
    elements: Mapping[str, Sequence[Place]]


def read(text: str, decoder: json.JSONDecoder) -> Read:
    """Return the JSON object in a text.

    Args:
        decoder: reads its values; its `object_pairs_hook` gets the members of the object as well.

    Raises:
        ValueError: it is not one JSON object.
        RecursionError: it is nested too deeply.
        Any error of the decoder's functions.
    """
    scan: Scan = cast(Any, decoder).scan_once
    try:
        place = skip(text, 0)
        if text[place] != "{":
            raise ValueError
        pairs, places, elements = list[tuple[str, Any]](), dict[str, Place](), dict[str, list[Place]]()
        place = skip(text, place + 1)
        while text[place] != "}":
            if pairs:
                place = _behind_comma(text, place)
            if text[place] != '"':
                raise ValueError
            name, place = scanstring(text, place + 1)
            place = skip(text, place)
            if text[place] != ":":
                raise ValueError
            start = skip(text, place + 1)
            if name in _LISTS and text[start] == "[":
                value, found = _elements(text, start, scan)
                elements[name] = found[:-1]
                place = found[-1][1]
            else:
                value, place = scan(text, start)
            pairs.append((name, value))
            places[name] = start, place
            place = skip(text, place)
        if skip(text, place + 1) != len(text):
            raise ValueError
    except (IndexError, StopIteration) as error:
        raise ValueError from error
    hook = decoder.object_pairs_hook
    return Read(text, dict(pairs) if hook is None else cast(Any, hook)(pairs), places, elements)


def _elements(text: str, start: int, scan: Scan) -> tuple[list[Any], list[Place]]:
    """Return a list and the places of its elements; the last place is the list's own."""
    values, places = list[Any](), list[Place]()
    place = skip(text, start + 1)
    while text[place] != "]":
        if values:
            place = _behind_comma(text, place)
        value, end = scan(text, place)
        values.append(value)
        places.append((place, end))
        place = skip(text, end)
    return values, [*places, (start, place + 1)]


def _behind_comma(text: str, place: int) -> int:
    if text[place] != ",":
        raise ValueError
    return skip(text, place + 1)


def object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None: it is not one, names a field twice, or has NaN or an infinity."""
    try:
        found = _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_object(text: str) -> Read | None:
    """Return the JSON object in a text with its places; None: as of `object_in`."""
    try:
        return read(text, _STRICT)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


def _refuse(name: str) -> float:
    raise ValueError(name)


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)


def skip(text: str, place: int) -> int:
    """Return where the white space at a place ends."""
    if text[place : place + 1] not in _SPACES:
        return place
    if text[place + 1 : place + 2] not in _SPACES:
        return place + 1
    found = _SPACE.match(text, place)
    return found.end() if found else place


def end_of(text: str, start: int) -> int:
    """Return where the value ends that begins at a place."""
    return SCAN(text, start)[1]
