"""In which order a tier gives up its blocks: least recently used as stock does, or with credit at the tier's own lifetime.

An order knows what ended (`note`) whether the tier holds the blocks or not: a block comes into a tier when a nearer one gives
it up, minutes after the request that used it, and has the key of that request then.
"""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from eviction_client.background import AtOnce
from eviction_client.credit import Lifetime
from eviction_client.credit_queue import CreditQueue
from eviction_client.queue import Block
from eviction_client.score import Keys
from eviction_client.scorer import Scorer
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import pooled
from lpc.simulator.sidecar import EPOCH_S, Sidecar
from lpc.simulator.tiers.spec import TierPolicy
from lpc.simulator.turn_end import ended
from lpc.simulator.workload import Turn, Workload

CONTINUES: Final = 1e9
"""Seconds for which an oracle keeps what goes on: longer than any trace."""


class Order(ABC):
    """The blocks of one tier, by content id. Times are seconds of the workload.

    Attributes:
        lifetime: seconds that blocks of average conversations live in the caches up to here after their last use, measured.
    """

    lifetime: Lifetime

    @property
    def stay(self) -> float:
        """Seconds that a block stays which comes in now and is not used, at most."""
        return math.inf

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn that a request has come."""
        del turn, now

    def note(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Learn that a request has ended, which used these blocks."""
        del turn, contents, now

    @abstractmethod
    def enter(self, contents: Iterable[int], now: float, until: float | None = None) -> None:
        """Take blocks in that are not here. ``until``: when a prefetched one is not worth its room any more."""

    @abstractmethod
    def touch(self, contents: Iterable[int], now: float) -> None:
        """Learn that blocks that are here were loaded, or stored again."""

    @abstractmethod
    def leave(self, contents: Iterable[int]) -> None:
        """Let go of blocks that are here."""

    @abstractmethod
    def evict(self, count: int, now: float) -> list[int]:
        """Give up blocks."""


