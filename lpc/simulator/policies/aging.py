"""Policies whose blocks age: kept in classes whose members age alike.

Each class is one queue of the client's, ordered by time: at an eviction only the ends of W queues are compared, O(W). Where the
value of a block first rises and then falls with its age, its least is at one of the two ends, so both are looked at.
"""

import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Final

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings
from lpc.simulator.workload import Turn, Workload

ClassKey = tuple[int, ...]

CLAIMS: Final = 32
"""Conversations that may claim a block."""


class AgingBlock(CachedBlock):
    """A block with the turns that claim it.

    Attributes:
        claims: by claimant, class and arrival of its latest turn that held the block. At most `CLAIMS`, the most valuable.
        class_key, arrival: of the most valuable claim when the block was last freed; seconds.
    """

    __slots__ = ("arrival", "claims", "class_key")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.claims: dict[Hashable, tuple[ClassKey, float]] = {}
        self.class_key: ClassKey = ()
        self.arrival = 0.0


class AgingClasses(Policy[AgingBlock]):
    """Free blocks in classes; the class decides how a block's value falls with age."""

    block_type = AgingBlock

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[ClassKey, FreeBlockQueue[AgingBlock]] = {}

    @abstractmethod
    def place(self, turn: Turn, now: float) -> ClassKey:
        """Return the class of a request's blocks as it ends."""

    @abstractmethod
    def value(self, key: ClassKey, age: float) -> float:
        """Return what a block of a class is worth ``age`` seconds after its request arrived. The least goes first."""

    def claimants(self, turn: Turn) -> tuple[Hashable, Hashable]:
        """Return whose claim to a turn's blocks ends with it, and who claims them from now on."""
        return turn.conversation, turn.conversation

    def free(self, blocks: Sequence[AgingBlock], turn: Turn, now: float) -> None:
        """Put each block into the class of its most valuable claim: the request's, or another conversation's latest."""
        key = self.place(turn, now)
        mine: list[AgingBlock] = []
        for block in blocks:
            claims = block.claims
            before, after = self.claimants(turn)
            claims.pop(before, None)
            claims[after] = key, turn.arrival  # last: of equal claims the latest counts
            if len(claims) == 1:
                block.class_key, block.arrival = key, turn.arrival
                mine.append(block)
                continue
            ranked = sorted(claims, key=lambda name: self.value(claims[name][0], now - claims[name][1]))
            if len(ranked) > CLAIMS:
                del claims[ranked[0]]
            block.class_key, block.arrival = claims[ranked[-1]]
            self._insert(block.class_key, [block], block.arrival)
        if mine:
            self._insert(key, mine, turn.arrival)

    def touch(self, block: AgingBlock, now: float) -> None:
        """Take the block out of its class."""
        self._queues[block.class_key].remove(block)

    def evict(self, count: int, now: float) -> list[AgingBlock]:
        """Compare the ends of all classes; give up the chain that is worth least, deepest block first."""
        out: list[AgingBlock] = []
        while len(out) < count:
            key, newest = self._least(now)
            queue = self._queues[key]
            chain = self._chain(queue, newest, count - len(out))
            for block in chain:
                queue.remove(block)
            if not len(queue):
                del self._queues[key]
            out += chain
        return out

    def _least(self, now: float) -> tuple[ClassKey, bool]:
        best, least, newest = None, math.inf, False
        for key, queue in self._queues.items():
            oldest, youngest = queue.head.next_free_block, queue.tail.prev_free_block
            assert oldest is not None
            assert youngest is not None
            value = self.value(key, now - oldest.arrival)
            if value < least or best is None:
                best, least, newest = key, value, False
            if youngest.arrival != oldest.arrival:
                value = self.value(key, now - youngest.arrival)
                if value < least:
                    best, least, newest = key, value, True
        assert best is not None
        return best, newest

    @staticmethod
    def _chain(queue: FreeBlockQueue[AgingBlock], newest: bool, count: int) -> list[AgingBlock]:
        """Return up to ``count`` blocks of one arrival from an end, deepest first (a chain's deepest was inserted first)."""
        if newest:
            last = queue.tail.prev_free_block
            assert last is not None
            first = last
            while first.prev_free_block is not queue.head and first.prev_free_block.arrival == last.arrival:  # type: ignore[union-attr]
                first = first.prev_free_block  # type: ignore[assignment]
        else:
            first = queue.head.next_free_block  # type: ignore[assignment]
        chain: list[AgingBlock] = []
        block = first
        while block is not None and block is not queue.tail and len(chain) < count and block.arrival == first.arrival:
            chain.append(block)
            block = block.next_free_block  # type: ignore[assignment]
        return chain

    def _insert(self, key: ClassKey, blocks: Sequence[AgingBlock], arrival: float) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = FreeBlockQueue(AgingBlock(-1, 0), AgingBlock(-1, 0))
        # Within a class the score is the time, seconds, which the queue keeps in eighths.
        queue.insert(blocks, arrival)
