"""The ghost caches and what they tell the guard."""

from itertools import pairwise

from eviction_client.policy.free_list import Block
from eviction_client.policy.free_queue import FreeQueue
from eviction_client.policy.ghosts import Freed, GhostCache, Ghosts
from lpc.model.curve import EDGES, INTERVALS, interval_of, values
from tests.clock import Clock


def every_block(content: int, every: int) -> bool:
    """Follow all blocks."""
    del content, every
    return True


def returning_after(age: float) -> list[float]:
    """Return the table of a curve that returns about an age."""
    hazards = [0.0] * INTERVALS
    hazards[interval_of(age)] = 0.9
    return values(hazards)


def never() -> list[float]:
    """Return the table of a curve that hardly ever returns, the less the older it is."""
    return values([1e-6 / (1.0 + low) for low, _ in pairwise(EDGES)])


def test_a_ghost_cache_holds_what_the_real_queue_would() -> None:
    clock = Clock(0.0)
    cache: GhostCache[int] = GhostCache(8, 1, value_enabled=False, clock=clock)
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), 1, clock=clock)
    for start in range(0, 40, 4):
        clock.now += 1.0
        cache.use([Freed(range(start, start + 4), 0)])
        if len(queue) == 8:
            queue.popleft_n(4)
        queue.insert([Block(number) for number in reversed(range(start, start + 4))], 0, clock.now)
    assert len(cache) == 8
    assert cache.hits(range(32, 36)) == 4
    assert {block.block_id for block in queue} == set(range(32, 40))


def test_the_guard_enables_the_value_where_it_hits_more_and_disables_it_when_it_loses() -> None:
    """A round of 100 prompts in a cache of 64: least recent use hits nothing, the value keeps some."""
    clock = Clock(0.0)
    ghosts: Ghosts[int] = Ghosts(64, 2, every_block, clock=clock)

    def rounds(number: int) -> bool:
        enabled = False
        for _ in range(number):
            for prompt in range(100):
                clock.now += 1.0
                enabled = ghosts.observe([prompt], [Freed([prompt], 0)])
        return enabled

    assert not rounds(1)
    ghosts.set_tables([returning_after(100.0), never()])
    assert rounds(10)
    assert ghosts.value_hits > ghosts.lru_hits
    # Wrong from now on: what is used again soon is worth nothing, what never returns is kept.
    ghosts.set_tables([never(), returning_after(100.0)])
    enabled = True
    for turn in range(4000):
        clock.now += 1.0
        ghosts.observe([turn % 20], [Freed([turn % 20], 0)])
        enabled = ghosts.observe([10_000 + turn], [Freed([10_000 + turn], 1)])
    assert not enabled
