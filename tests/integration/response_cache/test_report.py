"""Counts by day in Redis: many processes, restarts, other clients, damaged values."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.redis_reach import RedisAway
from response_cache.service.outcomes import CacheHit
from response_cache.store.days import KEPT_DAYS
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.response_cache import Caches, Clock, answer, asked

Make = Callable[..., Caches]
DAY = 86_400


@pytest.fixture
async def make(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Caches] = []

    def one(url: str = redis_server.url, **changes: Any) -> Caches:
        made.append(Caches(url, tmp_path, {"faq": ScopeSettings(normalised="serve")}, **changes))
        return made[-1]

    yield one
    for caches in made:
        await caches.close()


async def days(caches: Caches, client: str = "a", scope: str | None = None, number: int = 7) -> list[pb.DayOfScope]:
    found = await caches.upkeep.report(client, scope, number)
    assert found.known
    return list(found.days)


async def test_counts_of_processes_add_up_by_day_and_survive_them(make: Make) -> None:
    clock = Clock()
    one, other = make(clock=clock), make(clock=clock)
    await one.cache.lookup("a", asked("Is it?"))
    await one.cache.store("a", asked("Is it?"), answer(engine_s=1.25))
    hits = [await caches.cache.lookup("a", asked("Is it?")) for caches in (one, one, other)]
    assert isinstance(await other.cache.lookup("a", asked("is it!  ")), CacheHit)
    clock.now += DAY
    await one.cache.lookup("a", asked("Are you?"))
    await one.upkeep.feedback("a", hits[0].ticket, wrong=True, drop=False)  # type: ignore[union-attr]
    for caches in (one, other):
        await caches.days.share()
        await caches.days.share()
    first, second = await days(make(clock=clock))
    assert dict(first.lookups) == {"cold": 1, "exact": 3, "normalised": 1}
    assert (first.scope, first.prompt_tokens, first.completion_tokens, first.engine_s) == ("faq", 28, 20, 5.0)
    assert dict(second.lookups) == {"cold": 1} and (first.reported_wrong, second.reported_wrong) == (0, 1)
    assert first.day < second.day and len(await days(one, number=1)) == 1


async def test_a_client_sees_only_its_own_scopes_and_a_refused_scope_is_not_counted(
    make: Make, redis_server: RedisServer
) -> None:
    caches = make(client_scopes=2)
    for client in ("a", "b"):
        await caches.cache.lookup(client, asked("Is it?"))
    for i in range(50):
        await caches.cache.lookup("b", asked("Is it?", scope=f"scope {i}"))
    assert [one.scope for one in await days(caches)] == ["faq"]
    assert [one.scope for one in await days(caches, "b")] == ["faq", "scope 0"]
    assert await days(caches, "a", "scope 0") == [] == await days(caches, "c")
    with contextlib.closing(redis_server.client()) as client:
        keys = list(client.scan_iter("lpc:rc:*:d:*"))
        assert len(keys) == 3 and all(0 < client.ttl(key) <= KEPT_DAYS * DAY for key in keys)


@pytest.mark.parametrize("value", [b"x", b"-5", b"1e9", b"9" * 30, b"9" * 400, b"\xff", b" 7", b"0.5"])
async def test_damaged_counts_are_left_out_and_begin_again(make: Make, redis_server: RedisServer, value: bytes) -> None:
    caches = make()
    await caches.cache.lookup("a", asked("Is it?"))
    await days(caches)
    with contextlib.closing(redis_server.client()) as client:
        (key,) = client.scan_iter("lpc:rc:*:d:*")
        client.hset(key, mapping={"cold": value, "exact": value, "prompt_tokens": value, "unknown": 9})
        assert await days(caches) == []
        if value != b"-5":  # a number for Redis, too
            await caches.cache.lookup("a", asked("Are you?"))
            assert [dict(one.lookups) for one in await days(caches)] == [{"cold": 1}]
        client.delete(key)
        client.rpush(key, "another type")
        assert await days(caches) == []
        await caches.cache.lookup("a", asked("Are they?"))
        assert [dict(one.lookups) for one in await days(caches)] == [{"cold": 1}]


async def test_while_redis_is_away_the_report_says_so_and_waiting_counts_are_bounded(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = make("redis://127.0.0.1:1/0")
    monkeypatch.setattr("response_cache.store.days.REMEMBERED", 5)
    for i in range(20):
        caches.days.count(caches.store.namer.scope("a", f"{i}"), {"cold": 1})
    assert not (await caches.upkeep.report("a", None, 7)).known
    shared = 0
    for _ in range(20):
        try:
            await caches.days.share()
            break
        except RedisAway:
            shared += 1
    assert shared <= 5


async def test_an_answer_is_reported_wrong_once_and_only_by_who_got_it(make: Make) -> None:
    caches = make()
    tickets = []
    for tenant in ("one", "two"):
        await caches.cache.store("a", asked("Is it?", tenant=tenant), answer())
        hit = await caches.cache.lookup("a", asked("Is it?", tenant=tenant))
        assert isinstance(hit, CacheHit)
        tickets.append(hit.ticket)
    for _ in range(20):
        for ticket in (*tickets, b"", b"x" * 5000):
            await caches.upkeep.feedback("a", ticket, wrong=True, drop=False, tenant="one")
    assert [one.reported_wrong for one in await days(caches)] == [1]
