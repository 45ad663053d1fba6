"""What only the in-memory store does: stay within its bound, forgetting what was recorded longest ago."""

from eviction_client.stores import BlockHash, EngineId, MemoryStore


def blocks(start: int, count: int) -> list[BlockHash]:
    return [BlockHash(n.to_bytes(16, "big")) for n in range(start, start + count)]


def test_over_its_bound_the_blocks_recorded_longest_ago_are_forgotten() -> None:
    store = MemoryStore(max_blocks=100)
    for start in (0, 50):
        store.record(EngineId("c"), blocks(start, 50), 1.0)
    store.record(EngineId("c"), blocks(0, 10), 2.0)
    store.record(EngineId("c"), blocks(100, 20), 2.0)
    assert store.retain_until(blocks(0, 35)) == [2.0] * 10 + [None] * 20 + [1.0] * 5
