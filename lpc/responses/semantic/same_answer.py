"""Whether two answers say the same, judged without a person: the labels that the threshold rests on.

Three judges, each with an error of its own that the bound has to include (`threshold.JudgeError`; `lpc cache calibrate`
measures it):

- `equal_text`: the same but for white space. What it calls the same would have been served word for word, so it has no error
  that matters; most answers that mean the same it calls different, which costs hits and not the bound. The default.
- `ByEmbedding`: equal text, or vectors of the answers at least so near, the same numbers, and no veto of negation or opposites.
- `model_judge.ByModel`: a model behind an OpenAI-compatible endpoint, one's own engine for instance, is shown both and asked.

A judge that cannot tell says False: that errs on the safe side. None says that it could not be asked now, and tells nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lpc.responses.semantic.vetoes import veto

NEAR: Final = 0.97
"""Cosine similarity of two answers from which `ByEmbedding` calls them the same."""


def equal_text(answer: str, other: str) -> bool:
    """Say whether two answers are the same but for white space."""
    return answer.split() == other.split()


class ByEmbedding:
    """Calls answers the same by their vectors and numbers.

    Args:
        embed: returns the vectors of two texts, of unit length; None where one is too long to be seen whole. Raises
            TimeoutError where there is no time for it now.
        near: cosine similarity from which they are the same.
    """

    def __init__(
        self, embed: Callable[[str, str], Awaitable[tuple[NDArray[Any], NDArray[Any]] | None]], near: float = NEAR
    ) -> None:
        self._embed, self._near = embed, near

    async def __call__(
        self,
        question: str,  # noqa: ARG002
        answer: str,
        other_question: str,  # noqa: ARG002
        other_answer: str,
    ) -> bool | None:
        """Judge the answers; the questions do not matter."""
        if equal_text(answer, other_answer):
            return True
        try:
            vectors = await self._embed(answer, other_answer)
        except TimeoutError:
            return None
        if vectors is None:
            return False
        a, b = vectors
        return same_by_embedding(answer, other_answer, float(np.dot(a.astype(np.float32), b.astype(np.float32))), self._near)


def same_by_embedding(answer: str, other: str, similarity: float, near: float = NEAR) -> bool:
    """Say whether two answers count as the same by the cosine similarity of their vectors, and their words."""
    return equal_text(answer, other) or (similarity >= near and veto(answer, other) not in ("numbers", "negation", "antonyms"))
