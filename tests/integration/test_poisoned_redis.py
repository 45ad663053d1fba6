"""Nothing that an engine's user writes into the engines' Redis stops a sidecar or the sharing of turns. A real Redis."""

import asyncio
import contextlib
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eviction_client.block_hash import BlockHash
from eviction_client.stores.claims import AHEAD_S, MOST_HOLDERS, MOST_TURNS, TAGS
from eviction_client.stores.layout import oldest
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.clock import MonotoneClock
from lpc.model.returns.model import ReturnModel
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.redis_connection import Connection
from predictor_service.batching.prepare import Preparation
from predictor_service.labels.tracker import TurnTracker
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import ServedModels
from predictor_service.returns.learning import ReturnLearning
from predictor_service.sharing import records, registry
from predictor_service.sharing.records import SharedTurn
from predictor_service.sharing.registry import TurnRegistry
from tests.eventually import eventually, until
from tests.guarded_redis import GuardedRedis
from tests.integration.test_returns import sidecar
from tests.integration.test_sharing import shows, turn
from tests.jobs import unread_job
from tests.metric_values import counted
from tests.nightly import EXAMPLES
from tests.redis_stores import GAP_S, START
from tests.redis_stores import record as recorded_turn
from tests.redis_stores import turn as turned

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")  # as in production, where NumPy's do not raise
HORIZON_S = 600.0
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1e-300, 1e300, 2.0**53, 4e9, 1.7e9)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for Redis as long as a loaded machine takes; keys and returns are read often."""
    monkeypatch.setattr(registry, "PATIENCE_S", 20.0)
    monkeypatch.setattr(registry, "RETURNS_S", 0.02)
    monkeypatch.setattr(registry, "KEY_S", 0.02)
    monkeypatch.setattr(registry, "REST_S", 0.02)


def engine(redis: GuardedRedis) -> Any:
    """A client with the rights of an engine."""
    return Connection(redis.url).client


def recorded(admin: Any) -> list[SharedTurn]:
    """Return the records of all turns that wait."""
    keys = [key for key in admin.scan_iter("lpc:seen:*") if key != b"lpc:seen:key" and b":to:" not in key]
    return [record for key in keys for record in SharedTurn.all_in(admin.get(key) or b"")]


async def recorded_since(admin: Any, before: list[SharedTurn], count: int) -> list[SharedTurn]:
    """Return the records that are new, if there are so many."""
    known = {record.turn for record in before}
    new = [record for record in recorded(admin) if record.turn not in known]
    return new if len(new) == count else []


async def test_a_return_at_no_time_leaves_the_groups_as_they_are(tiny_models: Path, guarded_redis: GuardedRedis) -> None:
    async with sidecar(tiny_models, redis_url=guarded_redis.url) as one:
        await eventually(lambda: shows(one, "lpc_turns_shared 1.0"))
        await one.traffic(20)
        assert 0 not in await one.groups_of_both()
        with contextlib.closing(guarded_redis.client()) as admin:
            before = recorded(admin)
            await one.ask(*(turn(f"turn {number}", name=f"waits {number}") for number in range(len(NUMBERS))))
            waiting = await eventually(lambda: recorded_since(admin, before, len(NUMBERS)))
        client = engine(guarded_redis)
        inbox = f"{records.PREFIX}to:{waiting[0].sidecar.hex()}"
        returns = b"".join(struct.pack(">8sd", record.turn, at) for record, at in zip(waiting, NUMBERS, strict=True))
        client.execute_command("SET", inbox, returns)
        client.close()
        await eventually(lambda: shows(one, f'lpc_turns_total{{found="heard"}} {len(NUMBERS)}.0'))
        one.model.refit(one.now)
        assert math.isfinite(one.model.quality.nats) and 0.0 < one.model.quality.head_share < 1.0
        assert 0 not in await one.groups_of_both()


class Side:
    """A sidecar's part that shares turns and learns from them, without a server."""

    def __init__(self, url: str) -> None:
        self.metrics, clock = Metrics(), MonotoneClock()
        self.model = ReturnModel(1000)
        learning = ReturnLearning(self.model, self.metrics, refit_s=60.0, state_file=None, clock=clock.now)
        tracker = TurnTracker(1000, HORIZON_S, [learning])
        self.learning = learning
        self.shared = TurnRegistry(Connection(url), tracker, self.metrics, clock)
        parser = RequestParser(RequestLimits(10, 1000, 100), ServedModels({}))
        self.preparation = Preparation(parser, tracker, self.metrics, registry=self.shared, threads=1, clock=clock.now)

    async def ask(self, name: str, tokens: int) -> Any:
        ids = pb.TokenIds(ids=range(tokens), served_model="nobody knows it")
        arrived = await self.preparation.note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id=name)))
        self.learning.answer([arrived], [arrived.arrival.facts])
        return arrived

    def bugs(self) -> float:
        return counted(self.metrics.task_failures.labels("returns"))

    def close(self) -> None:
        self.preparation.close()
        self.shared.close()


