"""The normal form of a question: equal for questions that differ only in case, white space or final punctuation.

Compatibility forms are folded as well (NFKC), such as full-width letters. What changes the meaning stays as it is:

- a raised or lowered character, a fraction and a sign in a circle: 10² is not 102;
- the case of a unit after a number: 5 mW is not 5 MW; and of a word with digits: B2 is not b2;
- the case of a short word in capitals that is another word otherwise: IT, US, WHO; unless the whole question is in capitals;
- an exclamation mark after a number or a bracket: 5! is not 5.

Other words change their meaning with their case, and code does so everywhere. Labels decide whether that matters in a scope.
"""

import re
import unicodedata
from typing import Final

from response_cache.semantic.words import FUNCTION

FINAL: Final = " .?!。…"
"""Final punctuation, after compatibility normalisation."""
LONGEST_UNIT: Final = 4
"""Letters of a word that counts as the unit of the number before it."""
_APART: Final = ("<super>", "<sub>", "<circle>", "<font>")
"""Compatibility forms that differ in meaning. So may those of several characters: ½, №."""
_WORDS: Final = re.compile(r"(\w+)")


def normal_form(question: str) -> str:
    """Return the normal form of a question."""
    folded = " ".join("".join(map(_folded, unicodedata.normalize("NFC", question))).split())
    body = folded.rstrip(FINAL)
    if not body:
        return folded
    end = folded[len(body) :].replace(" ", "")
    if end.startswith("!") and (body[-1].isdigit() or body[-1] in ")]}"):
        body += end[: len(end) - len(end.lstrip("!"))]
    shouted = body == body.upper()
    parts, number = _WORDS.split(body), False
    for at in range(1, len(parts), 2):
        word = parts[at]
        unit = number and parts[at - 1] == " " and len(word) <= LONGEST_UNIT
        number = any(map(str.isdigit, word))
        if not (number or unit or (not shouted and 1 < len(word) <= 3 and word.isupper() and word.lower() in FUNCTION)):
            parts[at] = word.lower()
    return "".join(parts)


def alike(one: str, other: str) -> bool:
    """Return whether two questions have the same normal form."""
    return normal_form(one) == normal_form(other)


def _folded(character: str) -> str:
    if character.isascii() or unicodedata.decomposition(character).startswith(_APART):
        return character
    plain = unicodedata.normalize("NFKC", character)
    return plain if len(plain) == 1 else character
