"""What only the in-memory store does: stay within its bound, forgetting what was recorded longest ago."""

import random

from eviction_client.stores import BlockHash, ConversationId, MemoryStore


def blocks(start: int, count: int) -> list[BlockHash]:
    return [BlockHash(n.to_bytes(16, "big")) for n in range(start, start + count)]


def test_over_its_bound_the_blocks_recorded_longest_ago_are_forgotten() -> None:
    store = MemoryStore(max_blocks=100)
    for start in (0, 50):
        store.record(ConversationId("c"), blocks(start, 50), 1.0)
    store.record(ConversationId("c"), blocks(0, 10), 2.0)
    store.record(ConversationId("c"), blocks(100, 20), 2.0)
    assert store.scores(blocks(0, 35)) == [2.0] * 10 + [None] * 20 + [1.0] * 5


def test_random_records_never_exceed_the_bound_and_all_can_be_trimmed() -> None:
    rng = random.Random(7)
    store = MemoryStore(max_blocks=500)
    for _ in range(2000):
        start = rng.randrange(2000)
        store.record(ConversationId(str(rng.randrange(30))), blocks(start, rng.randrange(40)), rng.uniform(-50, 50))
        assert len(store) <= 500
    store.trim(1.8e9)
    assert len(store) == 0
