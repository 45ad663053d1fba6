"""Names under which a turn waits for the next turn of its conversation: keyed hashes of 16 bytes, never text."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from lpc.model.conversation import UserTurns

IDENTITY_PROMPTS: Final = 4
"""Number of prompts that name a turn: one less than the paper's window, so that the next request contains all of them."""
WINDOW: Final = IDENTITY_PROMPTS + 1
"""Number of prompts needed of a request; independent of the model's window, so that names stay valid after a reload."""

CERTAIN_CHARS: Final = 64
"""Length from which on two equal first prompts are one conversation, not two users."""

MAX_SAME_NAME: Final = 64
"""Turns waiting under one name that are compared."""


class Names(NamedTuple):
    """The names of a turn.

    Attributes:
        own: name under which the turn waits.
        before: name under which the previous turn waits; None: there is none.
        text: hash of its prompts, equal if the same turn is sent again.
        certain: whether an equal ``text`` means the same turn.
        by_id: whether the caller sent a conversation id.
    """

    own: bytes
    before: bytes | None
    text: bytes
    certain: bool
    by_id: bool


def names_of(turns: UserTurns, conversation_id: str, key: bytes) -> Names | None:
    """Return a turn's names; None: the next turn could not be recognised.

    Args:
        turns: the last WINDOW prompts, or all if there are fewer.
        conversation_id: opaque; empty: none.
        key: hash key, at most 64 bytes.
    """
    prompts = turns.prompts
    text = _hash(key, b"prompts", prompts[-IDENTITY_PROMPTS:])
    if conversation_id:
        own = _hash(key, b"id", (conversation_id,))
        return Names(own, own, text, certain=True, by_id=True)
    whole = len(prompts) == turns.turn_count
    if not turns.told_apart or not (whole or len(prompts) >= WINDOW):
        return None
    before = _hash(key, b"prompts", prompts[-WINDOW:-1]) if len(prompts) > 1 else None
    return Names(text, before, text, certain=len(prompts) > 1 or len(prompts[0]) >= CERTAIN_CHARS, by_id=False)


def _hash(key: bytes, kind: bytes, texts: Sequence[str]) -> bytes:
    digest = blake2b(digest_size=16, key=key, person=kind)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
