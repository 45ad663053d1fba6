"""What only the in-memory store does: stay within its bound, forgetting the lowest scores first."""

import random

from eviction_client.stores import BlockHash, ConversationId, MemoryStore


def blocks(start: int, count: int) -> list[BlockHash]:
    return [BlockHash(n.to_bytes(16, "big")) for n in range(start, start + count)]


def test_over_its_bound_the_lowest_scores_are_forgotten() -> None:
    store = MemoryStore(max_blocks=100)
    store.record(ConversationId("low"), blocks(0, 50), 1.0)
    store.record(ConversationId("high"), blocks(50, 50), 3.0)
    store.record(ConversationId("middle"), blocks(100, 20), 2.0)
    assert set(store.scores(blocks(0, 50))) == {None}
    assert None not in store.scores(blocks(50, 70))
    assert store.counters.dropped == 50


def test_a_conversation_that_goes_on_for_ever_does_not_push_itself_out() -> None:
    store = MemoryStore(max_blocks=100)
    chain = blocks(0, 80)
    for turn in range(1000):
        store.record(ConversationId("c"), chain, float(turn))
    assert store.scores(chain) == [999.0] * 80
    assert len(store) == 80


def test_random_records_never_exceed_the_bound_and_all_can_be_trimmed() -> None:
    rng = random.Random(7)
    store = MemoryStore(max_blocks=500)
    for _ in range(2000):
        start = rng.randrange(2000)
        store.record(ConversationId(str(rng.randrange(30))), blocks(start, rng.randrange(40)), rng.uniform(-50, 50))
        assert len(store) <= 500
    store.trim(1.8e9)
    assert len(store) == 0
    assert not store._records and store._references == 0


def test_more_blocks_than_the_bound_at_once_leave_the_store_usable() -> None:
    store = MemoryStore(max_blocks=10)
    store.record(ConversationId("c"), blocks(0, 1000), 1.0)
    assert len(store) <= 10
    store.record(ConversationId("c"), blocks(0, 5), 1.0)
    assert store.scores(blocks(0, 5)) == [1.0] * 5
