"""A second tier of the cache (CPU memory): evicted blocks go there, and a prompt's next blocks are loaded from it."""

from collections import OrderedDict
from collections.abc import Sequence

from lpc.simulator.blocks import CachedBlock


class SecondTier:
    """Content ids of ``capacity`` blocks, least recently used out first, as vLLM's CPU offload keeps them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._contents: OrderedDict[int, None] = OrderedDict()

    def store(self, blocks: Sequence[CachedBlock]) -> None:
        """Take evicted blocks."""
        for block in blocks:
            self._contents[block.content] = None
            self._contents.move_to_end(block.content)
        while len(self._contents) > self.capacity:
            self._contents.popitem(last=False)

    def load(self, contents: Sequence[int], start: int) -> int:
        """Return how many blocks of a prompt from place ``start`` on are here without a gap. They stay here, as used now."""
        count = 0
        for content in contents[start:]:
            if content not in self._contents:
                break
            self._contents.move_to_end(content)
            count += 1
        return count
