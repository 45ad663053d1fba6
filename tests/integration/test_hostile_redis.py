"""Forged and restored values in the Redis of the response caches have no effect. A real Redis."""

import contextlib
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from predictor_service.errors import StartError
from response_cache.keys.canonical import EntryId, Namer, Scope
from response_cache.semantic.evidence import NO_RECORD
from response_cache.semantic.evidence_file import EvidenceError, Verdicts
from response_cache.semantic.gate import Decision, Gate
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store.scopes import ScopeSettings
from response_cache.store.shared_evidence import SharedEvidence
from testing.processes import RedisServer
from tests.integration.response_cache.test_cache import Make, ask, fill, make
from tests.integration.response_cache.test_service import serve_caches
from tests.integration.response_cache.test_shared_evidence import labels_from_before, misses
from tests.metric_values import counted
from tests.response_cache import Caches, GivenVectors, answer, asked

__all__ = ["make"]

SCOPE = Scope(b"s" * 16)
NAMER = Namer(b"k" * 32)
Share = Callable[..., SharedEvidence]


def values(server: RedisServer, pattern: str) -> dict[bytes, bytes]:
    with contextlib.closing(server.client()) as client:
        return {key: client.get(key) for key in client.scan_iter(pattern)}


def write(server: RedisServer, changes: dict[bytes, bytes]) -> None:
    with contextlib.closing(server.client()) as client:
        for key, value in changes.items():
            client.set(key, value)


def forged(caches: Caches) -> float:
    return counted(caches.metrics.forged.labels("generation"))


def counting(caches: Caches) -> Caches:
    """Count forged generations, as a sidecar does."""
    caches.store._forged = caches.metrics.forged.labels("generation").inc
    return caches


async def test_a_restored_generation_makes_no_answer_findable(make: Make, redis_server: RedisServer) -> None:
    caches = counting(make())
    await fill(caches, asked("Is it?"))
    await caches.upkeep.invalidate("a", scope="faq")
    await fill(caches, asked("Is it?"), answer("Old."))
    before = values(redis_server, "lpc:rc:*:[eg]*")
    await caches.upkeep.invalidate("a", scope="faq")
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)
    write(redis_server, before)
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)
    assert forged(caches) == 1
    # New answers can be stored.
    await caches.cache.store("a", asked("Is it?"), answer("New.", engine_s=-1.0))
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, CacheHit) and hit.answer == answer("New.", engine_s=-1.0)


@pytest.mark.parametrize("value", [b"5", b"5:AAAAAAAAAAAAAAAAAAAAAA", b"", b"9" * 400, b"\xff:x", b"-1:x"])
async def test_a_forged_generation_is_treated_as_absent(make: Make, redis_server: RedisServer, value: bytes) -> None:
    caches = counting(make())
    await fill(caches, asked("Is it?"))
    (key,) = values(redis_server, "lpc:rc:*:g")
    for one in (caches, counting(make())):  # one that knew the generation, and one that was started since
        write(redis_server, {key: value})
        assert isinstance(await ask(one, asked("Is it?")), CacheMiss)
        await one.cache.store("a", asked("Is it?"), answer("New."))
        assert isinstance(await ask(one, asked("Is it?")), CacheHit)
        assert forged(one) == 1


COUNTS = [b"x", b"", b"1e9", b"9" * 15, b"9" * 400, b"-" + b"9" * 18, b"9223372036854775807", b"nan", b"1.5", b"\xff\x00"]


@pytest.mark.parametrize("count", COUNTS)
async def test_a_forged_count_of_bytes_does_not_end_storing(make: Make, redis_server: RedisServer, count: bytes) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    for pattern in ("lpc:rc:*:b", "lpc:rc:*:b:*"):
        write(redis_server, dict.fromkeys(values(redis_server, pattern), count))
    for _ in range(2):  # a forged count may evict the first
        stored = await caches.cache.store("a", asked("Are you?"), answer("Yes.", engine_s=-1.0))
    assert stored.refusal is None
    assert isinstance(await ask(caches, asked("Are you?")), CacheHit)


@pytest.mark.parametrize("member", [b"", b":", b"a:b:c", b"\xff", b"a:" + b"9" * 30, b"a:-1", b":" * 1000])
@pytest.mark.parametrize("until", [0.0, math.inf, -math.inf])
async def test_a_forged_member_of_the_limits_does_not_end_storing(
    make: Make, redis_server: RedisServer, member: bytes, until: float
) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    with contextlib.closing(redis_server.client()) as client:
        for pattern in ("lpc:rc:*:z", "lpc:rc:*:z:*"):
            for key in client.scan_iter(pattern):
                client.zadd(key, {member: until})
    stored = await caches.cache.store("a", asked("Are you?"), answer("Yes.", engine_s=-1.0))
    assert stored.refusal is None
    assert isinstance(await ask(caches, asked("Are you?")), CacheHit)


