"""The classic rules evict as libCacheSim does, on requests of one block that take no time."""

import random
from itertools import chain

import libcachesim
import pytest

from tests.unit.simulator.replay import OneByOne

KNOWN = {
    "lru": (libcachesim.LRU, 0.0),
    "fifo": (libcachesim.FIFO, 0.0),
    "lfu": (libcachesim.LFU, 0.0),
    "arc": (libcachesim.ARC, 0.0),
    "gdsf": (libcachesim.GDSF, 0.5),
    "s3-fifo": (libcachesim.S3FIFO, 0.5),
    "mq": (libcachesim.MQ, 2.5),
}
"""libCacheSim's rule, and by how many points its hit rate may differ.

GDSF breaks ties in another way. S3-FIFO and MQ count uses of ghosts in another way, and MQ has another lifetime.
"""


def skewed(seed: int, keys: int, count: int, skew: float) -> list[int]:
    return random.Random(seed).choices(range(1, keys + 1), [i**-skew for i in range(1, keys + 1)], k=count)


TRACES = {
    "skewed": skewed(1, 2_000, 10_000, 0.9),
    "skewed, with scans": list(
        chain.from_iterable(
            [*skewed(number, 300, 300, 0.8), *range(10_000 + 200 * number, 10_200 + 200 * number)] for number in range(25)
        )
    ),
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("capacity", [50, 200])
@pytest.mark.parametrize("name", KNOWN)
def test_a_classic_rule_hits_what_libcachesim_hits(name: str, capacity: int, trace: str) -> None:
    contents = TRACES[trace]
    make, tolerance = KNOWN[name]
    cache, known = make(capacity), 0
    for clock, content in enumerate(contents):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = content, 1, clock
        known += cache.get(request)
    replay = OneByOne(name, capacity)
    for content in contents:
        replay.ask(content)
    assert abs(replay.hits - known) <= tolerance / 100 * len(contents)
    assert known > 0.2 * len(contents)


def test_mru_keeps_the_first_blocks_of_a_loop() -> None:
    replay = OneByOne("mru", 10)
    for content in list(range(1, 13)) * 50:
        replay.ask(content)
    assert replay.hits > 0.75 * 600


def test_mq_lets_a_block_sink_that_is_not_used_for_a_lifetime() -> None:
    replay = OneByOne("mq", 2)
    replay.policy._lifetime = 10
    for _ in range(4):
        replay.ask(1)
    replay.ask(2)
    for content in range(3, 6):
        replay.ask(content)
    assert 1 not in replay.evicted
    for content in range(6, 40):
        replay.ask(content)
    assert 1 in replay.evicted


@pytest.mark.parametrize("name", [*KNOWN, "mru"])
def test_chains_in_use_and_parts_of_pieces_are_handled(name: str) -> None:
    """Requests of many blocks with shared prefixes: the cache checks itself that as many blocks go as are asked for."""
    draw = random.Random(3)
    replay = OneByOne(name, 60)
    for _ in range(400):
        family, length = draw.randrange(8), draw.randrange(5, 40)
        replay.ask(*(1000 * family + place for place in range(length)))
        assert len(replay.cache) <= 60
    assert len(replay.evicted) > 1_000 and replay.hits > 1_000