numbers = st.sampled_from(NUMBERS) | st.floats(width=64)
small = st.floats(width=32)
counts = st.sampled_from((0, 1, 2**20, 2**31, 2**32 - 2, 2**32 - 1)) | st.integers(0, 2**32 - 1)
times = numbers | st.floats(-1e5, 1e5).map(lambda seconds: time.time() + seconds)
record = st.builds(
    lambda count, history, tokens, growth: records.RECORD.pack(
        b"sidecar.", b"turn....", bytes(16), bytes(16), count, *history, tokens, growth
    ),
    *(counts, st.tuples(times, numbers, numbers, counts), small, small),
)
strings = st.binary(max_size=300) | st.lists(record, max_size=70).map(b"".join)
poison = st.tuples(
    st.sampled_from(("SET", "SET", "SET", "list", "times", "flush")),
    st.sampled_from(("turns", "turns", "inbox", "key")),
    strings,
)
"""What is done to which keys, and the value."""


def spoil(admin: Any, client: Any, how: str, what: str, value: bytes) -> None:
    """Write to the keys of turns, to inboxes or to the fleet's key, as an engine may, or change their types."""
    keys = list(admin.scan_iter("lpc:seen:*"))
    kinds = {"key": [b"lpc:seen:key"], "inbox": [key for key in keys if b":to:" in key]}
    kinds["turns"] = [key for key in keys if key not in kinds["key"] + kinds["inbox"]]
    if how == "flush":
        admin.script_flush()
    for key in kinds[what]:
        if how == "SET":
            client.execute_command("SET", key, value)
        elif how in ("list", "times"):  # at once, because the sidecars write these keys
            batch = admin.pipeline(transaction=True).delete(key)
            (batch.rpush(key, value) if how == "list" else batch.zadd(key, {value: 1.0})).execute()


@pytest.fixture
def sides(guarded_redis: GuardedRedis) -> Iterator[list[Side]]:
    both = [Side(guarded_redis.url) for _ in range(2)]
    yield both
    for side in both:
        side.close()


BIGGEST = records.RECORD.pack(
    *(b"sidecar.", b"turn....", bytes(16), bytes(16), 2**32 - 1), *(time.time(), 1.0, 0.0, 2**32 - 1), *(500.0, 0.0)
)


@example([("SET", "turns", BIGGEST)], 1)
@example([("SET", "turns", bytes(3))], 2)
@example([("list", "key", b"")], 3)
@example([("SET", "key", b"short"), ("list", "inbox", b"")], 4)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(poison, min_size=1, max_size=3), number=st.integers())
def test_turns_are_shared_and_numbers_stay_finite_despite_any_value_of_an_engine(
    guarded_redis: GuardedRedis,
    sides: list[Side],
    caplog: pytest.LogCaptureFixture,
    written: list[tuple[str, str, bytes]],
    number: int,
) -> None:
    asyncio.run(_shared_after(guarded_redis, *sides, written, f"{number}"))
    assert "bug in" not in caplog.text


