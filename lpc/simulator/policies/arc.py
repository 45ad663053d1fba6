"""ARC: the share of recency against frequency, learnt from what was evicted too early."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload

ONCE: Final = 1
AGAIN: Final = 2


class ArcBlock(CachedBlock):
    """A block with its list: ONCE for T1, AGAIN for T2, None before the first use has ended."""

    __slots__ = ("used",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.used: int | None = None


@register
class Arc(Policy[ArcBlock]):
    """Adaptive replacement cache: T1 (used once) and T2 (used again) in order of recency, their ghosts B1 and B2.

    A block found in B1 raises the target size p of T1, one found in B2 lowers it, by the ratio of the ghosts' sizes and at
    least by one. T1 gives up a block while it is larger than p, else T2 does.

    Two deviations, since an engine asks for room before it says for what, and holds blocks while requests run: p moves when a
    block is freed for the first time, that is after the eviction which made room for it; and T1 and T2 are the free blocks.
    """

    name = "arc"
    rule = "the least recently used block of those used once, if more than p are, else of those used again"
    source = "Megiddo, Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003"
    block_type = ArcBlock

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.p = 0.0
        self._cached: dict[int, OrderedDict[int, ArcBlock]] = {ONCE: OrderedDict(), AGAIN: OrderedDict()}
        self._ghosts: dict[int, OrderedDict[int, None]] = {ONCE: OrderedDict(), AGAIN: OrderedDict()}

    def free(self, blocks: Sequence[ArcBlock], turn: Turn, now: float) -> None:
        """Enter blocks as most recently used; learn from the ghosts of new ones."""
        for block in blocks:
            known = block.used is not None or self._learn(block.content)
            block.used = AGAIN if known else ONCE
            self._cached[block.used][block.content] = block
        once, again = self._ghosts[ONCE], self._ghosts[AGAIN]
        while once and len(self._cached[ONCE]) + len(once) > self.capacity:
            once.popitem(last=False)
        while again and len(self._cached[ONCE]) + len(self._cached[AGAIN]) + len(once) + len(again) > 2 * self.capacity:
            again.popitem(last=False)

    def touch(self, block: ArcBlock, now: float) -> None:
        """Take the block out of its list."""
        assert block.used is not None
        del self._cached[block.used][block.content]

    def evict(self, count: int, now: float) -> list[ArcBlock]:
        """Give up blocks, and remember their names."""
        once, again = self._cached[ONCE], self._cached[AGAIN]
        out: list[ArcBlock] = []
        for _ in range(count):
            used = ONCE if once and (len(once) > self.p or not again) else AGAIN
            content, block = self._cached[used].popitem(last=False)
            self._ghosts[used][content] = None
            out.append(block)
        return out

    def _learn(self, content: int) -> bool:
        """Move p if the block is a ghost; return whether it was."""
        once, again = self._ghosts[ONCE], self._ghosts[AGAIN]
        if content in once:
            self.p = min(float(self.capacity), self.p + max(1.0, len(again) / len(once)))
            del once[content]
            return True
        if content in again:
            self.p = max(0.0, self.p - max(1.0, len(once) / len(again)))
            del again[content]
            return True
        return False
