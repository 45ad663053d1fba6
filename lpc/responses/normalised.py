"""The last user turn as it is compared by the normalised tier: what people type differently and mean alike.

A heuristic: "us" is not "US". So the tier is off unless the scope's settings name it, and serves only where evidence allows it.

Case, white space, the width of characters, and punctuation at the edges of words. Not whatever NFKC would make alike: it turns
10² into 102. Punctuation within words (3.5, f(x), don't), signs (-5, C#, 50%) and an exclamation mark after a digit stay. Text
with code has no such form, since there white space and case mean something.
"""

import re
import unicodedata
from typing import Final

EDGES: Final = (
    ".,;:!?\u2026\u3002\uff0c\uff01\uff1f\uff1b\uff1a\u3001\"'\u201c\u201d\u2018\u2019\u300c\u300d\u300a\u300b\u00bf\u00a1"
)
CLOSING: Final = ".!?\u3002"
_CODE: Final = re.compile(r"```|`[^`]|^(?: {4}|\t)\S", re.MULTILINE)


def normalised(text: str) -> str | None:
    """Return the form of a turn in which it is compared; None where it has none: code, or nothing but punctuation."""
    if _CODE.search(text):
        return None
    if not text.isascii():
        narrow = (unicodedata.normalize("NFKC", c) if unicodedata.east_asian_width(c) in "FH" else c for c in text)
        text = unicodedata.normalize("NFC", "".join(narrow))
    words = text.casefold().split()
    # "Pourquoi ?" has it as a word of its own.
    while len(words) > 1 and words[-1] in CLOSING:
        words.pop()
    found = " ".join(_word(word) for word in words)
    return found if any(c.isalnum() for c in found) else None


def _word(word: str) -> str:
    stripped = word.lstrip(EDGES if not word.startswith(".") else EDGES.replace(".", ""))
    kept = stripped.rstrip(EDGES)
    if not kept:
        return word
    rest = stripped[len(kept) :]
    # 5! is a factorial.
    return stripped if kept[-1].isdigit() and "!" in rest else kept
