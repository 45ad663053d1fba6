"""What a policy is: it keeps the free blocks of one engine in its order of eviction.

A policy is made for one run: ``Policy(capacity, workload, settings)``. Every policy starts knowing nothing and learns from all
requests that have come, whether their hits are counted or not; unless it is a bound, never from what comes after.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from lpc.simulator.blocks import B
from lpc.simulator.segments import Path, Segment
from lpc.simulator.workload import Cost, Turn, Workload

Chunk = tuple[int, ...]
"""Content ids of blocks that were given up together, in the order in which they went."""


@dataclass(frozen=True)
class PolicySettings:
    """What a run can set for its policies.

    Attributes:
        invert: turn every prediction around (p to 1 - p): an adversary.
        cost: what requests cost in this run, for policies that weigh it.
    """

    invert: bool = False
    guard: bool = True
    cost: Cost = field(default_factory=Cost)


class Policy(ABC, Generic[B]):
    """The free blocks with content, in the order of their eviction. Times are seconds and never go back.

    A turn's `next` is not a policy's to look at, unless it is a bound.

    Attributes:
        name: in the registry and in every table.
        rule: one line: which block goes first.
        source: where the rule comes from.
        bound: it looks into the future.
        piece_type: makes pieces from segment, place of the first block and number of blocks: the policy's notes on blocks are
            its attributes.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    source: ClassVar[str]
    bound: ClassVar[bool] = False
    piece_type: Callable[[Segment, int, int], B]

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        self.capacity = capacity
        self.workload = workload
        self.settings = settings

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn that a request has come; it may wait, or be too large ever to run."""

    def start(self, turn: Turn, now: float) -> None:
        """Learn that a request that has arrived has its blocks: it has taken them, or they are kept while it waits."""

    def wait(self, turn: Turn, now: float) -> None:
        """Learn, after :meth:`start`, that a request waits and its blocks are kept."""

    def path(self, turn: Turn) -> Path:
        """Return a turn's segments."""
        return self.workload.paths.of(turn)

    def finish(self, turn: Turn, now: float) -> None:
        """Learn that a request ended, before its blocks are freed."""

    @abstractmethod
    def free(self, pieces: Sequence[B], turn: Turn, now: float) -> None:
        """Take blocks of a request that ended, ``pieces[0]`` the deepest: the engine frees a chain tail first."""

    @abstractmethod
    def touch(self, piece: B, now: float) -> None:
        """Give free blocks back: a request uses them again."""

    def regain(self, piece: B) -> None:
        """Learn that a request uses a piece that was given up and yet kept, for a waiting request. It is not free now."""

    def first(self, now: float) -> B:
        """Return the free piece whose deepest blocks go next; for policies that leave :meth:`evict` as it is."""
        raise NotImplementedError

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up ``count`` blocks (`Piece.give_up`), of those that are free."""
        out: list[Chunk] = []
        while count:
            piece = self.first(now)
            if piece.size <= count:
                self.touch(piece, now)
            chunk = piece.give_up(count)
            count -= len(chunk)
            out.append(chunk)
        return out


def give_up_first(pieces: dict[int, B], count: int) -> list[Chunk]:
    """Give up ``count`` blocks of pieces by the id of their first block, the first piece first; all if there are no more."""
    out: list[Chunk] = []
    while pieces and count:
        piece = next(iter(pieces.values()))
        if piece.size <= count:
            del pieces[piece.block_id]
        chunk = piece.give_up(count)
        count -= len(chunk)
        out.append(chunk)
    return out


class KeyedPolicy(Policy[B]):
    """A policy that evicts the smallest key, fixed while blocks are free. A heap whose stale entries are passed over."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, B]] = []
        self._entry: dict[int, int] = {}  # id of a free piece -> number of its entry
        self._entries = 0

    @abstractmethod
    def key(self, piece: B, turn: Turn, now: float) -> float:
        """Return the key of a piece that is freed now; equal keys go in the order of freeing."""

    def free(self, pieces: Sequence[B], turn: Turn, now: float) -> None:
        """Push pieces."""
        for piece in pieces:
            self.push(piece, self.key(piece, turn, now))
        if len(self._heap) > 4 * len(self._entry) + 1024:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
            heapq.heapify(self._heap)

    def push(self, piece: B, key: float) -> None:
        """Enter a piece."""
        self._entries += 1
        self._entry[piece.block_id] = self._entries
        heapq.heappush(self._heap, (key, self._entries, piece))

    def touch(self, piece: B, now: float) -> None:
        """Forget the piece's entry; it stays in the heap as stale."""
        del self._entry[piece.block_id]

    def first(self, now: float) -> B:
        """Return the piece at the top."""
        while self._entry.get(self._heap[0][2].block_id) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]


REGISTRY: Final[dict[str, type[Policy[Any]]]] = {}
P = TypeVar("P", bound=type[Policy[Any]])


def register(policy: P) -> P:
    """Enter a policy under its name."""
    if policy.name in REGISTRY:
        raise ValueError(f"two policies are named {policy.name}")
    REGISTRY[policy.name] = policy
    return policy
