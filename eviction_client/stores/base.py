"""The contract of all stores of shared claims.

The rule (:func:`pooled`): a block has the highest claim of the conversations that hold it, by its probability now. A later turn
of the conversation that has the claim replaces it, also by a lower one: the writer then gives the highest of all claims that
it has seen of the block, its own conversations' and others' (:mod:`eviction_client.fleet_pool`).

An engine adds the claims that it reads to those of its own conversations. Its own come back unchanged, so they change nothing.

For claims of different conversations pooling is commutative, associative and idempotent, but for the number of holders. Claims
below the highest that the writer has not seen are lost: the next turns of their conversations bring them back.
"""

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol, TypeVar

from eviction_client.stores.claims import MOST_HOLDERS, SharedClaim

EngineId = NewType("EngineId", str)
"""Name of an engine in its fleet; not empty. It does not leave the process."""


class Turned(NamedTuple):
    """A conversation's turn that has ended, and what its engine has then seen of some blocks.

    Attributes:
        conversation: tag of the conversation.
        at: end of the turn, seconds since the epoch.
        highest: the highest claim on the blocks that the engine has seen; may be another conversation's.
    """

    conversation: int
    at: float
    highest: SharedClaim


def pooled(stored: SharedClaim | None, turned: Turned, gap_s: float) -> SharedClaim:
    """Return a block's claim after a turn.

    Args:
        stored: the claim before; None for a new block.
        gap_s: the writer's mean gap between turns, by which probabilities fall.
    """
    new = turned.highest
    if stored is None:
        return new
    same = stored.conversation == turned.conversation
    holders = min(max(stored.holders, new.holders, 1 if same else 2), MOST_HOLDERS)
    if same:
        kept = new if turned.at // 1 >= stored.at else stored
    elif stored.conversation == new.conversation:
        kept = new if new.at >= stored.at else stored
    else:
        kept = new if new.score(gap_s) >= stored.score(gap_s) else stored
    return kept._replace(holders=holders)


B = TypeVar("B")
"""Name of a block: an engine's `BlockHash`, or a simulator's segment."""


class BlockStore(Protocol[B]):
    """Shared claims on the blocks of one namespace, for one background thread of an engine.

    A call takes at most the store's time-out. Only :meth:`claims_now` raises if the store is unavailable.
    """

    def record(self, blocks: Sequence[B], turned: Turned, gap_s: float) -> None:
        """Record a turn that has used ``blocks``, with finite numbers as of :func:`shared_claim`; see :func:`pooled`.

        The next :meth:`flush` may write the record. ``blocks`` must not change afterwards.
        """
        ...

    def flush(self) -> bool:
        """Write the pending records; return whether all are in the store."""
        ...

    def claims(self, blocks: Sequence[B]) -> dict[B, SharedClaim]:
        """Return the claims of the blocks that have one. Pending records need not be among them."""
        ...

    def trim(self, now: float) -> None:
        """Forget blocks whose claim is older than `forgotten_below(now)`; ``now``: seconds since the epoch."""
        ...

    def claims_now(self, blocks: Sequence[B]) -> list[SharedClaim | None]:
        """Return the claim of each block, None if unknown. Raises StoreError if the store is unavailable."""
        ...

    def close(self) -> None:
        """Flush once and release all resources. Later calls do nothing."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to use the store succeeded. A store starts unhealthy."""
        ...

    @property
    def refused(self) -> int:
        """Values found in the store that no engine would have written, and were ignored."""
        ...
