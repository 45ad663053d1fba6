"""One behaviour suite for every store: the contract of `eviction_client.stores.base`, on memory and on a real Redis.

On Redis also as the user of docs/how-to/security.md, who may do what the store does and nothing else.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eviction_client.stores import BlockHash, BlockStore, MemoryStore
from eviction_client.stores.base import Turned, pooled
from eviction_client.stores.claims import TAGS, SharedClaim, shared_claim
from eviction_client.stores.layout import claim_of, oldest, score
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.wire.redis_connection import Connection
from testing.processes import RedisServer
from tests.guarded_redis import GuardedRedis
from tests.redis_stores import GAP_S, START, turn

NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")


class Bench:
    """A store under test and the means to empty it between two examples of a law."""

    def __init__(self, store: BlockStore, empty: Callable[[], BlockStore]) -> None:
        self.store = store
        self._empty = empty

    def after(self, records: Sequence[tuple[Sequence[BlockHash], Turned]]) -> list[SharedClaim | None]:
        """Return the claims on all blocks after these records in an empty store."""
        self.store = store = self._empty()
        for blocks, turned in records:
            store.record(blocks, turned, GAP_S)
        assert store.flush()
        return store.claims_now(BLOCKS)


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


conversations = st.integers(1, 4)
times = st.integers(-40, 40).map(lambda n: START + n / 2)
log_odds = st.floats(-20.0, 20.0)
held = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4, unique=True)


@st.composite
def turns(draw: st.DrawFn) -> Turned:
    """A turn, whose highest claim is its own, or one that its engine has seen before."""
    own, at = draw(conversations), draw(times)
    foreign = draw(st.booleans())
    claim = shared_claim(
        draw(conversations) if foreign else own,
        draw(log_odds),
        at - draw(st.integers(0, 50)) if foreign else at,
        draw(st.integers(0, 9)),
        predicted=draw(st.booleans()),
        holders=draw(st.integers(1, 6)),
    )
    return Turned(own, at, claim)


records = st.lists(st.tuples(held, turns()), max_size=8)
law = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@law
@given(records)
def test_every_store_pools_by_the_one_law(bench: Bench, records: list[tuple[list[BlockHash], Turned]]) -> None:
    expected: dict[BlockHash, SharedClaim] = {}
    for blocks, turned in records:
        for candidate in blocks:
            expected[candidate] = pooled(expected.get(candidate), turned, GAP_S)
    assert bench.after(records) == [expected.get(candidate) for candidate in BLOCKS]
    assert bench.store.claims(BLOCKS) == expected and not bench.store.refused


@law
@given(st.dictionaries(conversations, st.tuples(times, log_odds), min_size=1), st.randoms(use_true_random=False))
def test_of_different_conversations_the_highest_claim_stays_in_any_order(bench: Bench, claims: dict, random: Random) -> None:
    turned = [turn(number, at - START, odds) for number, (at, odds) in claims.items()]
    random.shuffle(turned)
    (found, *_) = bench.after([(BLOCKS[:1], one) for one in [*turned, *turned]])
    assert found is not None
    assert found.score(GAP_S) == max(one.highest.score(GAP_S) for one in turned)
    assert found.holders == min(len(turned), 2 if len(turned) > 1 else 1)


@law
@given(st.tuples(times, log_odds), st.tuples(times, log_odds), st.booleans())
def test_the_later_turn_of_a_conversation_has_its_claim_whichever_is_written_last(
    bench: Bench, one: tuple[float, float], other: tuple[float, float], swapped: bool
) -> None:
    first, second = sorted((turn(1, at - START, odds) for at, odds in (one, other)), key=lambda each: each.at // 1)
    written = [second, first] if swapped and first.at // 1 < second.at // 1 else [first, second]
    assert bench.after([(BLOCKS[:1], each) for each in written])[0] == second.highest


def test_the_end_of_the_likeliest_conversation_leaves_what_its_engine_has_seen_of_others(bench: Bench) -> None:
    likely, other, over = turn(1, 0.0, 3.0), turn(2, 1.0, 1.0), turn(1, 50.0, -5.0)
    seen = over._replace(highest=other.highest._replace(holders=2))
    (found, *_) = bench.after([(BLOCKS[:1], likely), (BLOCKS[:1], other), (BLOCKS[:1], seen)])
    assert found == other.highest._replace(holders=2)


def test_trimming_forgets_what_is_an_hour_old_and_nothing_else(store: BlockStore) -> None:
    now = time.time()
    for blocks, at in ((BLOCKS[:2], now - 3602), (BLOCKS[2:4], now)):
        store.record(blocks, turn(1, at - START), GAP_S)
    assert store.flush()
    store.trim(now)
    known = [claim is not None for claim in store.claims_now(BLOCKS)]
    assert known == [False, False, True, True, False, False]


@given(st.integers(0, TAGS - 1), log_odds, st.floats(1.6107e9, 2.684e9), st.integers(1, 9), st.booleans(), st.integers(1, 9))
def test_a_score_holds_a_whole_claim(tag: int, odds: float, at: float, number: int, predicted: bool, holders: int) -> None:
    claim = shared_claim(tag, odds, at, number, predicted=predicted, holders=holders)
    assert float(score(claim)) == score(claim) and claim_of(float(score(claim)), at) == claim
    assert abs(claim.log_odds - min(max(odds, -8.0), 7.9375)) <= 1 / 32 and 0 <= at - claim.at < 1


@given(st.lists(st.tuples(times, log_odds), min_size=2, max_size=2))
def test_scores_are_in_the_order_of_times(pair: list[tuple[float, float]]) -> None:
    one, other = (shared_claim(1, odds, at, 1, predicted=True, holders=1) for at, odds in pair)
    assert one.at >= other.at or score(one) < score(other)
    assert oldest(one.at) <= score(one) < oldest(one.at + 1)


@pytest.mark.parametrize("stored", [math.nan, math.inf, -math.inf, 0.5, 2.0**53 + 2, 1e300, float(oldest(START + 301))])
def test_a_value_that_no_engine_would_have_written_is_not_a_claim(stored: float) -> None:
    assert claim_of(stored, START) is None
