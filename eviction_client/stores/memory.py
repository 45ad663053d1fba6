"""Retain-until times in the engine's own process: the default store."""

from collections.abc import Sequence
from itertools import takewhile

from eviction_client.block_hash import BlockHash
from eviction_client.pace import in_pieces, pause
from eviction_client.recent import Recent
from eviction_client.stores.base import SHARED, ConversationId, pooled
from eviction_client.stores.retain_until import forgotten_below

MAX_BLOCKS = 1_000_000
"""Blocks remembered: about 200 MB."""


class MemoryStore:
    """Retain-until times of one process. Beyond ``max_blocks`` it forgets the blocks that were recorded longest ago."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._blocks: Recent[BlockHash, tuple[str, float]] = Recent(max_blocks)  # owner and time
        self._closed = False

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], until: float) -> None:
        """See :meth:`BlockStore.record`."""
        if self._closed:
            return
        known = self._blocks
        for piece in in_pieces(blocks):
            for block in piece:
                owner, before = known.get(block) or (None, 0.0)
                known.put(block, pooled(owner, before, conversation, until))

    def flush(self) -> bool:
        """See :meth:`BlockStore.flush`."""
        return True

    def shared(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, float]:
        """See :meth:`BlockStore.shared`."""
        found = ((block, self._blocks.get(block)) for block in blocks)
        return {block: entry[1] for block, entry in found if entry is not None and entry[0] == SHARED}

    def trim(self, now: float) -> None:
        """See :meth:`BlockStore.trim`. Stops in each part at the first block that is not to be forgotten."""
        threshold = forgotten_below(now)
        for part in self._blocks.parts():
            sunk = [block for block, _ in takewhile(lambda entry: entry[1][1] < threshold, part.items())]
            for block in sunk:
                del part[block]
            pause()

    def retain_until(self, blocks: Sequence[BlockHash]) -> list[float | None]:
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
