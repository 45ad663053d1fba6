"""Retain-until times of engines in one process: of `lpc simulate`, and for tests."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Generic, TypeVar

from eviction_client.pace import in_pieces, pause
from eviction_client.recent import Recent
from eviction_client.stores.base import EngineId, pooled
from eviction_client.stores.retain_until import forgotten_below

MAX_BLOCKS = 1_000_000
"""Blocks remembered: about 200 MB."""


B = TypeVar("B")


class MemoryStore(Generic[B]):
    """Retain-until times of one process. Beyond ``max_blocks`` it forgets the blocks that were recorded longest ago."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._blocks: Recent[B, tuple[str, float]] = Recent(max_blocks)  # holder and time
        self._closed = False

    def record(self, engine: EngineId, blocks: Sequence[B], until: float) -> None:
        """See :meth:`BlockStore.record`."""
        if self._closed:
            return
        known = self._blocks
        for piece in in_pieces(blocks):
            for block in piece:
                holder, before = known.get(block) or (None, 0.0)
                known.put(block, pooled(holder, before, engine, until))

    def flush(self) -> bool:
        """See :meth:`BlockStore.flush`."""
        return True

    def elsewhere(self, engine: EngineId, blocks: Sequence[B]) -> dict[B, float]:
        """See :meth:`BlockStore.elsewhere`."""
        found = ((block, self._blocks.get(block)) for block in blocks)
        return {block: entry[1] for block, entry in found if entry is not None and entry[0] != engine}

    def trim(self, now: float) -> None:
        """See :meth:`BlockStore.trim`. Stops in each part at the first block that is not to be forgotten."""
        threshold = forgotten_below(now)
        for part in self._blocks.parts():
            sunk = [block for block, _ in takewhile(lambda entry: entry[1][1] < threshold, part.items())]
            for block in sunk:
                del part[block]
            pause()

    def retain_until(self, blocks: Sequence[B]) -> list[float | None]:
        """See :meth:`BlockStore.retain_until`."""
        found = [self._blocks.get(block) for block in blocks]
        return [None if entry is None else entry[1] for entry in found]

    def close(self) -> None:
        """See :meth:`BlockStore.close`."""
        self._closed = True
        self._blocks.clear()

    @property
    def healthy(self) -> bool:
        """True until closed."""
        return not self._closed

    def __len__(self) -> int:
        return len(self._blocks)
