"""S3-FIFO: three queues instead of an order of uses."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from lpc.simulator.blocks import Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload

SMALL: Final = 1
MAIN: Final = 2


class QueuedPiece(Piece):
    """Blocks with their place.

    Attributes:
        queue: SMALL or MAIN; None before the first use has ended.
        uses: since it entered the queue, up to the most that count.
        passed_over: its turn in its queue came while it was in use.
    """

    queue: int | None = None
    uses = 0
    passed_over = False


@register
class S3Fifo(Policy[QueuedPiece]):
    """A small queue for new blocks, a main queue for proven ones, a ghost queue of names.

    A block that leaves the small queue goes to main if it was used more than once there (its counter starts again), else out
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
    piece_type = QueuedPiece

    SMALL_SHARE: Final = 0.1
    MOVE_TO_MAIN: Final = 2
    MOST_USES: Final = 3

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[int, deque[QueuedPiece]] = {SMALL: deque(), MAIN: deque()}
        self._sizes = {SMALL: 0, MAIN: 0}
        """Blocks of the queues."""
        self._free: set[int] = set()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._small_size = int(capacity * self.SMALL_SHARE)
        self._filling = True

    def free(self, pieces: Sequence[QueuedPiece], turn: Turn, now: float) -> None:
        """Queue new blocks; those that had a place have it still."""
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
        # Not as they are evicted: a name must not go for the sake of the room that was made for its own return.
        while len(self._ghost) > self.capacity - self._small_size:
            self._ghost.popitem(last=False)

    def touch(self, piece: QueuedPiece, now: float) -> None:
        """Count the use."""
        piece.uses = min(piece.uses + 1, self.MOST_USES)
        self._free.remove(piece.block_id)

    def regain(self, piece: QueuedPiece) -> None:
        """Forget the place: it has left its queue."""
        piece.queue, piece.uses = None, 0

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Turn the queues until enough blocks have dropped out."""
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
        """Queue new blocks, from the deepest; some in the small queue and some in main if a limit or the ghosts divide them."""
        sizes, ghost = self._sizes, self._ghost
        small = sizes[SMALL]
        places: list[int] = []
        for content in reversed(piece.contents):
            overflows = self._filling and small >= self._small_size
            place = MAIN if overflows or content in ghost else SMALL
            small += place == SMALL
            ghost.pop(content, None)
            places.append(place)
        for place, alike in groupby(places):
            size = piece.size - sum(1 for _ in alike)
            deepest = piece.split(size) if size else piece
            deepest.queue = place
            self._queues[place].append(deepest)
            sizes[place] += deepest.size
            self._free.add(deepest.block_id)

    def _spare(self, count: int) -> int:
        """Return how many blocks, at most ``count``, the small queue gives up before main has its turn."""
        small, main = self._sizes[SMALL], self._sizes[MAIN]
        spare = 1
        while spare < min(count, small) and (not main or small - spare >= int(self.SMALL_SHARE * (small - spare + main))):
            spare += 1
        return spare

    def _turn(self, number: int, most: int) -> Chunk:
        """Return up to ``most`` blocks of the first piece that has to go, if there is one.

        A piece of the small queue used often goes to main, a used one of main gets another round.
        """
        queue, sizes = self._queues[number], self._sizes
        first = queue[0]
        while queue:
            piece = queue[0]
            if number == SMALL and piece is not first:
                most = 1  # sizes have changed, so the queues are compared after each block
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
