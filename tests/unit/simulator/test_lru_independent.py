"""Hit counts on random requests of one block each, against implementations that share no code with ours."""

import random
from collections import OrderedDict
from typing import Any

import pytest

from tests.unit.simulator.replay import OneByOne, run

REQUESTS = 5_000
CASES = [(capacity, skew) for capacity in (20, 100) for skew in (0.6, 1.0)]


def zipf(capacity: int, skew: float, requests: int = REQUESTS) -> list[int]:
    """Return requests for 1000 blocks, block i with a weight of i to the power of -skew."""
    draw = random.Random(capacity)
    return draw.choices(range(1, 1001), [i**-skew for i in range(1, 1001)], k=requests)


def textbook_lru(capacity: int, contents: list[int]) -> tuple[int, list[int]]:
    cache: OrderedDict[int, None] = OrderedDict()
    hits, evicted = 0, []
    for content in contents:
        hits += content in cache
        cache[content] = cache.pop(content, None)
        if len(cache) > capacity:
            evicted.append(cache.popitem(last=False)[0])
    return hits, evicted


@pytest.mark.parametrize(("capacity", "skew"), CASES)
def test_lru_is_an_ordered_dict(capacity: int, skew: float) -> None:
    contents = zipf(capacity, skew)
    replay = run("lru", capacity, contents)

    assert (replay.hits, replay.evicted) == textbook_lru(capacity, contents)


def libcachesim(policy: str, capacity: int, contents: list[int]) -> list[bool]:
    """Return which requests libCacheSim hits."""
    lcs: Any = pytest.importorskip("libcachesim", reason="PyPI libcachesim is not installed")
    if policy == "slru":
        from libcachesim import libcachesim_python as native

        # Its default is four segments alike; ours are two.
        cache = native.SLRU_init(native.CommonCacheParams(cache_size=capacity, hashpower=16), "seg-size=20:80")
    else:
        cache = lcs.LRU(capacity, hashpower=16)
    return [cache.get(lcs.Request(obj_size=1, obj_id=content)) for content in contents]


def ours(policy: str, capacity: int, contents: list[int]) -> list[bool]:
    """Return which requests our cache hits."""
    replay = OneByOne(policy, capacity)
    return [bool(replay.ask(content)) for content in contents]


@pytest.mark.parametrize(("capacity", "skew"), CASES)
def test_lru_hits_are_those_of_libcachesim(capacity: int, skew: float) -> None:
    contents = zipf(capacity, skew)

    assert ours("lru", capacity, contents) == libcachesim("lru", capacity, contents)
