"""The contract of all stores of retain-until times.

The rule (:func:`pooled`): while one conversation alone holds a block, each of its turns replaces the block's time, which may
sink. Once another conversation holds the block, it is shared, and its time only rises: to the maximum of the time it had and
of all later ones.

So for records of different conversations, pooling is commutative, associative and idempotent. The order matters only between
the turns of one conversation.

A time is that of :mod:`eviction_client.stores.retain_until`, seconds since the epoch.
"""

from collections.abc import Sequence
from typing import Final, NewType, Protocol

from eviction_client.block_hash import BlockHash

ConversationId = NewType("ConversationId", str)
"""Name of a conversation in all engines of a fleet; not empty. Only a keyed digest of it leaves the process."""

SHARED: Final = ConversationId("")
"""Owner of a block that more than one conversation holds. No conversation has this name."""


def pooled(owner: str | None, until: float, conversation: str, new: float) -> tuple[str, float]:
    """Return a block's owner and retain-until time after a turn of ``conversation``, which holds it, has ended with ``new``.

    Args:
        owner: the block's owner before: a conversation, SHARED, or None for a new block.
        until: the block's time before; ignored for a new block.
    """
    if owner is None or owner == conversation:
        return conversation, new
    return SHARED, max(until, new)


class BlockStore(Protocol):
    """Retain-until times of the blocks of one namespace, for one background thread of an engine.

    A call takes at most the store's time-out. Only :meth:`retain_until` raises if the store is unavailable.
    """

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], until: float) -> None:
        """Record that a turn of ``conversation`` retains ``blocks`` until a time (seconds since the epoch, finite).

        The next :meth:`flush` or :meth:`shared` may write the record. ``blocks`` must not change afterwards.
        """
        ...

    def flush(self) -> bool:
        """Write the pending records; return whether all are in the store."""
        ...

    def shared(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, float]:
        """Write the pending records; return the times of the blocks that more than one conversation holds.

        The caller uses a time only if it is later than its own.
        """
        ...

    def trim(self, now: float) -> None:
        """Forget blocks whose time is below `forgotten_below(now)`; ``now``: seconds since the epoch."""
        ...

    def retain_until(self, blocks: Sequence[BlockHash]) -> list[float | None]:
        """Return the time of each block, None if unknown. Raises StoreError if the store is unavailable."""
        ...

    def close(self) -> None:
        """Flush once and release all resources. Later calls do nothing."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to use the store succeeded. A store starts unhealthy."""
        ...
