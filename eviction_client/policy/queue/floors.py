"""Floors: blocks of the cache that a tenant does not lose to others.

A tenant's blocks are those that its finished requests left in the cache, free or in use again. Up to the floor they are
*protected*: they are evicted only if no other block is free. Above the floor the queue's own order decides.

When the order reaches a protected block, the block is set aside, once. Blocks set aside keep that order. If the tenant then
exceeds its floor, these are evicted first. A floor lapses if no request of its tenant has ended for `LAPSE_S`; the next
end restores it.

Cost: one look-up per evicted block, and one per block that a request of a tenant with a floor frees.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic

from eviction_client.policy.queue.free_list import B
from eviction_client.policy.queue.free_queue import FreeQueue

LAPSE_S: Final = 1800.0
"""Seconds without a request after which a tenant's floor lapses: it must not pin memory for good."""
_NOTHING: Final = -1


class Floor(Generic[B]):
    """The floor of one tenant.

    Attributes:
        blocks: number of protected blocks.
        limit: the same; -1 while the floor has lapsed.
        held: blocks of the tenant in the cache.
        used: end of the tenant's last request, seconds.
        aside: protected blocks that were set aside, by id.
    """

    __slots__ = ("aside", "blocks", "held", "limit", "used")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.limit = _NOTHING
        self.held = 0
        self.used = 0.0
        self.aside: OrderedDict[int, B] = OrderedDict()


class FlooredQueue(FreeQueue[B]):
    """A queue in which tenants have floors, once :meth:`set_floors` has been called.

    Attributes:
        floors: shares by digest of the tenant's cache salt.
    """

    def set_floors(self, shares: Mapping[str, float], capacity: int) -> None:
        """Set the tenants' shares of the capacity, by digest of their cache salts, while no block has content."""
        self.floors: Mapping[str, Floor[B]] = {digest: Floor(int(share * capacity)) for digest, share in shares.items()}
        self._floor_of: dict[int, Floor[B]] = {}
        """Floor of a block's tenant, by the block's id."""
        self._aside = 0
        self._over = False
        """Whether some tenant may have set blocks aside and be above its floor."""

    def own(self, blocks: Iterable[B], tenant: str) -> None:
        """Assign blocks that a request frees with content. ``tenant``: digest of its cache salt."""
        floor = self.floors.get(tenant)
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
        """Remove blocks that have lost their content."""
        for block in blocks:
            floor = self._floor_of.pop(block.block_id, None)
            if floor is not None:
                floor.held -= 1

    def clear(self) -> None:
        """As :meth:`FreeQueue.clear`; no tenant has a block any more."""
        aside = [block for floor in self.floors.values() for block in floor.aside.values()]
        for floor in self.floors.values():
            floor.held = 0
            floor.aside.clear()
        self._floor_of.clear()
        self._aside, self._over = 0, False
        super().clear()
        super().prepend_n(aside)

    def step(self) -> bool:
        """As :meth:`FreeQueue.step`; also let floors of silent tenants lapse."""
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

    def eviction_order(self, kept: list[B] | None = None, may_go: Callable[[B], bool] | None = None) -> Iterator[B]:
        """Iterate over all blocks, those set aside last. Other protected blocks are at their place in the order."""
        yield from super().eviction_order(kept, may_go)
        for floor in self.floors.values():
            yield from filter(may_go or bool, floor.aside.values())

    def _drain(self, taken: list[B], n: int) -> None:
        """Evict blocks set aside above the floors, after blocks without content, until ``taken`` has n."""
        while len(taken) < n and self.head.next_free_block is not self._start.following.head:
            taken += super().popleft_n(1)
        for floor in self.floors.values():
            while floor.aside and floor.held > floor.limit:
                if len(taken) == n:
                    return
                taken.append(self._give_up(floor))
        self._over = False

    def _give_up(self, floor: Floor[B]) -> B:
        """Remove and return the first block that a tenant has set aside."""
        number, block = floor.aside.popitem(last=False)
        del self._floor_of[number]
        self._needed.pop(number, None)
        floor.held -= 1
        self._aside -= 1
        self.num_free_blocks -= 1
        return block
