"""The interface of eviction policies: a policy orders the free blocks of one engine for eviction.

A policy is created for one run: ``EvictionPolicy(capacity, workload, settings)``. It starts without data and learns from all
requests, including the warm-up. Only a bound may use later requests.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from eviction_client.stores.base import BlockStore, EngineId
from lpc_apps.simulator.blocks import B
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.workload import Cost, Turn, Workload

Chunk = tuple[int, ...]
"""Content ids of blocks evicted together, in order of eviction."""


@dataclass(frozen=True)
class PolicySettings:
    """Settings of a run for its policies.

    Attributes:
        invert: invert every prediction (p to 1 - p), as an adversary.
        rule: rule of the plug-in: one of `eviction_client.policy.rules.RULES`, or `auto`: its guard chooses.
        cost: cost model of the run, for policies that use it.
        categories: whether callers name the log's categories, as with ``lpc_category`` in vLLM, so that the plug-in knows them.
    """

    invert: bool = False
    rule: str = "auto"
    cost: Cost = field(default_factory=Cost)
    categories: bool = False


class EvictionPolicy(ABC, Generic[B]):
    """The free blocks with content, in order of eviction. Times are seconds and never decrease.

    A policy must not read a turn's `next`, unless it is a bound.

    Attributes:
        name: name in the registry and in tables.
        title: name in words, for pictures and pages.
        rule: one line: the block to evict first.
        source: source of the rule.
        bound: whether the policy uses future requests.
        pools: whether the engines of a fleet can pool what they know of shared blocks.
        piece_type: creates a piece from segment, index of the first block and number of blocks. The policy stores its data per
            block as attributes of the piece.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    rule: ClassVar[str]
    source: ClassVar[str]
    bound: ClassVar[bool] = False
    pools: ClassVar[bool] = False
    piece_type: Callable[[Segment, int, int], B]

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        self.capacity = capacity
        self.workload = workload
        self.settings = settings

    def join(self, store: BlockStore[Segment], engine: EngineId) -> None:
        """Pool what is known of shared blocks with the other engines of a fleet, if the policy pools."""

    def arrive(self, turn: Turn, now: float) -> None:
        """Called when a request arrives. It may wait, or be too large to run."""

    def start(self, turn: Turn, now: float) -> None:
        """Called when a request has allocated its blocks, or its cached blocks are retained while it waits."""

    def wait(self, turn: Turn, now: float) -> None:
        """Called after :meth:`start` if the request waits and its cached blocks are retained."""

    def path(self, turn: Turn) -> Path:
        """Return a turn's segments."""
        return self.workload.paths.of(turn)

    def in_use(self, blocks: int) -> None:
        """Called when a request ends, before :meth:`finish`, with the number of blocks in use, its own included."""

    def finish(self, turn: Turn, now: float) -> None:
        """Called when a request ends, before its blocks are freed."""

    @abstractmethod
    def free(self, pieces: Sequence[B], turn: Turn, now: float) -> None:
        """Insert the blocks of an ended request. ``pieces[0]`` is the deepest: the engine frees a chain tail first."""

    def continued(self, piece: B) -> None:
        """Called after :meth:`free`: the freed blocks continue a piece that other requests use."""

    @abstractmethod
    def touch(self, piece: B, now: float) -> None:
        """Remove free blocks, because a request uses them again."""

    def first(self, now: float) -> B:
        """Return the free piece whose deepest blocks to evict next; for policies that do not override :meth:`evict`."""
        raise NotImplementedError

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict ``count`` free blocks by `Piece.give_up`."""
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
    """Evict up to ``count`` blocks of pieces, the first piece first. Keys are the ids of the pieces' first blocks."""
    out: list[Chunk] = []
    while pieces and count:
        piece = next(iter(pieces.values()))
        if piece.size <= count:
            del pieces[piece.block_id]
        chunk = piece.give_up(count)
        count -= len(chunk)
        out.append(chunk)
    return out


class KeyedPolicy(EvictionPolicy[B]):
    """A policy that evicts the smallest key, which is constant while blocks are free. A heap with stale entries."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, B]] = []
        self._entry: dict[int, int] = {}  # id of a free piece -> number of its entry
        self._entries = 0

    @abstractmethod
    def key(self, piece: B, turn: Turn, now: float) -> float:
        """Return the key of a piece that is freed now; equal keys are evicted in the order of freeing."""

    def free(self, pieces: Sequence[B], turn: Turn, now: float) -> None:
        """Insert pieces."""
        for piece in pieces:
            self._entries += 1
            self._entry[piece.block_id] = self._entries
            heapq.heappush(self._heap, (self.key(piece, turn, now), self._entries, piece))
        if len(self._heap) > 4 * len(self._entry) + 1024:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
            heapq.heapify(self._heap)

    def touch(self, piece: B, now: float) -> None:
        """Make the piece's entry stale."""
        del self._entry[piece.block_id]

    def first(self, now: float) -> B:
        """Return the piece with the smallest key."""
        while self._entry.get(self._heap[0][2].block_id) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]


REGISTRY: Final[dict[str, type[EvictionPolicy[Any]]]] = {}
P = TypeVar("P", bound=type[EvictionPolicy[Any]])


def register(policy: P) -> P:
    """Add a policy to the registry."""
    if policy.name in REGISTRY:
        raise ValueError(f"two policies are named {policy.name}")
    REGISTRY[policy.name] = policy
    return policy
