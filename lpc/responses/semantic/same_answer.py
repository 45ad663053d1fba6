"""Judges of whether two answers are the same, which make the labels of the evidence.

There are three judges. The threshold accounts for their error (`threshold.JudgeError`; `lpc cache calibrate` measures it):

- `equal_text`, the default: the same except for white space. It never calls different answers the same. It calls most answers
  with the same meaning different, which costs hits but does not weaken the bound.
- `ByEmbedding`: equal text, or similar vectors, the same numbers, and no veto of negation or opposites.
- `model_judge.ByModel`: a model at an OpenAI-compatible endpoint, for instance your own engine.

A judge returns False if it is not sure, which is safe, and None if it failed, which makes no label.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lpc.responses.semantic.vetoes import veto

NEAR: Final = 0.97
"""Lowest cosine similarity of answers that `ByEmbedding` calls the same."""


def equal_text(answer: str, other: str) -> bool:
    """Return whether two answers are the same except for white space."""
    return answer.split() == other.split()


class ByEmbedding:
    """Judges by vectors and numbers.

    Args:
        embed: returns the vectors of two texts, of unit length; None if one is too long for the encoder. Raises TimeoutError
            if the model is busy.
    """

    def __init__(self, embed: Callable[[str, str], Awaitable[tuple[NDArray[Any], NDArray[Any]] | None]]) -> None:
        self._embed = embed

    async def __call__(
        self,
        question: str,  # noqa: ARG002
        answer: str,
        other_question: str,  # noqa: ARG002
        other_answer: str,
    ) -> bool | None:
        """Return whether the answers are the same; the questions are ignored."""
        if equal_text(answer, other_answer):
            return True
        try:
            vectors = await self._embed(answer, other_answer)
        except TimeoutError:
            return None
        if vectors is None:
            return False
        a, b = vectors
        return same_by_embedding(answer, other_answer, float(np.dot(a.astype(np.float32), b.astype(np.float32))))


def same_by_embedding(answer: str, other: str, similarity: float) -> bool:
    """Return whether two answers count as the same by cosine similarity and words."""
    return equal_text(answer, other) or (similarity >= NEAR and veto(answer, other) not in ("numbers", "negation", "antonyms"))