async def _shared_after(
    guarded_redis: GuardedRedis, a: Side, b: Side, written: list[tuple[str, str, bytes]], name: str
) -> None:
    with contextlib.closing(guarded_redis.client()) as admin, contextlib.closing(engine(guarded_redis)) as client:
        await eventually(lambda: a.shared.key is not None and a.shared.key == b.shared.key)
        await a.ask(name, 500)
        for how, what, value in written:
            spoil(admin, client, how, what, value)
        poisoned = await b.ask(name, 700)
        assert poisoned.arrival.facts.mean_gap != math.inf and poisoned.arrival.facts.growth_tokens != math.inf
        await b.ask(name, 800)
        admin.delete(*(key for key in admin.scan_iter("lpc:seen:*") if b":to:" not in key and key != b"lpc:seen:key"))
    tries = iter(range(100))

    async def shared() -> bool:
        """Whether the second sidecar continues what the first one began."""
        fresh = f"{name} {next(tries)} {time.monotonic()}"
        await a.ask(fresh, 500)
        return bool((await b.ask(fresh, 700)).arrival.facts.growth_tokens == 200)

    await eventually(shared)
    for side in (a, b):
        assert side.bugs() == 0 and side.shared.key is not None
        side.model.refit(time.time())
        assert math.isfinite(side.model.head_share) and not math.isinf(side.model.quality.nats)
        for metric in side.metrics.registry.collect():
            assert all(math.isfinite(sample.value) for sample in metric.samples if metric.name != "lpc_return_model_nats")


BLOCKS = [BlockHash(bytes([n]) * 32) for n in range(1, 9)]
scores = st.sampled_from(
    ("inf", "-inf", "1e308", "-1", "0", "0.5", str(2**53), str(2**53 - 1), str(-(2**53)))
) | st.floats().map(str)
scores |= st.integers(-(2**53), 2**53).map(str) | st.integers(-400, 400).map(lambda s: str(oldest(time.time() + s) + 12_345))


@example(["SET"])
@example(["list"])
@example([str(2**53)])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(st.sampled_from(("SET", "list")) | scores, min_size=1, max_size=3))
def test_claims_are_pooled_and_plausible_despite_any_value_of_an_engine(
    guarded_redis: GuardedRedis, written: list[str]
) -> None:
    """What is written by hand may be a claim. Then it counts until AHEAD_S after the clock, and as that of its conversation."""
    namespace = Namespace("sha256", "0", 16, "a-model")
    one, other = (RedisStore(Connection(guarded_redis.url), namespace, shards=2) for _ in range(2))
    with contextlib.closing(guarded_redis.client()) as admin, contextlib.closing(one), contextlib.closing(other):
        admin.flushall()
        at = time.time() - START
        recorded_turn(one, 1, BLOCKS, at)
        assert one.flush()
        for value in written:
            for key in admin.keys("lpc:*:claims"):
                if value in ("SET", "list"):
                    admin.delete(key)
                    admin.set(key, "x") if value == "SET" else admin.rpush(key, "x")
                elif admin.type(key) == b"zset" and value != "nan":
                    admin.zadd(key, dict.fromkeys(admin.zrange(key, 0, -1), float(value)))
            other.flush()
            now = time.time()
            for claim in other.claims(BLOCKS).values():
                assert claim.at <= now + AHEAD_S + 1 and -8.0 <= claim.log_odds < 8.0 and 0 <= claim.conversation < TAGS
                assert 1 <= claim.holders <= MOST_HOLDERS and 1 <= claim.turn <= MOST_TURNS
            other.trim(now)

        def pooled() -> bool:
            recorded_turn(one, 1, BLOCKS, at)
            other.record(BLOCKS, turned(2, at + 1.0, 7.0), GAP_S)
            return one.flush() and other.flush() and set(other.claims(BLOCKS)) == set(BLOCKS)

        until(pooled)
        latest = max(claim.at for claim in other.claims(BLOCKS).values())
        assert at + START - 1 <= latest <= time.time() + AHEAD_S + 1
        assert one.failures == other.failures == 0
