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

CLIENT_BYTES: Final = 6
"""Length of the client's part at the beginning of a user's name, so that a client's users have limits of their own."""

MAX_SAME_NAME: Final = 64
"""Turns waiting under one name that are compared."""


class Names(NamedTuple):
    """The names of a turn under one key.

    Attributes:
        own: name under which the turn waits.
        before: name under which the previous turn waits; None: there is none.
        text: hash of its prompts, equal if the same turn is sent again.
        certain: whether an equal ``text`` means the same turn.
        by_id: whether the caller sent a conversation id.
        user: name of the user; empty: unknown.
    """

    own: bytes
    before: bytes | None
    text: bytes
    certain: bool
    by_id: bool
    user: bytes = b""


class Identity(NamedTuple):
    """What a turn is recognised by: digests of 32 bytes without a key. Do not store it, only its names (`under`).

    Attributes:
        prompts: digest of the last IDENTITY_PROMPTS prompts.
        before: digest of the same prompts of the previous turn; None: there is none.
        conversation_id: None: the caller sent none.
        certain: as in `Names`.
    """

    prompts: bytes
    before: bytes | None
    conversation_id: bytes | None
    certain: bool

    def under(self, key: bytes) -> Names:
        """Return the turn's names. ``key``: of the hashes, at most 64 bytes."""
        text = _keyed(self.prompts, key)
        if self.conversation_id is not None:
            own = _keyed(self.conversation_id, key)
            return Names(own, own, text, self.certain, by_id=True)
        before = None if self.before is None else _keyed(self.before, key)
        return Names(text, before, text, self.certain, by_id=False)


def identity_of(turns: UserTurns, conversation_id: str) -> Identity | None:
    """Return a turn's identity; None: the next turn could not be recognised.

    Args:
        turns: the last WINDOW prompts, or all if there are fewer.
        conversation_id: opaque; empty: none.
    """
    prompts = turns.prompts
    if conversation_id:
        name = _digest(b"id", (conversation_id,))
        return Identity(_digest(b"prompts", prompts[-IDENTITY_PROMPTS:]), None, name, certain=True)
    whole = len(prompts) == turns.turn_count
    if not turns.told_apart or not (whole or len(prompts) >= WINDOW):
        return None
    before = _digest(b"prompts", prompts[-WINDOW:-1]) if len(prompts) > 1 else None
    certain = len(prompts) > 1 or len(prompts[0]) >= CERTAIN_CHARS
    return Identity(_digest(b"prompts", prompts[-IDENTITY_PROMPTS:]), before, None, certain)


def user_name(client: str, user: str, key: bytes) -> bytes:
    """Return the name of a client's user, 16 bytes, which another client cannot name; empty: the user is unknown."""
    if not user:
        return b""
    return (
        _keyed(_digest(b"client", (client,)), key)[:CLIENT_BYTES] + _keyed(_digest(b"user", (client, user)), key)[CLIENT_BYTES:]
    )


def _digest(kind: bytes, texts: Sequence[str]) -> bytes:
    digest = blake2b(digest_size=32, person=kind)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _keyed(digest: bytes, key: bytes) -> bytes:
    return blake2b(digest, digest_size=16, key=key).digest()
