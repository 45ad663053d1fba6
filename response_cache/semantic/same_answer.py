"""Judges of whether two answers are the same, which make the labels of the evidence.

There are two judges. The threshold accounts for their error (`threshold.JudgeError`; `lpc cache calibrate` measures it):

- `equal_text`, the default: the same except for white space. It never calls different answers the same. It calls most answers
  with the same meaning different, which costs hits but does not weaken the bound.
- `same_by_embedding`: equal text, or similar vectors, the same numbers, and no veto of negation or opposites.
"""

from typing import Final

from response_cache.semantic.vetoes import veto

NEAR: Final = 0.97
"""Lowest cosine similarity of answers that `same_by_embedding` calls the same."""


def equal_text(answer: str, other: str) -> bool:
    """Return whether two answers are the same except for white space."""
    return answer.split() == other.split()


def same_by_embedding(answer: str, other: str, similarity: float) -> bool:
    """Return whether two answers count as the same by cosine similarity and words."""
    return equal_text(answer, other) or (similarity >= NEAR and veto(answer, other) not in ("numbers", "negation", "antonyms"))
