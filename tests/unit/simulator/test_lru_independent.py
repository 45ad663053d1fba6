"""Hit counts on random requests of one block each, against an implementation that shares no code with ours."""

import random
from collections import OrderedDict

import pytest

from tests.unit.simulator.replay import run

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
