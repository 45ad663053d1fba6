"""What every store of block scores does, whether private to the process or shared by the fleet.

The law (:func:`pooled`): a block's score is the maximum over the conversations that hold it of each one's latest score. A
later turn of a block's only conversation replaces its score (it may sink). From the moment another conversation touches it,
the block is shared and its score only rises: it is the maximum of the score it had and of all that came since.

Hence, for records of different conversations, pooling is commutative, associative and idempotent; the order matters
only between the turns of one conversation.

A score here is the key with credit of :mod:`eviction_client.score`, seconds since the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What a store has done since it was made; everything counts blocks unless said otherwise."""

    recorded: int = 0
    """Taken by ``record``."""
    written: int = 0
    """Acknowledged by the store."""
    dropped: int = 0
    """Lost because too many were waiting, the store was away for too long, or it refused them."""
    rejected: int = 0
    """Calls that made no sense (no finite score, no name of a conversation)."""
    bugs: int = 0
    """Calls and answers that failed in the plug-in's own code; their frames are in the log."""
    looked_up: int = 0
    """Scores asked for by ``look_ahead`` and answered."""
    known: int = 0
    """Of these, the ones that the store knew."""
    trimmed: int = 0
    failures: int = 0
    """Attempts to talk to the store that failed."""
    reconnects: int = 0
    """Times the store came back."""


class MetadataStore(Protocol):
    """Scores of the blocks of one namespace.

    ``record``, ``look_ahead``, ``take_answers`` and ``trim`` are for the engine's scheduler: they never block and never raise.
    The others are for tools and tests.
    """

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        """Note that a turn of ``conversation`` holding ``blocks`` has ended with this score (seconds since the epoch, finite).

        ``blocks`` must not change afterwards.
        """
        ...

    def look_ahead(self, blocks: Sequence[BlockHash], *, shared: bool = False) -> None:
        """Ask for the scores of blocks. A newer question replaces one that still waits.

        Args:
            shared: only of those that more than one conversation holds.
        """
        ...

    def take_answers(self) -> dict[BlockHash, float]:
        """Take the answers of ``look_ahead`` that have come since the last call; unknown blocks are absent.

        The caller rescores a block only where the answer is higher than what it knows: never is a score lowered by one.
        """
        ...

    def trim(self, now: float) -> None:
        """Forget blocks whose score has sunk out of sight at ``now`` (seconds since the epoch)."""
        ...

    def scores(self, blocks: Sequence[BlockHash]) -> list[float | None]:
        """Return the score of each block, None where unknown. Blocks. Raises StoreError when the store cannot be used."""
        ...

    def flush(self, timeout: float) -> bool:
        """Wait until everything recorded so far is in the store; False when that takes over ``timeout`` seconds."""
        ...

    def close(self, timeout: float = 1.0) -> None:
        """Flush for at most ``timeout`` seconds, then let go of everything. Later calls do nothing."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to use the store succeeded. A store starts unhealthy."""
        ...

    @property
    def counters(self) -> StoreCounters:
        """A snapshot."""
        ...
