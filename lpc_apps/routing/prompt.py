"""A prompt as a chain of pieces, so that what two prompts share at their beginning is found without their text."""

from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate
from typing import Final, NamedTuple

PIECE: Final = 4096
"""Bytes of a piece of a long text: a document before two questions is shared although the message is not."""
MOST_PIECES: Final = 512
"""Pieces of a prompt. What follows is part of the last one."""


class Prompt(NamedTuple):
    """A prompt of at least one piece.

    Attributes:
        ids: id of each piece and of all before it, 64 bits: equal if all these are equal.
        sizes: size up to the end of each piece, in bytes or in tokens.
        replies: whether the piece is of a model's reply, which an engine has cached without being asked.
        name: key of the conversation; None: it has no name.
    """

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    replies: tuple[bool, ...]
    name: bytes | None = None

    @property
    def size(self) -> int:
        """Size of the whole prompt."""
        return self.sizes[-1]


def prompt_of(scope: bytes, texts: Iterable[tuple[bytes, bool]], name: bytes | None = None) -> Prompt:
    """Return the prompt of texts in order.

    Args:
        scope: prompts of different scopes share nothing.
        texts: of each message, in a form that is equal if engines read it alike, and whether it is a model's reply.
    """
    pieces: list[tuple[bytes, bool]] = []
    for text, reply in texts:
        starts = range(0, max(len(text), 1), PIECE) if len(pieces) + len(text) // PIECE < MOST_PIECES else (0,)
        pieces += [(text[at : at + PIECE] if len(starts) > 1 else text, reply) for at in starts]
    if len(pieces) > MOST_PIECES:
        rest = b"".join(text for text, _ in pieces[MOST_PIECES - 1 :])
        pieces[MOST_PIECES - 1 :] = [(rest, False)]
    ids, before = [], blake2b(scope, digest_size=8).digest()
    for text, _ in pieces or [(b"", False)]:
        before = blake2b(text, key=before, digest_size=8).digest()
        ids.append(int.from_bytes(before, "big"))
    sizes = accumulate(len(text) + 1 for text, _ in pieces or [(b"", False)])
    return Prompt(tuple(ids), tuple(sizes), tuple(reply for _, reply in pieces) or (False,), name)