class LeastRecentlyUsed(Order):
    """As vLLM's CPU tier and LMCache do: a block is used when it comes in and when it is loaded."""

    def __init__(self, capacity: int) -> None:
        self.lifetime = Lifetime(capacity)
        self._here = Lifetime(capacity)
        self._contents: OrderedDict[int, float] = OrderedDict()
        self._used: dict[int, float] = {}

    @property
    def stay(self) -> float:
        """As long as others have stayed."""
        return self._here.seconds

    def note(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Remember when the blocks were used; their order stays what it is until they are stored or loaded."""
        del turn
        self._used.update(dict.fromkeys(contents, now))

    def enter(self, contents: Iterable[int], now: float, until: float | None = None) -> None:
        """Enter as used now."""
        del until
        for content in contents:
            self._contents[content] = now

    def touch(self, contents: Iterable[int], now: float) -> None:
        """Move to the end."""
        for content in contents:
            self._contents[content] = now
            self._contents.move_to_end(content)

    def leave(self, contents: Iterable[int]) -> None:
        """Let go."""
        for content in contents:
            del self._contents[content]

    def evict(self, count: int, now: float) -> list[int]:
        """Give up those used longest ago."""
        gone = [self._contents.popitem(last=False) for _ in range(count)]
        self._here.evicted(count, sum(came for _, came in gone) / count, now)
        self.lifetime.evicted(count, sum(self._used.get(content, now) for content, _ in gone) / count, now)
        return [content for content, _ in gone]


class _TierBlock(Block):
    """A block as a tier knows it, whether it holds it or not.

    Attributes:
        owner, key: by `eviction_client.stores.base.pooled`.
        came: when it came in or was loaded last, which is what least recent use goes by here.
    """

    __slots__ = ("came", "key", "owner")

    def __init__(self, content: int) -> None:
        super().__init__(content)
        self.owner: str | None = None
        self.key = 0.0
        self.came = 0.0

    @property
    def keys(self) -> Keys:
        """By least recent use, and with credit."""
        return Keys(self.came, self.key)


class ByKey(Order):
    """By the keys of the requests that used the blocks last, in the queue that runs inside engines.

    While the keys are not in force the order is `LeastRecentlyUsed`'s: by when a block came in or was loaded, not by its last
    use. That matters where the cache before has credit: what it kept longest was used longest ago, and would go first here.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self.lifetime = lifetime
        self._now = EPOCH_S
        self._known: dict[int, _TierBlock] = {}
        self.queue: CreditQueue[_TierBlock] = CreditQueue(_TierBlock(-1), _TierBlock(-1), lifetime=lifetime, clock=self._clock)

    @property
    def stay(self) -> float:
        """Until its key is the least, while keys are in force."""
        return math.inf if self.queue.trusting else self.lifetime.seconds

    @abstractmethod
    def key(self, turn: Turn, contents: Sequence[int]) -> float:
        """Return the key of a request that ends now, seconds since the epoch."""

    def note(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Key the blocks. Copies that are here stay where they lie: the cache has these blocks, too, and gives them up later.

        Sorted anew as soon as the request ends, they hold room for nothing: on the Mooncake trace the tier's hits fell by an
        eighth below those of least recent use.
        """
        self._now = EPOCH_S + now
        key = self.key(turn, contents)
        for content in contents:
            block = self._block(content)
            block.owner, block.key = pooled(block.owner, block.key, turn.conversation, key)

    def enter(self, contents: Iterable[int], now: float, until: float | None = None) -> None:
        """Enter under the keys known; a prefetched one such that it is given up at ``until``, not before."""
        self._now = EPOCH_S + now
        blocks = [self._block(content) for content in contents]
        for block in blocks:
            block.came = self._now
            if until is not None:
                block.key = max(block.key, EPOCH_S + until - self.lifetime.seconds)
        self._insert(blocks)

    def touch(self, contents: Iterable[int], now: float) -> None:
        """Sort as used now, under the keys known."""
        self._now = EPOCH_S + now
        blocks = [self._block(content) for content in contents]
        for block in blocks:
            block.came = self._now
            self.queue.remove(block)
        self._insert(blocks)

    def leave(self, contents: Iterable[int]) -> None:
        """Let go; their keys stay known."""
        for content in contents:
            self.queue.remove(self._known[content])

    def evict(self, count: int, now: float) -> list[int]:
        """Give up the smallest keys."""
        self._now = EPOCH_S + now
        return [block.block_id for block in self.queue.popleft_n(count)]

    def _block(self, content: int) -> _TierBlock:
        block = self._known.get(content)
        if block is None:
            block = self._known[content] = _TierBlock(content)
            block.came = block.key = self._now
        return block

    def _insert(self, blocks: list[_TierBlock]) -> None:
        for keys, chain in groupby(blocks, key=lambda block: block.keys):
            self.queue.insert_keyed(tuple(chain), keys)

    def _clock(self) -> float:
        return self._now


class WithCredit(ByKey):
    """The plug-in's law at this tier's lifetime, with a guard of its own: credit has to earn its place here, too.

    The guard's shadow caches are as large as this tier and those before it together, which is what decides whether a block is
    still anywhere up to here.
    """

    def __init__(self, capacity: int, whole: int, workload: Workload, *, guard: bool, invert: bool) -> None:
        self.scorer = Scorer(
            ClientSettings.model_construct(guard=guard, pooling="shared"),
            capacity=whole,
            predictor=Sidecar(workload, invert=invert),
            clock=self._clock,
            background=AtOnce,
        )
        self._now = EPOCH_S
        self.scorer.lifetime.capacity = capacity
        super().__init__(self.scorer.lifetime)
        self.queue.trusting = self.scorer.trusting

    def arrive(self, turn: Turn, now: float) -> None:
        """Ask the sidecar."""
        self._now = EPOCH_S + now
        self.scorer.admitted(turn, (), session=turn.conversation, category=turn.category)

    def key(self, turn: Turn, contents: Sequence[int]) -> float:
        """Return what the scorer says, and follow its guard."""
        return ended(self.scorer, self.queue, turn, contents).key


class Knowing(ByKey):
    """Knows whether a conversation goes on, not when: a bound."""

    def __init__(self, capacity: int) -> None:
        super().__init__(Lifetime(capacity))
        self.queue.trusting = True

    def key(self, turn: Turn, contents: Sequence[int]) -> float:
        """Return now, and much more where a next turn will come."""
        del contents
        return self._now + (CONTINUES if turn.next is not None else 0.0)


def order_of(policy: TierPolicy, capacity: int, whole: int, workload: Workload, *, guard: bool, invert: bool) -> Order:
    """Return a tier's order. ``capacity``: its blocks; ``whole``: with those of the cache and the tiers before it."""
    if policy == "credit":
        return WithCredit(capacity, whole, workload, guard=guard, invert=invert)
    return LeastRecentlyUsed(capacity) if policy == "lru" else Knowing(capacity)