VALUES: dict[str, Callable[[Any, bytes], object]] = {
    "string": lambda client, key: client.set(key, b"x" * 30),
    "list": lambda client, key: client.rpush(key, b"x"),
    "hash": lambda client, key: client.hset(key, b"x", b"y"),
    "set": lambda client, key: client.sadd(key, b"x"),
    "zset": lambda client, key: client.zadd(key, {b"x": math.inf}),
    "stream": lambda client, key: client.xadd(key, {b"a": b"x"}, id=LAST_ID),
}
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


@pytest.mark.parametrize("kind", ["b", "e", "f", "g", "i", "q", "s", "v", "x", "z"])
@pytest.mark.parametrize("value", VALUES)
async def test_no_value_of_any_type_ends_storing(make: Make, redis_server: RedisServer, kind: str, value: str) -> None:
    scopes = {"faq": ScopeSettings(mode="shadow")}
    vector = np.ones(8, np.float32)
    one = make(scopes, embedder=GivenVectors({}, vector), flight_s=0.001)
    await fill(one, asked("Is it?"))
    await ask(one, asked("Are you?"))
    with contextlib.closing(redis_server.client()) as client:
        keys = [key for pattern in (kind, f"{kind}:*") for key in client.scan_iter(f"lpc:rc:*:{pattern}")]
        if not keys:
            (limits,) = client.scan_iter("lpc:rc:*:z")
            keys = [limits[:-1] + kind.encode()]
        for key in keys:
            client.delete(key)
            VALUES[value](client, key)
    for caches in (one, make(scopes, embedder=GivenVectors({}, vector), flight_s=0.001)):
        refusals = []
        for question in ("Are you?", "Is it?"):
            for _ in range(2):  # the first may find out
                await ask(caches, asked(question))
                stored = await caches.cache.store("a", asked(question), answer("Yes.", engine_s=-1.0))
            refusals.append(stored.refusal)
            assert isinstance(await ask(caches, asked(question)), CacheHit)
        assert refusals == [None, None]


@pytest.mark.parametrize("kind", ["e:*", "g", "t:*"])
async def test_a_value_of_many_megabytes_is_not_read(make: Make, redis_server: RedisServer, kind: str) -> None:
    caches = make({"faq": ScopeSettings(mode="shadow")}, embedder=GivenVectors({}, np.ones(8, np.float32)))
    await fill(caches, asked("Is it?"))
    await ask(caches, asked("Are you?"))
    await caches.semantic.sync(10.0)
    with contextlib.closing(redis_server.client()) as client:
        (key,) = client.scan_iter(f"lpc:rc:*:{kind}")
        client.set(key, b"x" * (64 << 20))
        before = client.info("stats")["total_net_output_bytes"]
        for now in (20.0, 30.0):
            await ask(caches, asked("Is it?"))
            await caches.cache.store("a", asked("Is it?"), answer(engine_s=-1.0))
            await ask(caches, asked("Are they?"))
            await caches.semantic.sync(now)
        assert client.info("stats")["total_net_output_bytes"] - before < 1 << 20
        assert client.strlen(key) < 1 << 20
    assert isinstance(await ask(caches, asked("Is it?")), CacheHit)


async def test_an_index_follows_a_stream_that_has_begun_again(make: Make, redis_server: RedisServer) -> None:
    scopes = {"faq": ScopeSettings(mode="serve")}
    near, far = np.eye(2, 8, dtype=np.float32)
    vectors = {"Is it?": near, "Is it so?": near, "Are you?": far, "Are you so?": far}
    one, other = (make(scopes, embedder=GivenVectors(vectors)) for _ in range(2))
    await fill(one, asked("Is it?"))
    for now in (1.0, 2.0):
        with contextlib.closing(redis_server.client()) as client:
            (stream,) = client.scan_iter("lpc:rc:*:x")
            if client.xinfo_stream(stream)["last-generated-id"] != LAST_ID.encode():
                client.xadd(stream, {"d": "x"}, id=LAST_ID)
        await ask(other, asked("What?"))
        await other.semantic.sync(now)
    await fill(one, asked("Are you?"), answer("Yes."))
    await other.semantic.sync(3.0)
    hit = await ask(other, asked("Are you so?"))
    assert isinstance(hit, CacheHit) and hit.source == "semantic" and hit.answer == answer("Yes.")


