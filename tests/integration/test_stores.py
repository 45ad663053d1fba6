"""One behaviour suite for every store: the contract of `eviction_client.stores.base`, on memory and on a real Redis.

On Redis also as the user of docs/how-to/security.md, who may do what the store does and nothing else.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eviction_client.stores import BlockHash, BlockStore, EngineId, MemoryStore
from eviction_client.stores.base import pooled
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.wire.redis_connection import Connection
from testing.processes import RedisServer
from tests.guarded_redis import GuardedRedis

NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")
A, B, C = EngineId("a"), EngineId("b"), EngineId("c")


class Bench:
    """A store under test and the means to empty it between two examples of a law."""

    def __init__(self, store: BlockStore, empty: Callable[[], BlockStore]) -> None:
        self.store = store
        self._empty = empty

    def empty(self) -> BlockStore:
        self.store = self._empty()
        return self.store

    def after(self, records: Sequence[tuple[EngineId, Sequence[BlockHash], float]]) -> list[float | None]:
        """Return the times of all blocks after these records in an empty store."""
        store = self.empty()
        for engine, blocks, until in records:
            store.record(engine, blocks, until)
        assert store.flush()
        return store.retain_until(BLOCKS)


def block(n: int) -> BlockHash:
    return BlockHash(n.to_bytes(4, "big") * 8)


BLOCKS = [block(n) for n in range(6)]


@pytest.fixture(params=["memory", "redis", "guarded_redis"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "memory":
        yield Bench(MemoryStore(), MemoryStore)
        return
    server: RedisServer = request.getfixturevalue("redis_server" if request.param == "redis" else request.param)
    with contextlib.closing(server.client()) as client:
        store = RedisStore(Connection(server.url), NAMESPACE)

        def empty() -> RedisStore:
            client.flushall()
            return store

        yield Bench(store, empty)
        store.close()
        if isinstance(server, GuardedRedis):
            assert not server.refused()


@pytest.fixture
def store(bench: Bench) -> BlockStore:
    return bench.store


# Halves, because Redis keeps times to a fraction of a second and no finer: these come back as they went in.
times = st.integers(-40, 40).map(lambda n: n / 2)
held = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4, unique=True)
records = st.lists(st.tuples(st.sampled_from([A, B, C]), held, times), max_size=8)
law = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@law
@given(records)
def test_every_store_pools_by_the_one_law(bench: Bench, records: list) -> None:
    expected: dict[BlockHash, tuple[str, float]] = {}
    for engine, blocks, until in records:
        for candidate in blocks:
            holder, before = expected.get(candidate, (None, 0.0))
            expected[candidate] = pooled(holder, before, engine, until)
    assert bench.after(records) == [expected[candidate][1] if candidate in expected else None for candidate in BLOCKS]


@law
@given(st.lists(st.tuples(st.just(A), held, times), max_size=6))
def test_a_later_turn_on_the_only_engine_replaces_the_time(bench: Bench, records: list) -> None:
    latest: dict[BlockHash, float] = {}
    for _, blocks, until in records:
        latest.update(dict.fromkeys(blocks, until))
    assert bench.after(records) == [latest.get(candidate) for candidate in BLOCKS]


@law
@given(records)
def test_a_time_is_the_latest_of_one_engine_and_none_recorded_since_is_later(bench: Bench, records: list) -> None:
    """Exactly the maximum of the latest times cannot be had from one number per block: the holder may have lowered its own."""
    latest: dict[BlockHash, dict[EngineId, float]] = {}
    for engine, blocks, until in records:
        for candidate in blocks:
            of_block = latest.setdefault(candidate, {})
            of_block.pop(engine, None)
            of_block[engine] = until  # in the order of the records
    for candidate, found in zip(BLOCKS, bench.after(records), strict=True):
        of_block = latest.get(candidate, {})
        assert (found is None) == (not of_block)
        if found is not None:
            since = list(of_block.values())
            assert any(until == found and max(since[place:]) == found for place, until in enumerate(since))


@law
@given(records)
def test_an_engine_reads_the_times_of_others_and_never_its_own(bench: Bench, records: list) -> None:
    expected: dict[BlockHash, tuple[str, float]] = {}
    bench.after(records)
    for engine, blocks, until in records:
        for candidate in blocks:
            expected[candidate] = pooled(*expected.get(candidate, (None, 0.0)), engine, until)
    for engine in (A, B, C):
        others = {candidate: until for candidate, (holder, until) in expected.items() if holder != engine}
        assert bench.store.elsewhere(engine, BLOCKS) == others


def test_one_engine_alone_has_nothing_elsewhere(store: BlockStore) -> None:
    store.record(A, BLOCKS[:2], 5.0)
    store.record(A, BLOCKS[:1], 3.0)
    store.record(B, BLOCKS[1:2], 4.0)
    assert store.flush()
    assert store.elsewhere(A, BLOCKS[:3]) == {}
    assert store.elsewhere(B, BLOCKS[:3]) == {BLOCKS[0]: 3.0, BLOCKS[1]: 5.0}


def test_trimming_forgets_what_has_sunk_and_nothing_else(store: BlockStore) -> None:
    now = time.time()
    store.record(A, BLOCKS[:3], now - 3601)
    store.record(B, BLOCKS[2:4], now)
    assert store.flush()
    store.trim(now)
    known = [until is not None for until in store.retain_until(BLOCKS)]
    assert known == [False, False, True, True, False, False]
