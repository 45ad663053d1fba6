"""Limits of one client or tenant in the response caches: entries, bytes, scopes, invalidations. A real Redis."""

import contextlib
import secrets
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.integration.response_cache.test_cache import Make, ask, entries_in, fill, make
from tests.integration.response_cache.test_callers import bearer, tokens
from tests.integration.response_cache.test_service import request, response, serve_caches
from tests.metric_values import counted
from tests.response_cache import Caches, answer, asked

__all__ = ["make"]


def keys(server: RedisServer) -> set[bytes]:
    with contextlib.closing(server.client()) as client:
        return set(client.scan_iter("*"))


def evicted(caches: Caches, bound: str) -> float:
    return counted(caches.metrics.evictions.labels("faq", bound))


@pytest.mark.parametrize(
    ("bounds", "bound"),
    [({"tenant_entries": 5, "max_entries": 30}, "tenant_entries"), ({"tenant_mib": 1, "max_mib": 2}, "tenant_bytes")],
    ids=["entries", "bytes"],
)
async def test_a_tenant_that_stores_too_much_loses_its_own_answers(
    make: Make, redis_server: RedisServer, bounds: dict[str, int], bound: str
) -> None:
    caches = make({"faq": ScopeSettings(**bounds)})
    quiet = [asked(f"Is it {n}?", tenant="quiet") for n in range(5)]
    for one in quiet:
        await fill(caches, one)
    size = 25_000 if bound == "tenant_bytes" else 1
    for n in range(60):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?", tenant="loud"), answer(secrets.token_hex(size)))
    for one in quiet:
        assert isinstance(await ask(caches, one), CacheHit)
    left = [n for n in range(60) if isinstance(await ask(caches, asked(f"Is it {n}?", tenant="loud")), CacheHit)]
    assert left == list(range(60 - len(left), 60)) and left, "not the newest stayed"
    assert evicted(caches, bound) == 60 - len(left)
    assert evicted(caches, "entries") == evicted(caches, "bytes") == 0
    if bound == "tenant_entries":
        assert len(left) == 5
    else:
        assert sum(entries_in(redis_server).values()) < 1.1 * 2**20
    # Counters go down with what ends and what is stored again.
    caches.clock.now += 5 * 3600
    await fill(caches, asked("Is it 1?", tenant="loud"))
    await caches.cache.store("a", asked("Is it 1?", tenant="loud"), answer())
    with contextlib.closing(redis_server.client()) as client:
        lists = {key: client.zcard(key) for key in client.scan_iter("lpc:rc:*:z:*")}
    assert min(lists.values()) == 1


async def test_a_deleted_answer_that_is_stored_again_counts_once(make: Make) -> None:
    caches = make({"faq": ScopeSettings(tenant_entries=2)})
    for n in range(2):
        stored = await fill(caches, asked(f"Is it {n}?"), answer("Yes." * (n + 1)))
    await caches.upkeep.feedback("a", stored.ticket, wrong=False, drop=True)
    await fill(caches, asked("Is it 1?"), answer("Another one."))
    assert isinstance(await ask(caches, asked("Is it 1?")), CacheHit)


async def test_scopes_over_a_clients_limit_leave_nothing_in_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make(client_scopes=3)
    for n in range(3):
        await fill(caches, asked("Is it?", scope=f"s{n}"))
    before = keys(redis_server)
    for n in range(20):
        other = asked("Is it?", scope=f"other{n}")
        miss = await ask(caches, other)
        assert isinstance(miss, CacheMiss) and (miss.reason, miss.refusal, miss.flight) == ("refused", "scopes", b"")
        assert (await caches.cache.store("a", other, answer())).refusal == "scopes"
        assert isinstance(await ask(caches, asked("Is it?", scope=f"other{n}", parameters={"temperature": 1})), CacheMiss)
    assert keys(redis_server) - before == set(), "scopes without end"
    assert isinstance(await ask(caches, asked("Is it?", scope="s0")), CacheHit)
    assert isinstance(await ask(make(client_scopes=3), asked("Is it?", scope="s2")), CacheHit)
    await fill(caches, asked("Is it?", scope="other1"), client="b")
    assert isinstance(await ask(caches, asked("Is it?", scope="other1"), client="b"), CacheHit)


async def test_invalidated_unused_scopes_disappear_from_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    for n in range(10):
        await caches.upkeep.invalidate("a", scope=f"unused{n}")
    with contextlib.closing(redis_server.client()) as client:
        assert all(0 < client.ttl(key) <= 2 * 3600 for key in keys(redis_server))