async def test_members_without_an_entry_evict_nothing(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(max_entries=3, tenant_entries=3)})
    await fill(caches, asked("Is it?"))
    with contextlib.closing(redis_server.client()) as client:
        for key in [key for pattern in ("z", "z:*") for key in client.scan_iter(f"lpc:rc:*:{pattern}")]:
            ((real, _),) = client.zrange(key, 0, 0, withscores=True)
            forged = [b"ghost:5", b"ghost", b":", real + b"1", real.partition(b":")[0] + b":1"]
            client.zadd(key, {member: until for member in forged for until in (math.inf, 4e9)})
    questions = ["Is it?", "Are you?", "Do they?"]
    for question in questions[1:]:
        await fill(caches, asked(question))
    found = [await ask(caches, asked(question)) for question in questions]
    assert [type(one) for one in found] == [CacheHit, CacheHit, CacheHit]


@pytest.mark.parametrize("life_ms", [None, 10**12])
@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_a_forged_flight_makes_nobody_wait(make: Make, redis_server: RedisServer, life_ms: int | None, mode: Any) -> None:
    caches = make({"faq": ScopeSettings(mode=mode)})
    await ask(caches, asked("Is it?"))
    (flight,) = values(redis_server, "lpc:rc:*:f:*")
    for content in (b"x", b"-"):
        with contextlib.closing(redis_server.client()) as client:
            client.set(flight, content, px=life_ms)
        miss = await ask(caches, asked("Is it?"), wait_s=60.0)
        assert isinstance(miss, CacheMiss) and miss.reason == "cold" and miss.flight


