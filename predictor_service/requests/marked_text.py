"""Marked text: text in which private characters stand for a tokenizer's added tokens, so that markup cannot be typed."""

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import InvalidRequest

MARK: Final = 0xF0000
"""Start of a private plane of Unicode; the character MARK + k stands for the k-th added token."""
MAX_VOCABULARY: Final = 2**19
"""Twice the largest in use. Parsing a tokenizer blocks the sidecar, 0.7 s for 262,144 tokens."""
MAX_PARTS: Final = 2**16
"""Largest number of texts between added tokens; each is decoded separately."""
UNLOCKED_FROM: Final = 4096
"""Number of ids from which on decoding releases the interpreter's lock; for fewer ids the hand-over costs more."""
_MARKS: Final = re.compile(f"[{chr(MARK)}-\U0010ffff]+")


def is_mark(character: str) -> bool:
    """Return whether a character of marked text stands for an added token."""
    return ord(character) >= MARK


def unmarked(text: str) -> str:
    """Return marked text without its marks."""
    return _MARKS.sub("", text)


def token_lengths(backend: Tokenizer, vocabulary: int) -> NDArray[np.int32]:
    """Return the number of characters of each id below ``vocabulary``; an unknown id counts as the longest token."""
    known = backend.get_vocab(with_added_tokens=True)
    ids = np.fromiter(known.values(), np.int64, len(known))
    lengths = np.fromiter(map(len, known), np.int32, len(known))
    found = np.full(vocabulary, lengths.max(initial=0), np.int32)
    inside = ids < vocabulary
    found[ids[inside]] = lengths[inside]
    return found


class MarkingTokenizer:
    """Decodes token ids to plain or marked text. Thread-safe.

    Attributes:
        vocabulary: all ids are below it.
        is_marker: [vocabulary] whether each id is an added token.

    Raises:
        ValueError: the vocabulary is too large.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        added = [i for i, token in backend.get_added_tokens_decoder().items() if token.content.strip()]
        self.vocabulary = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=0) + 1)
        if self.vocabulary > MAX_VOCABULARY:
            raise ValueError(f"its ids go up to {self.vocabulary}, more than {MAX_VOCABULARY}")
        self._marker_ids = sorted(added)
        self._mark_of = {i: chr(MARK + k) for k, i in enumerate(self._marker_ids)}
        self.is_marker = np.zeros(self.vocabulary, np.bool_)
        self.is_marker[self._marker_ids] = True

    def token_of(self, mark: str) -> int:
        """Return the id of the added token that a mark stands for."""
        return self._marker_ids[ord(mark) - MARK]

    def unmarked(self, text: str) -> str:
        """Return marked text as :meth:`decode` returns it: with the added tokens that are not special."""
        return "".join(self.decode(np.array([self.token_of(c)])) if is_mark(c) else c for c in text)

    def decode(self, ids: NDArray[np.int64]) -> str:
        """Return the text of ids, without special tokens."""
        if len(ids) < UNLOCKED_FROM:
            text: str = self._backend.decode(ids.tolist(), skip_special_tokens=True)
        else:
            # decode_batch, unlike decode, releases the interpreter's lock.
            (text,) = self._backend.decode_batch([ids.tolist()], skip_special_tokens=True)
        return text

    def marked(self, ids: NDArray[np.int64]) -> str:
        """Return the marked text of ids. Raises InvalidRequest: there are too many added tokens."""
        parts = []
        start = texts = 0
        for at in [*np.flatnonzero(self.is_marker[ids]).tolist(), len(ids)]:
            if start < at:
                texts += 1
                if texts > MAX_PARTS:
                    raise InvalidRequest(f"added tokens cut the prompt into more than {MAX_PARTS} parts")
                parts.append(self.decode(ids[start:at]))
            if at < len(ids):
                parts.append(self._mark_of[int(ids[at])])
            start = at + 1
        return "".join(parts)

    def mark(self, text: str) -> str:
        """Return the marked text of a rendered prompt, tokenised as an engine does it."""
        return self.marked(np.asarray(self._backend.encode(text, add_special_tokens=False).ids, np.int64))
