"""The form of a value, without its text."""

import re
from typing import Final

_DIGIT: Final = re.compile(r"[0-9]")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_RANDOM: Final = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[0-9A-Za-z]{8,}")
_OF_TIMES: Final = frozenset({"T", "Z", "UTC", "GMT"})
_LONGEST: Final = 40


def form_of(value: str) -> str:
    """Return the form of a value: digits become 9, words and random values x. Of a list its lines."""
    if "\n" in value:
        return f"{len(value.splitlines())} lines"
    words = _LETTERS.sub(lambda word: word[0] if word[0] in _OF_TIMES else "x", _RANDOM.sub("x", value))
    return _DIGIT.sub("9", words)[:_LONGEST]
