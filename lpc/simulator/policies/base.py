"""Policies: one small class each, which keeps free blocks in its order of eviction.

A policy is made for one run: ``Policy(capacity, workload, settings)``. It may learn from what came before
``workload.count_from``, never from what comes after, unless it is a bound.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, TypeVar

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import CachedBlock, Use
from lpc.simulator.knowledge import knowledge_of
from lpc.simulator.workload import Workload


@dataclass(frozen=True)
class PolicySettings:
    """What a run can set for its policies.

    Attributes:
        tau: seconds by which a block's log-odds sink by one (`eviction_client.score`); default: the mean gap between turns
            learnt before hits are counted.
        invert: turn every prediction around (p to 1 - p): an adversary against the guard.
    """

    tau: float | None = None
    invert: bool = False


class Policy(ABC):
    """An eviction order (`lpc.simulator.blocks.EvictionOrder`).

    Attributes:
        name: in the registry and in every table.
        rule: one line: which block goes first.
        source: where the rule comes from.
        bound: it looks into the future.
        uses_predictor: it needs the sidecar's model, whose memory may come out of the cache.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    source: ClassVar[str]
    bound: ClassVar[bool] = False
    uses_predictor: ClassVar[bool] = False

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        self.capacity = capacity
        self.workload = workload
        self.settings = settings

    def finish(self, contents: Sequence[int], use: Use, now: float) -> None:  # noqa: B027 (most policies need it not)
        """Learn that a request ended, before its blocks are freed."""

    @abstractmethod
    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Take blocks of a request that ended, deepest first."""

    @abstractmethod
    def touch(self, block: CachedBlock, now: float) -> None:
        """Give a free block back: a request uses it again."""

    @abstractmethod
    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Give up blocks."""


REGISTRY: Final[dict[str, type[Policy]]] = {}
P = TypeVar("P", bound=type[Policy])


def register(policy: P) -> P:
    """Enter a policy under its name."""
    if policy.name in REGISTRY:
        raise ValueError(f"two policies are named {policy.name}")
    REGISTRY[policy.name] = policy
    return policy


class ScoredPolicy(Policy):
    """A policy whose order is that of static scores: kept by the queue that runs inside engines."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.tau = settings.tau or knowledge_of(workload).mean_gap
        self.queue: FreeBlockQueue[CachedBlock] = FreeBlockQueue(CachedBlock(-1, 0), CachedBlock(-1, 0))

    @abstractmethod
    def score(self, use: Use, now: float) -> float:
        """Return the score of a request's blocks as it ends."""

    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Score by the law of `eviction_client.stores`: the owner's latest score, the maximum over conversations."""
        score = self.score(use, now)
        conversation = use.conversation
        for block in blocks:
            if block.owner is None or block.owner == conversation:
                block.owner, block.score = conversation, score
            else:
                block.owner = SHARED
                block.score = max(block.score, score)
        for value, run in groupby(blocks, key=_score):
            self.queue.insert(tuple(run), value)

    def touch(self, block: CachedBlock, now: float) -> None:
        """Take the block out of the queue."""
        self.queue.remove(block)

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Give up the lowest scores."""
        return self.queue.popleft_n(count)


SHARED: Final = ""
"""In place of an owner: more than one conversation has used the block. No conversation has this name."""


def _score(block: CachedBlock) -> float:
    return block.score


class KeyedPolicy(Policy):
    """A policy that evicts the smallest key, fixed while a block is free. A heap whose stale entries are passed over."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, CachedBlock]] = []
        self._entry: dict[int, int] = {}  # content of a free block -> number of its entry
        self._entries = 0

    @abstractmethod
    def key(self, block: CachedBlock, use: Use, now: float) -> float:
        """Return the key of a block that is freed now; equal keys go in the order of freeing."""

    def evicted(self, block: CachedBlock, key: float) -> None:
        """Learn that a block was evicted. For rules with an inflation or a ghost list."""

    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Push blocks."""
        for block in blocks:
            self._entries += 1
            self._entry[block.block_id] = self._entries
            heapq.heappush(self._heap, (self.key(block, use, now), self._entries, block))
        if len(self._heap) > 4 * len(self._entry) + 1024:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
            heapq.heapify(self._heap)

    def rekey(self, key: Callable[[CachedBlock], float]) -> None:
        """Give every free block a new key."""
        live = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
        self._heap = [(key(block), number, block) for _, number, block in live]
        heapq.heapify(self._heap)

    def touch(self, block: CachedBlock, now: float) -> None:
        """Forget the block's entry; it stays in the heap as stale."""
        del self._entry[block.block_id]

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Pop blocks."""
        out: list[CachedBlock] = []
        while len(out) < count:
            key, number, block = heapq.heappop(self._heap)
            if self._entry.get(block.block_id) == number:
                del self._entry[block.block_id]
                self.evicted(block, key)
                out.append(block)
        return out
