"""S3-FIFO: three queues instead of an order of uses."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload

SMALL: Final = 1
MAIN: Final = 2


class QueuedBlock(CachedBlock):
    """A block with its place.

    Attributes:
        queue: SMALL or MAIN; None before the first use has ended.
        uses: since it entered the queue, up to the most that count.
        passed_over: its turn in its queue came while it was in use.
    """

    __slots__ = ("passed_over", "queue", "uses")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.queue: int | None = None
        self.uses = 0
        self.passed_over = False


@register
class S3Fifo(Policy[QueuedBlock]):
    """A small queue for new blocks, a main queue for proven ones, a ghost queue of names.

    A block that leaves the small queue goes to main if it was used more than once there (its counter starts anew), else out
    and into the ghost; one found in the ghost enters main directly. Main gives a used block another round for each use
    counted, up to three. The small queue gives up blocks while it holds a tenth or more of all that are queued (with every
    block free that is the paper's tenth of the cache). Until the first eviction, what comes when small has its tenth enters
    main, as in the authors' libCacheSim: else the whole first fill would have to pass through small.

    A place in a queue does not change by use, so blocks in use keep theirs. One whose turn comes while it is in use is set
    aside and is the next to be looked at once it is free.
    """

    name = "s3fifo"
    rule = "the oldest block of the small queue unless used twice there, or the oldest of main not used since its last round"
    source = "Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023"
    block_type = QueuedBlock

    SMALL_SHARE: Final = 0.1
    MOVE_TO_MAIN: Final = 2
    MOST_USES: Final = 3

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[int, deque[QueuedBlock]] = {SMALL: deque(), MAIN: deque()}
        self._free: set[int] = set()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._small_size = int(capacity * self.SMALL_SHARE)
        self._filling = True

    def free(self, blocks: Sequence[QueuedBlock], turn: Turn, now: float) -> None:
        """Queue new blocks; those that had a place have it still."""
        passed_over = []
        for block in blocks:
            content = block.content
            self._free.add(content)
            if block.queue is None:
                overflows = self._filling and len(self._queues[SMALL]) >= self._small_size
                block.queue = MAIN if overflows or content in self._ghost else SMALL
                self._ghost.pop(content, None)
                self._queues[block.queue].append(block)
            elif block.passed_over:
                passed_over.append((block.queue, block))
        for queue, block in reversed(passed_over):
            block.passed_over = False
            self._queues[queue].appendleft(block)
        # Not as they are evicted: a name must not go for the sake of the room that was made for its own return.
        while len(self._ghost) > self.capacity - self._small_size:
            self._ghost.popitem(last=False)

    def touch(self, block: QueuedBlock, now: float) -> None:
        """Count the use."""
        block.uses = min(block.uses + 1, self.MOST_USES)
        self._free.remove(block.content)

    def evict(self, count: int, now: float) -> list[QueuedBlock]:
        """Turn the queues until enough blocks have dropped out."""
        small, main = self._queues[SMALL], self._queues[MAIN]
        out: list[QueuedBlock] = []
        self._filling = False
        while len(out) < count:
            if small and (not main or len(small) >= int(self.SMALL_SHARE * (len(small) + len(main)))):
                out += self._turn_small(small, main)
            else:
                out += self._turn_main(main)
        return out

    def _turn_small(self, small: deque[QueuedBlock], main: deque[QueuedBlock]) -> list[QueuedBlock]:
        """Return the first block that does not go to main, if there is one. Every step takes a block from the queue."""
        while small:
            block = small.popleft()
            if block.content not in self._free:
                block.passed_over = True
            elif block.uses >= self.MOVE_TO_MAIN:
                block.queue, block.uses = MAIN, 0
                main.append(block)
            else:
                self._free.remove(block.content)
                self._ghost[block.content] = None
                return [block]
        return []

    def _turn_main(self, main: deque[QueuedBlock]) -> list[QueuedBlock]:
        """Return the first block without a round left, if one is free. Every step takes a block or counts one down."""
        while main:
            block = main.popleft()
            if block.content not in self._free:
                block.passed_over = True
            elif block.uses > 0:
                block.uses -= 1
                main.append(block)
            else:
                self._free.remove(block.content)
                return [block]
        return []
