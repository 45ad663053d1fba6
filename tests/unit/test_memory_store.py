"""What only the in-memory store does: stay within its bound, forgetting what was recorded longest ago."""

from eviction_client.stores import BlockHash, MemoryStore
from tests.redis_stores import A, ends, record


def blocks(start: int, count: int) -> list[BlockHash]:
    return [BlockHash(n.to_bytes(16, "big")) for n in range(start, start + count)]


def test_over_its_bound_the_blocks_recorded_longest_ago_are_forgotten() -> None:
    store = MemoryStore(max_blocks=100)
    for start in (0, 50):
        record(store, A, blocks(start, 50), 1.0)
    record(store, A, blocks(0, 10), 2.0)
    record(store, A, blocks(100, 20), 2.0)
    assert ends(store, blocks(0, 35)) == [2.0] * 10 + [None] * 20 + [1.0] * 5
