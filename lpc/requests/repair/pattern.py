"""The form of a value, without its text."""

import re
from typing import Final

from lpc.requests.repair.statements import Statement

_DIGIT: Final = re.compile(r"[0-9]")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_LONGEST: Final = 40


def form_of(text: str, found: Statement) -> str:
    """Return the form of a statement's value: digits become 9, letters x. Of a list its lines."""
    value = text[slice(*found.value)]
    if "\n" in value:
        return f"{len(value.splitlines())} lines"
    return _DIGIT.sub("9", _LETTERS.sub("x", value))[:_LONGEST]
