"""What every store of block scores does, whether private to the process or shared by the fleet.

The rule (:func:`pooled`): a block's score is the maximum over the conversations that hold it of each one's latest score. A
later turn of a block's only conversation replaces its score (it may sink). From the moment another conversation touches it,
the block is shared and its score only rises: it is the maximum of the score it had and of all that came since.

Hence, for records of different conversations, pooling is commutative, associative and idempotent; the order matters
only between the turns of one conversation.

A score is the key of :mod:`eviction_client.score`, seconds since the epoch.
"""

from collections.abc import Sequence
from typing import Final, NewType, Protocol

BlockHash = NewType("BlockHash", bytes)
"""Content hash of a block, as the engine makes it. Must be uniformly distributed (a digest)."""

ConversationId = NewType("ConversationId", str)
"""Whatever names a conversation in all engines of a fleet; not empty. Only a keyed digest of it leaves the process."""

SHARED: Final = ConversationId("")
"""In place of a block's owner: more than one conversation holds it. No conversation has this name."""


def pooled(owner: str | None, score: float, conversation: str, new: float) -> tuple[str, float]:
    """Return a block's owner and score after a turn of ``conversation`` that holds it has ended with the score ``new``.

    Args:
        owner: of the block until now: a conversation, SHARED, or None where nobody has held it.
        score: of the block until now; without meaning where nobody has held it.
    """
    if owner is None or owner == conversation:
        return conversation, new
    return SHARED, max(score, new)


class BlockStore(Protocol):
    """Scores of the blocks of one namespace, for one thread in the background of an engine.

    A call takes at most the store's time-out and does not raise if the store cannot be used, except :meth:`scores`.
    """

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        """Note that a turn of ``conversation`` holding ``blocks`` has ended with this score (seconds since the epoch, finite).

        The record may wait for the next :meth:`flush` or :meth:`shared`. ``blocks`` must not change afterwards.
        """
        ...

    def flush(self) -> bool:
        """Write what was recorded; return whether all of it is in the store."""
        ...

    def shared(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, float]:
        """Write what was recorded; return the scores of those blocks that more than one conversation holds.

        The caller rescores a block only where the answer is higher than what it knows: an answer never lowers a score.
        """
        ...

    def trim(self, now: float) -> None:
        """Forget blocks whose score has sunk out of sight at ``now`` (seconds since the epoch)."""
        ...

    def scores(self, blocks: Sequence[BlockHash]) -> list[float | None]:
        """Return the score of each block, None where unknown. Raises StoreError if the store cannot be used."""
        ...

    def close(self) -> None:
        """Flush once, then let go of everything. Later calls do nothing."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to use the store succeeded. A store starts unhealthy."""
        ...
