"""The response caches on a real Redis Cluster: all keys of a scope are in one slot, and scopes on several nodes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from response_cache.service.lookup import Lookup
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store import layout
from response_cache.store.scopes import ScopeSettings
from response_cache.store.vectors import Vector, seal
from testing.processes import RedisServer
from tests.redis_cluster import redis_cluster
from tests.response_cache import Caches, answer, asked

__all__ = ["redis_cluster"]
SCOPES = [f"scope{n}" for n in range(12)]


@pytest.fixture
async def caches(redis_cluster: list[RedisServer], tmp_path: Path) -> AsyncIterator[Caches]:
    made = Caches(
        redis_cluster[0].url,
        tmp_path,
        {"scope0": ScopeSettings(max_entries=3)},
        cluster=True,
    )
    yield made
    for node in redis_cluster:
        node.ask("FLUSHALL")
    await made.close()
    for node in redis_cluster:
        with contextlib.closing(node.client()) as client:
            assert not client.keys("lpc:rc:*")


async def fill(caches: Caches, text: str, scope: str) -> None:
    request = asked(text, scope=scope)
    miss = await caches.cache.lookup("a", request)
    assert isinstance(miss, CacheMiss) and miss.flight, miss
    assert (await caches.cache.store("a", request, answer(), flight=miss.flight)).refusal is None


async def test_scopes_are_spread_over_the_nodes(caches: Caches, redis_cluster: list[RedisServer]) -> None:
    for scope in SCOPES:
        await fill(caches, "Is it?", scope)
    for scope in SCOPES:
        assert isinstance(await caches.cache.lookup("a", asked("Is it?", scope=scope)), CacheHit)
    held = []
    for node in redis_cluster:
        with contextlib.closing(node.client()) as client:
            held.append(len(client.keys("lpc:rc:*:e:*")))
    assert sum(held) == len(SCOPES) and all(held)


async def test_equal_requests_at_two_sidecars_call_the_engine_once(
    caches: Caches, redis_cluster: list[RedisServer], tmp_path: Path
) -> None:
    other = Caches(redis_cluster[1].url, tmp_path, cluster=True)
    leader = await caches.cache.lookup("a", asked("Is it?"))
    assert isinstance(leader, CacheMiss)
    follower = asyncio.create_task(other.cache.lookup("a", asked("Is it?"), wait_s=20))
    await asyncio.sleep(0.1)
    await caches.cache.store("a", asked("Is it?"), answer(), flight=leader.flight)
    assert isinstance(await follower, CacheHit)
    await other.close()


async def test_vectors_and_their_changes_can_be_read(caches: Caches) -> None:
    async def vector(lookup: Lookup, _: float) -> bytes:
        names = lookup.names
        one = Vector(names.exact, names.partition or b"", 2e9, 7, b"\0" * 16)
        return seal(one, names.scope, caches.keys.current)

    caches.semantic.vector = vector  # type: ignore[assignment]
    await fill(caches, "Is it?", "scope1")
    vectors, scope = caches.vectors, caches.store.namer.scope("a", "scope1")
    position, generation = await vectors.position(scope)
    assert generation is not None
    await fill(caches, "And that?", "scope1")
    changes = await vectors.changes(scope, position, caches.keys.current)
    assert changes.complete and len(changes.added) == 1 and changes.generation == generation
    found = [one.entry async for batch in vectors.read(scope, caches.keys.current) for one in batch]
    assert len(found) == 2 and changes.added[0].entry in found


async def test_limits_invalidation_statistics_and_erasure_work_in_a_cluster(
    caches: Caches,
    redis_cluster: list[RedisServer],
) -> None:
    for n in range(6):
        caches.clock.now += 1
        await fill(caches, f"Is it {n}?", "scope0")
    await fill(caches, "Is it?", "scope1")
    stats = {one.scope: one for one in await caches.upkeep.stats("a", None)}
    assert {name: one.entries for name, one in stats.items()} == {"scope0": 3, "scope1": 1}
    assert await caches.upkeep.invalidate("a", scope="scope0", erase=True) == (True, 3)
    assert isinstance(await caches.cache.lookup("a", asked("Is it?", scope="scope1")), CacheHit)
    assert await caches.upkeep.invalidate("a", scope=None, erase=True) == (True, 1)
    for node in redis_cluster:
        with contextlib.closing(node.client()) as client:
            assert not client.keys("lpc:rc:*:e:*")


async def test_with_the_wrong_cluster_setting_lookups_miss_and_the_log_names_the_setting(
    redis_cluster: list[RedisServer], redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for url, cluster, advice in (
        (redis_cluster[0].url, False, ": set LPC_CACHE_REDIS_CLUSTER=true"),
        (redis_server.url, True, ": unset LPC_CACHE_REDIS_CLUSTER"),
    ):
        caplog.clear()
        caches = Caches(url, tmp_path, cluster=cluster)
        outcomes = [await caches.cache.lookup("a", asked("Is it?", scope=scope)) for scope in SCOPES]
        assert any(isinstance(one, CacheMiss) and one.reason == "unavailable" for one in outcomes)
        assert advice in caplog.text
        await caches.close()


@contextlib.contextmanager
def moving(nodes: list[RedisServer], key: str) -> Iterator[None]:
    """Move a key's slot half-way within the block: one of its keys is at the new node, so that scripts get TRYAGAIN."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(node.client())) for node in nodes]
        slot = clients[0].execute_command("CLUSTER KEYSLOT", key)
        held = [client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100) for client in clients]
        source = next(number for number, keys in enumerate(held) if keys)
        target = (source + 1) % len(nodes)
        names = [client.execute_command("CLUSTER MYID") for client in clients]
        clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
        clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
        move = ("MIGRATE", "127.0.0.1", nodes[target].port, "", 0, 5000, "KEYS")
        clients[source].execute_command(*move, *[one for one in held[source] if ":g" in str(one)])
        yield
        clients[source].execute_command(*move, *[one for one in held[source] if ":g" not in str(one)])
        for client in clients:
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])


async def test_a_slot_that_moves_costs_its_own_scope_and_is_not_a_bug(
    caches: Caches, redis_cluster: list[RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    for scope in SCOPES[:4]:
        await fill(caches, "Is it?", scope)
    requests = [asked("Is it?", scope=scope) for scope in SCOPES[:4]]
    with moving(redis_cluster, layout.key(caches.store.namer.scope("a", SCOPES[1]), "g")):
        outcome = await caches.cache.lookup("a", requests[1])
        assert isinstance(outcome, CacheMiss) and outcome.reason == "unavailable"
        for other in (requests[0], *requests[2:]):
            assert isinstance(await caches.cache.lookup("a", other), CacheHit)
        assert not caches.redis.away
    assert "moves slots between nodes" in caplog.text
    assert "bug" not in caplog.text and "ERROR" not in caplog.text
    for request in requests:
        assert isinstance(await caches.cache.lookup("a", request), CacheHit)