async def test_a_forged_invalidation_ends_storing_for_an_hour_at_most(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    (generation,) = values(redis_server, "lpc:rc:*:g")
    with contextlib.closing(redis_server.client()) as client:
        client.set(generation[:-1] + b"i", 1, px=10**12)
    assert (await caches.cache.store("a", asked("Are you?"), answer())).refusal is None


async def test_the_generation_of_another_scope_is_treated_as_absent(make: Make, redis_server: RedisServer) -> None:
    caches = counting(make())
    await fill(caches, asked("Is it?", scope="one"))
    await fill(caches, asked("Is it?", scope="two"))
    (one, first), (two, second) = values(redis_server, "lpc:rc:*:g").items()
    assert first != second
    write(redis_server, {one: second, two: first})
    assert {type(await ask(caches, asked("Is it?", scope=name))) for name in ("one", "two")} == {CacheMiss}
    assert forged(caches) == 2


@pytest.fixture
async def share(redis_server: RedisServer) -> AsyncIterator[Share]:
    reach = RedisReach(Connection(redis_server.url, timeout_s=5.0), "of the test")

    def one(**fields: Any) -> SharedEvidence:
        return SharedEvidence(reach, NAMER, lambda: "encoder", **fields)

    yield one
    await reach.close()


async def exchange(shared: SharedEvidence, gate: Gate) -> None:
    pending = gate.pending()
    gate.merge(await shared.exchange(SCOPE, "", pending), pending)


async def test_forged_evidence_opens_no_scope(share: Share, redis_server: RedisServer) -> None:
    count = 0

    def note() -> None:
        nonlocal count
        count += 1

    open_one = Gate(draw=random.Random(1))
    misses(open_one, 500, "right")
    await exchange(share(), open_one)
    assert open_one.threshold is not None
    ((key, good),) = values(redis_server, "lpc:rc:*:t:*").items()
    fields = json.loads(good[16:])
    with contextlib.closing(redis_server.client()) as client:
        for forge in (
            lambda: client.set(key, good[:16] + json.dumps({**fields, "served": 0}).encode()),
            lambda: client.set(key, bytes(16) + good[16:]),
            lambda: client.set(key, good[16:]),
            lambda: client.set(key, b"x"),
            lambda: client.hset(key, mapping={name: str(value) for name, value in fields.items()}),
        ):
            client.delete(key)
            forge()
            gate = Gate()
            await exchange(share(forged=note), gate)
            assert gate.threshold is None and gate.evidence.labels == 0
        assert count == 5
        client.set(key, good)
        for other in (key.replace(b":t:encoder", b":t:encoder:judge"), key):
            client.set(other, good)
        gate = Gate()
        pending = gate.pending()
        gate.merge(await share(forged=note).exchange(SCOPE, "judge", pending), pending)
        assert gate.threshold is None and count == 6, "evidence of another place was believed"
        await exchange(share(forged=note), gate := Gate())
        assert gate.threshold is not None and count == 6


@pytest.mark.parametrize("count", ["x", "", "nan", "inf", "-1000", "0.5", "1e300", "4000000000000000000", "9" * 30, "9" * 400])
async def test_a_forged_count_of_a_cluster_does_not_reach_the_evidence(
    share: Share, redis_server: RedisServer, count: str
) -> None:
    shared, gate = share(), Gate()
    candidate, entry = EntryId(b"c" * 16), EntryId(b"e" * 16)
    assert await shared.label(SCOPE, "", candidate, 0.999, same=True, joins=entry) == NO_RECORD
    with contextlib.closing(redis_server.client()) as client:
        (clusters,) = client.scan_iter("lpc:rc:*:k:*")
        for field in client.hkeys(clusters):
            client.hset(clusters, field, count)
    for number in (0, 1):
        earlier = await shared.label(SCOPE, "", candidate, 0.999, same=True)
        assert earlier == ((number, 0), *NO_RECORD[1:])
        gate.learn(0.999, same=True, decision=Decision.AUDIT, earlier=earlier)
        await exchange(shared, gate)
    await exchange(shared, later := Gate())
    assert later.evidence.labels == 2


@pytest.mark.parametrize("value", VALUES)
async def test_clusters_of_another_type_begin_again(share: Share, redis_server: RedisServer, value: str) -> None:
    shared = share()
    await shared.label(SCOPE, "", EntryId(b"c" * 16), 0.999, same=True)
    with contextlib.closing(redis_server.client()) as client:
        (clusters,) = client.scan_iter("lpc:rc:*:k:*")
        for key in (clusters, clusters + b":old"):
            client.delete(key)
            VALUES[value](client, key)
    found = [await shared.label(SCOPE, "", EntryId(b"c" * 16), 0.999, same=True) for _ in range(2)]
    assert found == [NO_RECORD, ((1, 0), *NO_RECORD[1:])]


async def test_restored_evidence_from_before_a_reset_is_ignored(
    share: Share, redis_server: RedisServer, tmp_path: Path
) -> None:
    shared = share(verdicts=Verdicts(tmp_path / "verdicts"))
    gate = Gate(draw=random.Random(1))
    misses(gate, 500, "right")
    await exchange(shared, gate)
    before = values(redis_server, "lpc:rc:*:t:*")
    for _ in range(3):
        gate.learn(0.999, same=False, decision=Decision.AUDIT)
    await exchange(shared, gate)
    assert gate.threshold is None
    write(redis_server, before)
    await exchange(shared, gate)
    assert gate.threshold is None
    write(redis_server, before)
    after_restart = Gate()
    await exchange(share(verdicts=Verdicts(tmp_path / "verdicts")), after_restart)
    assert after_restart.threshold is None and after_restart.evidence.labels == 0


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_contradicted_calibration_stays_void_after_redis_was_emptied(
    share: Share, redis_server: RedisServer, tmp_path: Path, restarted: bool
) -> None:
    shared = share(verdicts=Verdicts(tmp_path / "verdicts"))
    gate = Gate(start=labels_from_before(), draw=random.Random(1))
    await exchange(shared, gate)
    assert gate.threshold is not None
    for _ in range(3):
        gate.learn(0.999, same=False, decision=Decision.AUDIT)
    await exchange(shared, gate)
    with contextlib.closing(redis_server.client()) as client:
        client.flushall()
    later = Gate(start=labels_from_before())
    await exchange(share(verdicts=Verdicts(tmp_path / "verdicts")) if restarted else shared, later)
    assert later.threshold is None
    newer = labels_from_before()
    newer.apply(newer.lookup(0.999))
    measured_again = Gate(start=newer)
    await exchange(shared, measured_again)
    assert measured_again.threshold is not None


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"a": 5}', '{"a": {"b": "c"}}', '{"a": {"b": 1e999}}', '{"a": {"b": NaN}}', '{"a": {"b": -1}}'),
        *('{"a": {"b": 1e30}}', '{"a": {"b": true}}', '{"a": {"b": 1' + 50 * "0" + "}}", 100_000 * "["),
    ],
)
def test_an_invalid_file_of_verdicts_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "verdicts").write_text(content)
    with pytest.raises(EvidenceError, match="LPC_STATE"):
        Verdicts(tmp_path / "verdicts")
    assert (tmp_path / "verdicts").read_text() == content


async def test_a_sidecar_that_cannot_write_verdicts_does_not_start(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    (tmp_path / "cache-verdicts.json").mkdir()
    scopes: Any = {"faq": {"mode": "serve"}}
    with pytest.raises(StartError, match="LPC_STATE"):
        async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes=scopes, state=tmp_path):
            pass
