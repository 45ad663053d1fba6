"""A Redis in reach, asked on an event loop: a connection that the server closed is not an outage, a silent server is."""

import asyncio
import contextlib

import pytest

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import CONNECTIONS, RedisAway, RedisReach
from testing.processes import RedisServer
from tests.eventually import eventually


def reach(url: str, timeout_s: float = 5.0) -> RedisReach:
    return RedisReach(Connection(url, timeout_s=timeout_s), "of the test")


def clients_of(server: RedisServer) -> int:
    with contextlib.closing(server.client()) as client:
        return len(client.client_list())


async def test_an_idle_connection_that_the_server_closed_is_opened_again(redis_server: RedisServer) -> None:
    redis = reach(redis_server.url)
    with contextlib.closing(redis_server.client()) as client:
        client.set("k", "v")
        assert await redis.read("GET", "k") == b"v"
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await redis.read("GET", "k") == b"v"
    assert not redis.away
    await redis.close()


async def test_more_readers_than_connections_all_get_their_own_answer(redis_server: RedisServer) -> None:
    redis = reach(redis_server.url)
    with contextlib.closing(redis_server.client()) as client:
        client.mset({f"k{n}": n for n in range(300)})
    found = await asyncio.gather(*(redis.read("GET", f"k{n}") for n in range(300)))
    assert [int(value) for value in found] == list(range(300))
    assert clients_of(redis_server) <= CONNECTIONS + 10
    await redis.close()


async def test_an_answer_that_came_too_late_is_not_the_next_one_s(redis_server: RedisServer) -> None:
    redis = reach(redis_server.url, timeout_s=0.2)
    with contextlib.closing(redis_server.client()) as client:
        client.mset({"first": 1, "second": 2})
        assert await redis.read("GET", "first") == b"1"
        client.execute_command("CLIENT", "PAUSE", 500)
        with pytest.raises(RedisAway):
            await redis.read("GET", "first")

    async def second() -> object:
        with contextlib.suppress(RedisAway):
            return await redis.read("GET", "second")
        return None

    assert await eventually(second) == b"2"
    assert not redis.away
    await redis.close()


async def test_a_cancelled_call_takes_no_answer_from_the_next(redis_server: RedisServer) -> None:
    redis = reach(redis_server.url)
    with contextlib.closing(redis_server.client()) as client:
        client.mset({"first": 1, "second": 2})
        assert await redis.read("GET", "first") == b"1"
        client.execute_command("CLIENT", "PAUSE", 200)
        asking = asyncio.create_task(redis.read("GET", "first"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert await redis.read("GET", "second") == b"2"
    await redis.close()


async def test_a_server_that_is_not_there_is_away() -> None:
    redis = reach("redis://127.0.0.1:1/0")
    with pytest.raises(RedisAway):
        await redis.read("GET", "k")
    assert redis.away
    await redis.close()
