"""A Redis that refuses single commands, because it is full or has keys of another type, affects only those commands."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisAway, RedisReach, RedisRefused
from response_cache.keys.canonical import Scope
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store import layout
from testing.processes import RedisServer
from tests.deploy.deployed_caches import own_address
from tests.response_cache import Caches, answer, asked


@contextlib.contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """Leave the server without room: it refuses every command that may take memory."""
    with contextlib.closing(server.client()) as admin:
        admin.config_set("maxmemory", "1")
        try:
            yield
        finally:
            admin.config_set("maxmemory", "0")


def reach(server: RedisServer, refused: Callable[[str], object] = lambda _cause: None) -> RedisReach:
    return RedisReach(Connection(server.url, timeout_s=5.0), "of the test", refused)


@contextlib.asynccontextmanager
async def caches_of(server: RedisServer, folder: Path, **fields: object):  # type: ignore[no-untyped-def]
    caches = Caches(server.url, folder, **fields)  # type: ignore[arg-type]
    try:
        yield caches
    finally:
        await caches.close()


async def fill(caches: Caches, request, client: str = "a"):  # type: ignore[no-untyped-def]
    miss = await caches.cache.lookup(client, request)
    assert isinstance(miss, CacheMiss)
    return await caches.cache.store(client, request, answer(), flight=miss.flight)


def place(caches: Caches, request, *parts: str, client: str = "a") -> str:  # type: ignore[no-untyped-def]
    """Return the key of a part of a request's scope."""
    return layout.key(caches.store.namer.scope(client, request.scope), *parts)


def entry_key(caches: Caches, request, part: str = "e", client: str = "a") -> str:  # type: ignore[no-untyped-def]
    names = caches.store.namer.names(client, request)
    return layout.key(names.scope, part, layout.text(names.exact))


async def write(client: redis.asyncio.Redis) -> object:
    return await client.set("k", "new")


async def test_a_full_redis_refuses_a_write_and_answers_the_next_read(redis_server: RedisServer) -> None:
    causes: list[str] = []
    asks = reach(redis_server, causes.append)
    await asks.ask(lambda client: client.set("k", "v"))
    with full(redis_server):
        with pytest.raises(RedisRefused):
            await asks.ask(write)
        assert not asks.away
        assert await asks.read("GET", "k") == b"v"
    assert causes == ["OOM"]
    await asks.close()


async def test_a_key_of_the_wrong_type_fails_alone(redis_server: RedisServer) -> None:
    causes: list[str] = []
    asks = reach(redis_server, causes.append)
    await asks.ask(lambda client: client.set("good", "v"))
    await asks.ask(lambda client: client.rpush("bad", "v"))
    script = "return redis.call('GET', KEYS[1])"
    questions: list[Callable[[], Awaitable[object]]] = [
        lambda: asks.read("GET", "bad"),
        lambda: asks.ask(lambda client: client.eval(script, 1, "bad")),
    ]
    for question in questions:
        with pytest.raises(RedisRefused):
            await question()
        assert await asks.read("GET", "good") == b"v"
    assert causes == ["WRONGTYPE", "WRONGTYPE"]
    await asks.close()


async def test_a_refusal_is_logged_once_per_cause_without_the_command(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    asks = reach(redis_server)
    await asks.ask(lambda client: client.rpush("secret-key", "v"))
    with caplog.at_level(logging.INFO), full(redis_server):
        for _ in range(3):
            for question in (write, lambda client: client.get("secret-key")):
                with pytest.raises(RedisRefused):
                    await asks.ask(question)
    await asks.close()
    assert len(caplog.records) == 2
    assert "maxmemory" in caplog.text and "a key of another type" in caplog.text
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.exceptions.ClusterDownError("The cluster is down"),
        redis.exceptions.MasterDownError("Link with MASTER is down"),
        redis.exceptions.AuthenticationError("Authentication required."),
        redis.exceptions.InvalidResponse("Protocol Error"),
        ConnectionResetError(),
    ],
)
async def test_a_server_that_serves_no_command_counts_as_unavailable(redis_server: RedisServer, error: Exception) -> None:
    async def fails(client: object) -> None:
        raise error

    asks = reach(redis_server)
    with pytest.raises(RedisAway):
        await asks.ask(fails)
    assert asks.away
    await asks.close()


