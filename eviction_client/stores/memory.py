"""Shared claims of engines in one process: of `lpc simulate`, and for tests."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Generic, TypeVar

from eviction_client.pace import in_pieces, pause
from eviction_client.recent import Recent
from eviction_client.stores.base import Turned, pooled
from eviction_client.stores.claims import SharedClaim, forgotten_below

MAX_BLOCKS = 1_000_000
"""Blocks remembered: about 250 MB."""


B = TypeVar("B")


class MemoryStore(Generic[B]):
    """Shared claims of one process. Beyond ``max_blocks`` it forgets the blocks that were recorded longest ago."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._blocks: Recent[B, SharedClaim] = Recent(max_blocks)
        self._closed = False

    def record(self, blocks: Sequence[B], turned: Turned, gap_s: float) -> None:
        """See :meth:`BlockStore.record`."""
        if self._closed:
            return
        known = self._blocks
        for piece in in_pieces(blocks):
            for block in piece:
                known.put(block, pooled(known.get(block), turned, gap_s))

    def flush(self) -> bool:
        """See :meth:`BlockStore.flush`."""
        return True

    def claims(self, blocks: Sequence[B]) -> dict[B, SharedClaim]:
        """See :meth:`BlockStore.claims`."""
        found = ((block, self._blocks.get(block)) for block in blocks)
        return {block: claim for block, claim in found if claim is not None}

    def trim(self, now: float) -> None:
        """See :meth:`BlockStore.trim`. Stops in each part at the first block that is not to be forgotten."""
        threshold = forgotten_below(now)
        for part in self._blocks.parts():
            sunk = [block for block, _ in takewhile(lambda entry: entry[1].at < threshold, part.items())]
            for block in sunk:
                del part[block]
            pause()

    def claims_now(self, blocks: Sequence[B]) -> list[SharedClaim | None]:
        """See :meth:`BlockStore.claims_now`."""
        return [self._blocks.get(block) for block in blocks]

    def close(self) -> None:
        """See :meth:`BlockStore.close`."""
        self._closed = True
        self._blocks.clear()

    @property
    def healthy(self) -> bool:
        """True until closed."""
        return not self._closed

    @property
    def refused(self) -> int:
        """0: no other process writes to it."""
        return 0

    def __len__(self) -> int:
        return len(self._blocks)