async def test_the_cost_of_a_deletion_depends_on_the_scope_and_not_on_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    for n in range(3):
        await fill(caches, asked(f"Is it {n}?"))
    with contextlib.closing(redis_server.client()) as client:
        client.execute_command("CONFIG", "RESETSTAT")
        assert await caches.upkeep.invalidate("a", scope="faq", erase=True) == (True, 3)
        assert await caches.upkeep.invalidate("a", erase=True) == (True, 0)
        assert {"cmdstat_scan", "cmdstat_keys"} & set(client.info("commandstats")) == set()


async def test_invalidate_is_refused_above_its_rate_for_one_client_and_not_for_others(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = {"tokens": tokens(tmp_path, "loud", "quiet"), "cache_invalidations": 3}
    async with serve_caches(tiny_models, tmp_path, redis_server.url, **settings) as stub:
        await stub.Store(pb.StoreRequest(request=request(), response=response()), metadata=bearer("loud"))
        for _ in range(3):
            assert (await stub.Invalidate(pb.InvalidateRequest(scope="faq"), metadata=bearer("loud"))).done
        with pytest.raises(grpc.aio.AioRpcError, match="client loud may call Invalidate 3 times a minute") as caught:
            await stub.Invalidate(pb.InvalidateRequest(everything=True, erase=True), metadata=bearer("loud"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Invalidate(pb.InvalidateRequest(scope="faq"), metadata=bearer("quiet"))).done


PARTS = [f"client:loud:{n:064x}" for n in range(10)]
"""Tenants that a gateway names if one client sends ten values of an identity header."""


@pytest.mark.parametrize(
    ("bounds", "size"),
    [({"tenant_entries": 25, "max_entries": 100}, 1), ({"tenant_mib": 1, "max_mib": 4}, 25_000)],
    ids=["entries", "bytes"],
)
async def test_a_client_that_divides_itself_has_the_limits_of_one_tenant(
    make: Make, redis_server: RedisServer, bounds: dict[str, int], size: int
) -> None:
    caches = make({"faq": ScopeSettings(**bounds)})
    others = [asked(f"Is it {n}?", tenant=tenant) for n in range(10) for tenant in ("client:quiet", "client:loud:0", "key:x")]
    for one in others:
        await fill(caches, one)
    loud = [asked(f"Is it {n}?", tenant=part) for n in range(20) for part in PARTS]
    for one in loud:
        caches.clock.now += 1
        await fill(caches, one, answer(secrets.token_hex(size)))
    for one in others:
        if size > 1 or one.tenant != "client:loud:0":
            assert isinstance(await ask(caches, one), CacheHit), one.tenant
    with contextlib.closing(redis_server.client()) as client:
        (lists,) = [client.zcard(key) for key in client.scan_iter("lpc:rc:*:oz:*") if client.zcard(key) > 10]
        stored = sum(bytes_ for bytes_ in entries_in(redis_server).values())
    left = sum([isinstance(await ask(caches, one), CacheHit) for one in loud])
    assert 0 < left <= lists
    assert lists <= 25 if size == 1 else stored < 1.2 * 2**20
    assert evicted(caches, "entries") == evicted(caches, "bytes") == 0


async def test_the_largest_part_of_a_client_loses_its_answers_first(make: Make) -> None:
    caches = make({"faq": ScopeSettings(tenant_entries=60)})
    small = [asked(f"Is it {n}?", tenant="client:a:small") for n in range(5)]
    for one in small:
        await fill(caches, one)
    for n in range(100):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?", tenant=f"client:a:{n % 4}"))
    for one in small:
        assert isinstance(await ask(caches, one), CacheHit)


async def test_parts_of_a_client_that_expired_or_were_replaced_do_not_count(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(tenant_entries=20)})
    for n in range(10):
        await fill(caches, asked(f"Is it {n}?", tenant=f"client:a:{n}"))
    caches.clock.now += 5 * 3600
    for n in range(20):
        await fill(caches, asked(f"Is it {n}?", tenant="client:a"))
        await caches.cache.store("a", asked(f"Is it {n}?", tenant="client:a"), answer("Again."))
    found = [await ask(caches, asked(f"Is it {n}?", tenant="client:a")) for n in range(20)]
    assert all(isinstance(one, CacheHit) for one in found)
    with contextlib.closing(redis_server.client()) as client:
        (shares,) = client.scan_iter("lpc:rc:*:os:*")
        assert [round(20 * score) for _, score in client.zrange(shares, 0, -1, withscores=True)] == [20]
        assert all(client.pttl(key) > 0 for key in client.scan_iter("lpc:rc:*:o?:*"))
