"""Text in which a tokenizer's added tokens are marks: what tells markup from what someone typed."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

MARK: Final = 0xF0000
"""Start of a private plane of Unicode: in marked text the character MARK + k stands for the k-th added token."""


def is_mark(character: str) -> bool:
    """Say whether a character of marked text stands for an added token."""
    return ord(character) >= MARK


def unmarked(text: str) -> str:
    """Return marked text without its marks."""
    return "".join(c for c in text if not is_mark(c))


class MarkingTokenizer:
    """Decodes token ids to plain or marked text. Thread-safe.

    Attributes:
        vocabulary: ids are below it.
        is_marker: [vocabulary] which ids are added tokens.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        added = [i for i, token in backend.get_added_tokens_decoder().items() if token.content.strip()]
        self.vocabulary = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=0) + 1)
        self._marker_ids = sorted(added)
        self._mark_of = {i: chr(MARK + k) for k, i in enumerate(self._marker_ids)}
        self.is_marker = np.zeros(self.vocabulary, np.bool_)
        self.is_marker[self._marker_ids] = True

    def token_of(self, mark: str) -> int:
        """Return the id of the added token that a mark stands for."""
        return self._marker_ids[ord(mark) - MARK]

    def decode(self, ids: NDArray[np.int64]) -> str:
        """Return the text of ids, without special tokens."""
        text: str = self._backend.decode(ids.tolist(), skip_special_tokens=True)
        return text

    def marked(self, ids: NDArray[np.int64]) -> str:
        """Return the text of ids, with every added token as one private character."""
        parts = []
        start = 0
        for at in [*np.flatnonzero(self.is_marker[ids]).tolist(), len(ids)]:
            parts.append(self.decode(ids[start:at]))
            if at < len(ids):
                parts.append(self._mark_of[int(ids[at])])
            start = at + 1
        return "".join(parts)

    def mark(self, text: str) -> str:
        """Return rendered text as marked text: tokenised as an engine does, and decoded."""
        return self.marked(np.asarray(self._backend.encode(text, add_special_tokens=False).ids, np.int64))
