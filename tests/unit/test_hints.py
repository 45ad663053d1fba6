"""What hints may decide: within a share of the cache, and of a request that is done only what it alone has used."""

from collections.abc import Sequence
from typing import Any

import pytest

from eviction_client.hints import NO_HINTS, Hints, Owners, Retained
from eviction_client.queue import Block
from eviction_client.stores import BlockHash
from eviction_client.value_queue import ValueQueue

NOW = 1.8e9


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (None, NO_HINTS),
        ({"lpc_retain_seconds": "200"}, Hints(retain_s=200.0)),
        ({"lpc_retain_seconds": -200}, NO_HINTS),
        ({"lpc_retain_seconds": "soon"}, NO_HINTS),
        ({"lpc_retain_seconds": float("inf")}, NO_HINTS),
        ({"lpc_retain_seconds": 10**400}, NO_HINTS),
        ({"lpc_done": "true"}, Hints(done=True)),
        ({"lpc_done": 0}, NO_HINTS),
        ({"lpc_done": 1, "lpc_retain_seconds": 5}, Hints(5.0, done=True)),
    ],
)
def test_what_cannot_be_read_is_not_a_hint(arguments: dict[str, Any] | None, hints: Hints) -> None:
    assert Hints.of(arguments) == hints


class Cache:
    """A free queue whose blocks are used, and freed with hints. Blocks are named by their numbers."""

    def __init__(self, blocks: int, *, share: float) -> None:
        self.now = NOW
        self.queue: ValueQueue[Block] = ValueQueue(Block(-1), Block(-1), 1, clock=lambda: self.now)
        self.retained: Retained[Block] = Retained(share * blocks)
        self.blocks = [Block(number) for number in range(blocks)]
        self.queue.insert(self.blocks, 0, NOW)

    def use(self, numbers: Sequence[int], retain_s: float = 0.0) -> None:
        """Have a request use blocks, root first, and end a second later."""
        for number in numbers:
            self.queue.remove(self.blocks[number])
        self.now += 1
        self.queue.expire(1000)
        freed = [self.blocks[number] for number in reversed(numbers)]
        if retain_s and self.retained.hold(dict.fromkeys(numbers, 1), self.now + retain_s, self.now):
            self.queue.retain(freed, 0, self.now + retain_s)
        else:
            self.retained.release(numbers)
            self.queue.insert(freed, 0, self.now)

    @property
    def last(self) -> set[int]:
        """As many blocks as are retained, those evicted last."""
        order = [block.block_id for block in self.queue.eviction_order()]
        return set(order[len(order) - self.retained.held :])


def test_a_flood_of_hints_retains_no_more_than_the_share() -> None:
    cache = Cache(100, share=0.1)
    for number in range(0, 100, 2):
        cache.use([number, number + 1], 3600.0)
    assert cache.last == set(range(10))
    assert (cache.retained.granted, cache.retained.refused, cache.retained.held) == (10, 90, 10)


def test_a_conversation_that_asks_at_each_turn_counts_each_block_once() -> None:
    cache = Cache(100, share=0.1)
    for turn in range(2, 11):
        cache.use(range(turn), 3600.0)
    assert cache.last == set(range(10)) and cache.retained.refused == 0


def chain(*names: str) -> list[BlockHash]:
    return [BlockHash(name.encode()) for name in names]


def test_a_conversation_owns_the_blocks_of_all_its_turns_until_another_uses_them() -> None:
    owners = Owners(100)
    assert owners.used("a", chain("system", "a1")) == 0
    assert owners.used("a", chain("system", "a1", "a2")) == 0
    assert owners.used("b", chain("system", "b1")) == 1
    assert owners.used("a", chain("system", "a1", "a2")) == 1


def test_a_prompt_that_somebody_repeats_belongs_to_nobody() -> None:
    owners = Owners(100)
    owners.used("victim", chain("system", "question"))
    assert owners.used("attacker", chain("system", "question")) == 2


def test_owners_of_blocks_in_use_are_remembered_and_the_memory_is_bounded() -> None:
    owners = Owners(10)
    for number in range(1000):
        owners.used(f"s{number}", chain("system", f"s{number}"))
        assert len(owners._users) + len(owners._earlier) <= 24
    assert owners.used("s1", chain("system", "new")) == 1