async def test_with_a_full_redis_stored_answers_are_served_and_new_questions_are_misses(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    async with caches_of(redis_server, tmp_path) as caches:
        await fill(caches, asked("Known?"))
        with full(redis_server):
            for _ in range(3):
                miss = await caches.cache.lookup("a", asked("New?"))
                assert isinstance(miss, CacheMiss) and miss.reason == "cold"
                stored = await caches.cache.store("a", asked("New?"), answer(), flight=miss.flight)
                assert stored.refusal == "unavailable"
                assert isinstance(await caches.cache.lookup("a", asked("Known?")), CacheHit)
        await fill(caches, asked("New?"))
        assert isinstance(await caches.cache.lookup("a", asked("New?")), CacheHit)


@pytest.mark.parametrize("part", ["g", "z", "b", "i"])
async def test_a_key_of_the_wrong_type_affects_only_its_scope(redis_server: RedisServer, tmp_path: Path, part: str) -> None:
    async with caches_of(redis_server, tmp_path) as caches:
        await fill(caches, asked("Known?", scope="other"))
        broken = asked("Known?", scope="faq")
        with contextlib.closing(redis_server.client()) as admin:
            admin.delete(place(caches, broken, part))
            admin.xadd(place(caches, broken, part), {"not": "ours"})
        for _ in range(3):
            found = await caches.cache.lookup("a", broken)
            if isinstance(found, CacheMiss):
                await caches.cache.store("a", broken, answer(), flight=found.flight)
            assert isinstance(await caches.cache.lookup("a", asked("Known?", scope="other")), CacheHit)
        assert isinstance(found, CacheHit)
        with contextlib.closing(redis_server.client()) as admin:
            (counted,) = admin.zrange(place(caches, broken, "z"), 0, -1)
            size = admin.get(place(caches, broken, "b"))
        assert counted.rpartition(b":")[2] == size, "an entry that does not count towards the scope's bounds was stored"
        await fill(caches, asked("New?", scope="other"))
        assert isinstance(await caches.cache.lookup("a", asked("New?", scope="other")), CacheHit)


@pytest.mark.parametrize("part", ["e", "f"])
async def test_a_key_of_the_wrong_type_affects_only_its_question(redis_server: RedisServer, tmp_path: Path, part: str) -> None:
    async with caches_of(redis_server, tmp_path) as caches:
        await fill(caches, asked("Known?"))
        with contextlib.closing(redis_server.client()) as admin:
            admin.rpush(entry_key(caches, asked("Broken?"), part), "not ours")
        async with asyncio.timeout(20):
            miss = await caches.cache.lookup("a", asked("Broken?"))
            assert isinstance(miss, CacheMiss)
            await caches.cache.lookup("a", asked("Broken?"), wait_s=0.2)
        assert isinstance(await caches.cache.lookup("a", asked("Known?")), CacheHit)
        await fill(caches, asked("New?"))
        assert isinstance(await caches.cache.lookup("a", asked("New?")), CacheHit)


async def test_an_entry_of_the_wrong_type_does_not_stop_the_deletion_of_the_others(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    async with caches_of(redis_server, tmp_path) as caches:
        for question in ("One?", "Two?", "Three?"):
            await fill(caches, asked(question))
        scope: Scope = caches.store.namer.scope("a", "faq")
        with contextlib.closing(redis_server.client()) as admin:
            key = entry_key(caches, asked("One?"))
            admin.delete(key)
            admin.rpush(key, "not ours")
            assert await caches.store.erase(scope) == 3
            assert not admin.keys("lpc:rc:*:e:*")


@pytest.mark.parametrize(
    ("options", "login", "says"),
    [
        ({"requirepass": "right"}, "", "requires a password"),
        ({"requirepass": "right"}, ":wr0ng@", "refuses this user or password"),
        ({"bind": "*", "protected_mode": "yes"}, "", "runs in protected mode"),
    ],
)
async def test_the_log_names_the_reason_if_the_server_refuses_the_login(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, str], login: str, says: str
) -> None:
    address = own_address() if "bind" in options else "127.0.0.1"
    if address is None:
        pytest.skip("this machine has no address but its own")
    with RedisServer(tmp_path, **options) as server:
        asks = RedisReach(Connection(f"redis://{login}{address}:{server.port}/0"), "of the test")
        with pytest.raises(RedisAway):
            await asks.read("GET", "k")
        await asks.close()
    assert says in caplog.text and "wr0ng" not in caplog.text
