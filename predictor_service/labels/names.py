"""Under which names a turn waits for the next one of its conversation: keyed hashes of 16 bytes, never text."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from lpc.model.conversation import UserTurns

IDENTITY_PROMPTS: Final = 4
"""Prompts that name a turn. One less than the paper's window, so that the next request, which sees one more, shows them all."""
WINDOW: Final = IDENTITY_PROMPTS + 1
"""Prompts of a request that are needed here; independent of the model's window, so that names outlive a reload."""

CERTAIN_CHARS: Final = 64
"""Characters from which on a first prompt seen twice is one conversation's, not two users'."""

LOOKED_AT: Final = 64
"""Turns waiting under one name that are looked through for the one whose count fits."""


class Names(NamedTuple):
    """The names of a turn.

    Attributes:
        own: under which it waits.
        before: under which the turn before it waits; None where there is none.
        text: of its prompts: the same for the same turn asked again.
        certain: the same text is the same turn.
        by_id: the caller named the conversation.
    """

    own: bytes
    before: bytes | None
    text: bytes
    certain: bool
    by_id: bool


def names_of(turns: UserTurns, conversation_id: str, key: bytes) -> Names | None:
    """Return a turn's names; None where its conversation could not be recognised again.

    Args:
        turns: with WINDOW prompts, if the conversation has as many.
        conversation_id: opaque; empty for none.
        key: of the hashes, at most 64 bytes.
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
