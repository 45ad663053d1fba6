"""S3-FIFO: three FIFO queues instead of an order by last use."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc_apps.simulator.workload import Turn, Workload

SMALL: Final = 1
MAIN: Final = 2


class QueuedPiece(Piece):
    """Blocks with their queue.

    Attributes:
        queue: SMALL or MAIN; None before the end of the first use.
        uses: uses since it entered the queue, at most MOST_USES.
        passed_over: it reached the head of its queue while it was in use.
    """

    queue: int | None = None
    uses = 0
    passed_over = False


@register
class S3Fifo(Policy[QueuedPiece]):
    """A small queue for new blocks, a main queue for reused ones, and a ghost queue of evicted ids.

    A block at the head of the small queue moves to main if it was used more than once there (its counter is reset), else it is
    evicted and its id enters the ghost queue. A new block whose id is in the ghost queue enters main. Main reinserts a used
    block once per counted use, up to three. The small queue evicts while it has at least a tenth of all queued blocks; with all
    blocks free this is the paper's tenth of the cache. Until the first eviction, new blocks enter main once the small queue has
    its tenth, as in the authors' libCacheSim; otherwise the whole first fill would pass through the small queue.

    Use does not change a block's position, so blocks in use stay queued. A block that reaches the head while it is in use
    leaves the queue, and returns to the head when it is free.
    """

    name = "s3fifo"
    rule = "the oldest block of the small queue unless used twice there, or the oldest of main not used since its last round"
    source = "Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023"
    piece_type = QueuedPiece

    SMALL_SHARE: Final = 0.1
    MOVE_TO_MAIN: Final = 2
    MOST_USES: Final = 3

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[int, deque[QueuedPiece]] = {SMALL: deque(), MAIN: deque()}
        self._sizes = {SMALL: 0, MAIN: 0}
        """Sizes of the queues in blocks."""
        self._free: set[int] = set()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._small_size = int(capacity * self.SMALL_SHARE)
        self._filling = True

    def free(self, pieces: Sequence[QueuedPiece], turn: Turn, now: float) -> None:
        """Queue new blocks; other blocks retain their position."""
        passed_over: list[tuple[int, QueuedPiece]] = []
        for piece in pieces:
            if piece.queue is None:
                self._enter(piece)
                continue
            self._free.add(piece.block_id)
            if piece.passed_over:
                passed_over.append((piece.queue, piece))
        for queue, piece in reversed(passed_over):
            piece.passed_over = False
            self._queues[queue].appendleft(piece)
            self._sizes[queue] += piece.size
        # Not during eviction: an eviction for a returning block must not drop that block's own id.
        while len(self._ghost) > self.capacity - self._small_size:
            self._ghost.popitem(last=False)

    def touch(self, piece: QueuedPiece, now: float) -> None:
        """Count the use."""
        piece.uses = min(piece.uses + 1, self.MOST_USES)
        self._free.remove(piece.block_id)

    def regain(self, piece: QueuedPiece) -> None:
        """Reset the queue, because the piece has left it."""
        piece.queue, piece.uses = None, 0

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Advance the queues until enough blocks are evicted."""
        sizes = self._sizes
        out: list[Chunk] = []
        self._filling = False
        while count:
            if sizes[SMALL] and (not sizes[MAIN] or sizes[SMALL] >= int(self.SMALL_SHARE * (sizes[SMALL] + sizes[MAIN]))):
                chunk = self._turn(SMALL, self._spare(count))
                self._ghost.update(dict.fromkeys(chunk))
            else:
                chunk = self._turn(MAIN, 1 if sizes[SMALL] else count)
            count -= len(chunk)
            if chunk:
                out.append(chunk)
        return out

    def _enter(self, piece: QueuedPiece) -> None:
        """Queue new blocks, the deepest first; a limit or the ghosts may divide them between small and main."""
        sizes, ghost = self._sizes, self._ghost
        small = sizes[SMALL]
        queues: list[int] = []
        for content in reversed(piece.contents):
            overflows = self._filling and small >= self._small_size
            queue = MAIN if overflows or content in ghost else SMALL
            small += queue == SMALL
            ghost.pop(content, None)
            queues.append(queue)
        for queue, alike in groupby(queues):
            size = piece.size - sum(1 for _ in alike)
            deepest = piece.split(size) if size else piece
            deepest.queue = queue
            self._queues[queue].append(deepest)
            sizes[queue] += deepest.size
            self._free.add(deepest.block_id)

    def _spare(self, count: int) -> int:
        """Return how many blocks, at most ``count``, the small queue evicts before main."""
        small, main = self._sizes[SMALL], self._sizes[MAIN]
        spare = 1
        while spare < min(count, small) and (not main or small - spare >= int(self.SMALL_SHARE * (small - spare + main))):
            spare += 1
        return spare

    def _turn(self, number: int, most: int) -> Chunk:
        """Evict up to ``most`` blocks of the first piece without enough uses, if there is one.

        Used pieces before it move to the end of main.
        """
        queue, sizes = self._queues[number], self._sizes
        first = queue[0]
        while queue:
            piece = queue[0]
            if number == SMALL and piece is not first:
                most = 1  # sizes have changed, so the caller compares the queues after each block
            if piece.block_id not in self._free:
                queue.popleft()
                sizes[number] -= piece.size
                piece.passed_over = True
            elif piece.uses >= (self.MOVE_TO_MAIN if number == SMALL else 1):
                queue.popleft()
                sizes[number] -= piece.size
                piece.uses = 0 if number == SMALL else piece.uses - 1
                piece.queue = MAIN
                self._queues[MAIN].append(piece)
                sizes[MAIN] += piece.size
            else:
                if piece.size <= most:
                    queue.popleft()
                    self._free.remove(piece.block_id)
                chunk = piece.give_up(most)
                sizes[number] -= len(chunk)
                return chunk
        return ()
