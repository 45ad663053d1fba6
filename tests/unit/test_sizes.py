"""What LRU caches of other sizes would hit: against a cache of each size, and against all blocks instead of a sample."""

import functools
import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.observability.sizes import ASKED, SIZES, CacheSizes, named
from eviction_client.policy.ghosts import FEWEST_BLOCKS, GhostCache, sample_of
from eviction_client.stores import BlockHash
from tests.spans import spans_of


@functools.cache
def block_of(content: object) -> BlockHash:
    return BlockHash(hashlib.sha256(str(content).encode()).digest())


CHAINS = [[block_of((chain, depth)) for depth in range(12)] for chain in range(6)]
USES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(0, 12), st.floats(0, 30)), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(uses=USES, capacity=st.integers(1, 20), every=st.sampled_from([1, 2]))
def test_hits_are_those_of_a_cache_of_each_size(uses: list[tuple[int, int, int, float]], capacity: int, every: int) -> None:
    now = [0.0]
    caches = {size: GhostCache[BlockHash](0, 1, clock=lambda: now[0]) for size in SIZES}
    found = CacheSizes(capacity, every=every)
    expected = {ASKED: 0, **dict.fromkeys(map(named, SIZES), 0)}
    for number, prompt, more, in_use in uses:
        now[0] += 1
        chain = CHAINS[number][: prompt + more]
        asked = sample_of(chain[:prompt], every)
        expected[ASKED] += min(prompt, len(chain))
        for size, cache in caches.items():
            expected[named(size)] += (len(asked) - cache.hits(asked)) * every
            cache.room = max(int(size * capacity - in_use) // every, 1)
            followed = sample_of(chain, every)
            cache.use(followed, spans_of((len(followed), 0)))
        found.observe(chain, min(prompt, len(chain)), in_use)
        assert found.missed == expected
        held = [block for part in found._parts for block in part]
        assert len(held) == len(set(held)) <= max(int(8 * capacity - in_use) // every, 1)


@pytest.mark.parametrize("every", [2, 8])
def test_a_sample_estimates_all_blocks_at_each_size(every: int) -> None:
    """Agents that share a first block return at random to caches of half to eight times the sampled 2,048 blocks."""
    rng = random.Random(every)
    capacity = FEWEST_BLOCKS * every
    lengths = [rng.randrange(20, 100) for _ in range(capacity // 20)]
    whole, sampled = CacheSizes(capacity, every=1), CacheSizes(capacity, every=every)
    # Of the first block, which everybody uses, the sample has either all uses or none.
    shared = next(block for block in map(block_of, range(100)) if not sample_of([block], every))
    for _ in range(6_000):
        agent = rng.randrange(len(lengths))
        lengths[agent] = lengths[agent] + 3 if lengths[agent] < 120 else 20
        chain = [shared, *(block_of((agent, depth)) for depth in range(lengths[agent]))]
        for sizes in (whole, sampled):
            sizes.observe(chain, len(chain) - 3, 0.0)
    exact, estimate = ([1 - sizes.missed[named(size)] / sizes.missed[ASKED] for size in SIZES] for sizes in (whole, sampled))
    assert exact == sorted(exact) and exact[-1] - exact[0] > 0.3  # the sizes differ
    assert estimate == pytest.approx(exact, abs=0.02)
