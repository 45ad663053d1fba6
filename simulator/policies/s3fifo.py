"""S3-FIFO: three queues instead of an order of uses."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from simulator.blocks import CachedBlock, Use
from simulator.policies.base import Policy, PolicySettings, register
from simulator.workload import Workload

SMALL: Final = 1
MAIN: Final = 2
PASSED_OVER: Final = 1.0
"""In ``stamp``: the block's turn in its queue came while it was in use."""


@register
class S3Fifo(Policy):
    """A small queue for new blocks, a main queue for proven ones, a ghost queue of names.

    A block that leaves the small queue goes to main if it was used more than once there (its counter starts anew), else out
    and into the ghost; one found in the ghost enters main directly. Main gives a used block another round for each use
    counted, up to three. The small queue gives up blocks while it holds a tenth or more of all that are queued (with every
    block free that is the paper's tenth of the cache).

    A place in a queue does not change by use, so blocks in use keep theirs. One whose turn comes while it is in use is set
    aside and is the next to be looked at once it is free.
    """

    name = "s3fifo"
    rule = "the oldest block of the small queue unless used twice there, or the oldest of main not used since its last round"
    source = "Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023"

    SMALL_SHARE: Final = 0.1
    MOVE_TO_MAIN: Final = 2
    MOST_USES: Final = 3

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[int, deque[CachedBlock]] = {SMALL: deque(), MAIN: deque()}
        self._free: set[int] = set()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._ghost_size = capacity - int(capacity * self.SMALL_SHARE)

    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Queue new blocks; those that had a place have it still."""
        passed_over = []
        for block in blocks:
            content = block.block_id
            self._free.add(content)
            if block.level == 0:
                block.level = MAIN if content in self._ghost else SMALL
                self._ghost.pop(content, None)
                self._queues[block.level].append(block)
            elif block.stamp == PASSED_OVER:
                passed_over.append(block)
        for block in reversed(passed_over):
            block.stamp = 0.0
            self._queues[block.level].appendleft(block)

    def touch(self, block: CachedBlock, now: float) -> None:
        """Count the use."""
        block.score = min(block.score + 1, self.MOST_USES)
        self._free.remove(block.block_id)

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Turn the queues until enough blocks have dropped out. Every step takes a block, sets one aside or counts down."""
        small, main = self._queues[SMALL], self._queues[MAIN]
        out: list[CachedBlock] = []
        while len(out) < count:
            from_small = bool(small) and (not main or len(small) >= int(self.SMALL_SHARE * (len(small) + len(main))))
            block = small.popleft() if from_small else main.popleft()
            if block.block_id not in self._free:
                block.stamp = PASSED_OVER
            elif from_small and block.score >= self.MOVE_TO_MAIN:
                block.level, block.score = MAIN, 0.0
                main.append(block)
            elif not from_small and block.score > 0:
                block.score -= 1
                main.append(block)
            else:
                self._free.remove(block.block_id)
                if from_small:
                    self._remember(block.block_id)
                out.append(block)
        return out

    def _remember(self, content: int) -> None:
        self._ghost[content] = None
        if len(self._ghost) > self._ghost_size:
            self._ghost.popitem(last=False)
