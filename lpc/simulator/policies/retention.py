"""Policies that a service level or an operator sets: T-LRU, and priorities that expire."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import Piece
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload


class NeededPiece(Piece):
    """Blocks with the tokens, from the prefix's start, that the neediest of its conversations wants cached."""

    __slots__ = ("need",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.need = 0.0


@register
class TailLru(KeyedPolicy[NeededPiece]):
    """T-LRU: first what a conversation can lose without its next turn's time to first token passing a threshold, then LRU.

    With L tokens of history (reply included), Q tokens expected of the next prompt and room to compute X tokens within the
    threshold, the conversation needs its first max(0, L + Q - X) tokens cached; the blocks from there on are free to go. L is
    the history as it was, not what is left of it, or each eviction would free the next. Of a block that several requests used
    the largest need counts. Q is the mean growth of prompts seen so far, and a need is reckoned when a block is freed.
    """

    name = "tlru"
    rule = "the least recently used block not needed to hold the next turn's TTFT, then the least recently used"
    source = "Zhang et al., Tail-optimized caching for LLM inference, arXiv 2510.15152 (NeurIPS 2025)"
    piece_type = NeededPiece

    THRESHOLD_S: Final = 0.2  # seconds to the first token, the paper's service level

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._computable = self.THRESHOLD_S * settings.cost.prefill_tokens_s  # tokens
        self._history: dict[str, int] = {}  # conversation -> tokens after its last turn
        self._growth = 0
        self._turns = 0
        self._need = 0.0

    def finish(self, turn: Turn, now: float) -> None:
        """Reckon what the conversation's next turn needs."""
        before = self._history.get(turn.conversation)
        if before is not None:
            self._growth += max(0, turn.input_tokens - before)
            self._turns += 1
        history = self._history[turn.conversation] = turn.input_tokens + turn.output_tokens
        expected = self._growth / self._turns if self._turns else 0.0
        self._need = max(0.0, history + expected - self._computable)

    def free(self, pieces: Sequence[NeededPiece], turn: Turn, now: float) -> None:
        """Cut a piece where the need ends."""
        tokens = self.workload.block_tokens
        cut: list[NeededPiece] = []
        for piece in pieces:
            piece.need = max(piece.need, self._need)
            needed = math.ceil(piece.need / tokens) - piece.depth
            if 0 < needed < piece.size:
                cut.append(piece.split(needed))
            cut.append(piece)
        super().free(cut, turn, now)

    def key(self, piece: NeededPiece, turn: Turn, now: float) -> float:
        """Return 0 for blocks beyond every need, else 1."""
        return 0.0 if piece.depth * self.workload.block_tokens >= piece.need else 1.0


class PrioritizedPiece(Piece):
    """Blocks with their priority, 0 to 100."""

    __slots__ = ("priority",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.priority = 0


@register
class Ttl(Policy[PrioritizedPiece]):
    """Priorities 0 to 100 with a duration, as TensorRT-LLM keeps blocks: lowest priority first, LRU among equals.

    A block freed with another priority than the default falls to it when its duration is over, as most recently used. The
    latest request's priority replaces that of the one before.

    TensorRT-LLM leaves the priorities to the caller. Here: a first turn has the default, and every further turn, which shows
    that the user stays, adds `STEP`; it holds for `DURATION_S`, after which the user is taken to have gone.
    """

    name = "ttl"
    rule = "the lowest priority (35, and 15 more for each further turn, for 300 s), the least recently used of equals"
    source = "TensorRT-LLM, KvCacheRetentionConfig and LRUEvictionPolicy"
    piece_type = PrioritizedPiece

    DEFAULT: Final = 35
    STEP: Final = 15
    HIGHEST: Final = 100
    DURATION_S: Final = 300.0

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        levels = [*range(self.DEFAULT, self.HIGHEST, self.STEP), self.HIGHEST]
        self._by_priority: dict[int, OrderedDict[int, PrioritizedPiece]] = {level: OrderedDict() for level in levels}
        self._expiring: list[tuple[float, int, PrioritizedPiece]] = []
        self._entry: dict[int, int] = {}  # id of a free piece that expires -> number of its entry
        self._entries = 0

    def priority(self, turn: Turn) -> int:
        """Return the priority of a request's blocks."""
        return min(self.DEFAULT + self.STEP * (turn.turn - 1), self.HIGHEST)

    def free(self, pieces: Sequence[PrioritizedPiece], turn: Turn, now: float) -> None:
        """Enter blocks under the request's priority."""
        self._expire(now)
        priority = self.priority(turn)
        for piece in pieces:
            piece.priority = priority
            self._by_priority[priority][piece.block_id] = piece
            if priority != self.DEFAULT:
                self._entries += 1
                self._entry[piece.block_id] = self._entries
                heapq.heappush(self._expiring, (now + self.DURATION_S, self._entries, piece))

    def touch(self, piece: PrioritizedPiece, now: float) -> None:
        """Take the piece out of its queue; its duration is over with that."""
        del self._by_priority[piece.priority][piece.block_id]
        self._entry.pop(piece.block_id, None)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up the lowest priorities."""
        self._expire(now)
        out: list[Chunk] = []
        for queue in self._by_priority.values():
            while queue and count:
                piece = next(iter(queue.values()))
                if piece.size <= count:
                    del queue[piece.block_id]
                    self._entry.pop(piece.block_id, None)
                chunk = piece.give_up(count)
                count -= len(chunk)
                out.append(chunk)
        return out

    def _expire(self, now: float) -> None:
        default = self._by_priority[self.DEFAULT]
        while self._expiring and self._expiring[0][0] <= now:
            _, number, piece = heapq.heappop(self._expiring)
            if self._entry.get(piece.block_id) == number:
                del self._entry[piece.block_id]
                del self._by_priority[piece.priority][piece.block_id]
                piece.priority = self.DEFAULT
                default[piece.block_id] = piece
