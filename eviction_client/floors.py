"""Floors: blocks of the cache that a tenant does not lose to others.

A tenant's blocks are those that its requests have left in the cache, free or in use again. While they are at most as many as
its floor, they are *protected*: they go only if no other block is free. Above the floor the queue's own order decides.

A protected block whose turn comes is set aside, once, so that the others cost nothing; the blocks set aside of a tenant are in
the order of their turns. What a tenant then has above its floor goes next, from these first. A floor lapses when its tenant has
ended no request for `LAPSE_S`, and holds again from the next one on.

Cost: a look-up for each block that is evicted, and for each that a request of a tenant with a floor leaves.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Generic

from eviction_client.queue import B
from eviction_client.tenants import digest_of
from eviction_client.value_queue import _HEAD, _NEXT, ValueQueue

LAPSE_S: Final = 1800.0
"""Seconds without a request after which a tenant's floor lapses: it must not pin memory for good."""
_NOTHING: Final = -1

_digest_of = lru_cache(maxsize=1024)(digest_of)


class Floor(Generic[B]):
    """The floor of one tenant.

    Attributes:
        blocks: that are protected.
        limit: the same, or less than any number of blocks while the floor has lapsed.
        held: blocks of the tenant in the cache.
        used: when a request of the tenant ended last.
        aside: protected blocks whose turn has come, by id.
    """

    __slots__ = ("aside", "blocks", "held", "limit", "used")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.limit = _NOTHING
        self.held = 0
        self.used = 0.0
        self.aside: OrderedDict[int, B] = OrderedDict()


class FlooredQueue(ValueQueue[B]):
    """A queue in which tenants have floors, once :meth:`set_floors` has been called.

    Attributes:
        floors: by digest of the tenant's cache salt.
    """

    def set_floors(self, shares: Mapping[str, float], capacity: int) -> None:
        """Give tenants, by digest of their cache salts, shares of so many blocks. The queue has no block with content."""
        self.floors: Mapping[str, Floor[B]] = {digest: Floor(int(share * capacity)) for digest, share in shares.items()}
        self._floor_of: dict[int, Floor[B]] = {}
        """By id of a block."""
        self._aside = 0
        self._over = False
        """Whether some tenant may have set blocks aside and be above its floor."""

    def own(self, blocks: Iterable[B], salt: str) -> None:
        """Note that a tenant's request leaves these blocks with content."""
        floor = self.floors.get(_digest_of(salt)) if salt else None
        if floor is None:
            return
        floor.used, floor.limit = self._clock(), floor.blocks
        floor_of = self._floor_of
        for block in blocks:
            if block.block_id not in floor_of:
                floor_of[block.block_id] = floor
                floor.held += 1
        self._over |= bool(floor.aside) and floor.held > floor.limit

    def disown(self, blocks: Iterable[B]) -> None:
        """Note that these blocks have no content."""
        for block in blocks:
            floor = self._floor_of.pop(block.block_id, None)
            if floor is not None:
                floor.held -= 1

    def step(self) -> bool:
        """As :meth:`ValueQueue.step`; also end floors whose tenants are silent."""
        now = self._clock()
        for floor in self.floors.values():
            if floor.limit != _NOTHING and now - floor.used > LAPSE_S:
                floor.limit = _NOTHING
                self._over = True
        return super().step()

    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order; protected ones only if no other is free.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        floor_of = self._floor_of
        if not floor_of or n > self.num_free_blocks:
            return super().popleft_n(n)
        taken: list[B] = []
        if self._over:
            self._drain(taken, n)
        while (missing := n - len(taken)) > 0:
            listed = self.num_free_blocks - self._aside
            if not listed:
                taken.append(self._give_up(max(self.floors.values(), key=lambda floor: len(floor.aside))))
                continue
            for block in super().popleft_n(min(missing, listed)):
                floor = floor_of.get(block.block_id)
                if floor is not None and floor.held <= floor.limit:
                    floor.aside[block.block_id] = block
                    self._aside += 1
                    self.num_free_blocks += 1
                    continue
                taken.append(block)
                if floor is not None:
                    del floor_of[block.block_id]
                    floor.held -= 1
        return taken

    def remove(self, block: B) -> None:
        """Take a block out, because a request uses it again. Raises ValueError if it is not free."""
        floor = self._floor_of.get(block.block_id) if block.next_free_block is None else None
        if floor is not None and floor.aside.pop(block.block_id, None) is not None:
            self._aside -= 1
            self.num_free_blocks -= 1
        else:
            super().remove(block)

    def eviction_order(self, kept: list[B] | None = None) -> Iterator[B]:
        """Walk all blocks, those set aside last; protected blocks whose turn has not come are where it would come."""
        yield from super().eviction_order(kept)
        for floor in self.floors.values():
            yield from floor.aside.values()

    def _drain(self, taken: list[B], n: int) -> None:
        """Give up what tenants have set aside above their floors, until there are n; blocks without content go before them."""
        while len(taken) < n and self.head.next_free_block is not self._start[_NEXT][_HEAD]:
            taken += super().popleft_n(1)
        for floor in self.floors.values():
            while floor.aside and floor.held > floor.limit:
                if len(taken) == n:
                    return
                taken.append(self._give_up(floor))
        self._over = False

    def _give_up(self, floor: Floor[B]) -> B:
        """Take out the first block that a tenant has set aside."""
        number, block = floor.aside.popitem(last=False)
        del self._floor_of[number]
        floor.held -= 1
        self._aside -= 1
        self.num_free_blocks -= 1
        return block
