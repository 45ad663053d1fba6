"""The contract of all stores of retain-until times.

The rule (:func:`pooled`): a block has the latest of the engines' times, and the name of the engine that holds it that long. A
later record of that engine replaces its own, also by an earlier time: a time is what its engine thinks now.

An engine reads only the times of others (:meth:`BlockStore.elsewhere`): what its own conversations will use again it knows
better, from all of their uses. Pooling its own earlier times lost up to 3.5 points of hits on prompts that many requests share
(docs/explanation/simulator.md).

For records of different engines that are sent once, pooling is commutative, associative and idempotent. A time that the holder
replaces by an earlier one does not bring back those of the others: their next turns do.

A time is that of :mod:`eviction_client.stores.retain_until`, seconds since the epoch.
"""

from collections.abc import Sequence
from typing import NewType, Protocol, TypeVar

EngineId = NewType("EngineId", str)
"""Name of an engine in its fleet; not empty. Only a keyed digest of it leaves the process."""


def pooled(holder: str | None, until: float, engine: str, new: float) -> tuple[str, float]:
    """Return a block's holder and retain-until time after a turn on ``engine`` has ended that retains it until ``new``.

    Args:
        holder: the engine with the latest time before; None for a new block.
        until: the block's time before; ignored for a new block.
    """
    if holder is None or holder == engine or new >= until:
        return engine, new
    return holder, until


B = TypeVar("B")
"""Name of a block: an engine's `BlockHash`, or a simulator's segment."""


class BlockStore(Protocol[B]):
    """Retain-until times of the blocks of one namespace, for one background thread of an engine.

    A call takes at most the store's time-out. Only :meth:`retain_until` raises if the store is unavailable.
    """

    def record(self, engine: EngineId, blocks: Sequence[B], until: float) -> None:
        """Record that ``engine`` retains ``blocks`` until a time (seconds since the epoch, finite).

        The next :meth:`flush` may write the record. ``blocks`` must not change afterwards.
        """
        ...

    def flush(self) -> bool:
        """Write the pending records; return whether all are in the store."""
        ...

    def elsewhere(self, engine: EngineId, blocks: Sequence[B]) -> dict[B, float]:
        """Return the times of the blocks that another engine holds longest. Pending records need not be among them.

        The caller uses a time only if it is later than its own.
        """
        ...

    def trim(self, now: float) -> None:
        """Forget blocks whose time is below `forgotten_below(now)`; ``now``: seconds since the epoch."""
        ...

    def retain_until(self, blocks: Sequence[B]) -> list[float | None]:
        """Return the time of each block, None if unknown. Raises StoreError if the store is unavailable."""
        ...

    def close(self) -> None:
        """Flush once and release all resources. Later calls do nothing."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to use the store succeeded. A store starts unhealthy."""
        ...
