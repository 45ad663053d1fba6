"""Frequent questions on a real Redis: what is counted and stored, for whom and how long, and attacks on it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from response_cache.keys.canonical import CacheRequest
from response_cache.store import frequent
from response_cache.store.frequent import DAY_S, LONGEST, QUESTIONS, body_of
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer, free_port
from tests.response_cache import Caches, answer, asked

pytestmark = pytest.mark.usefixtures("patient")
CANARY = "xylophone"


@pytest.fixture
async def caches(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Caches]:
    made = Caches(redis_server.url, tmp_path, {"faq": ScopeSettings(warm_up=True)})
    yield made
    await made.close()


async def look(caches: Caches, text: str, times: int = 1, client: str = "gateway", **fields: Any) -> None:
    for _ in range(times):
        await caches.cache.lookup(client, asked(text, **fields))
        await caches.cache.counted()


async def listed(caches: Caches, client: str = "gateway", tenant: str = "", most: int = 10) -> list[tuple[int, str]]:
    """Return look-ups and text of the questions of the day before."""
    found = await caches.upkeep.yesterday(client, "faq", tenant, most)
    assert found is not None
    return [(one.lookups, one.body.decode()) for one in found]


def keys(server: RedisServer) -> list[bytes]:
    with contextlib.closing(server.client()) as client:
        return [key for kind in "mro" for key in client.scan_iter(f"lpc:rc:*:{kind}:*")]


async def test_the_next_day_lists_what_was_asked_most_first(caches: Caches) -> None:
    await look(caches, "once")
    await look(caches, "twice", 2)
    await caches.cache.store("gateway", asked("hits too"), answer())
    await look(caches, "hits too", 4, parameters={"user": "me", "session_id": "s"})
    assert await listed(caches) == []
    caches.clock.now += DAY_S
    (first, one), (second, two) = await listed(caches)
    assert (first, second) == (4, 2) and "hits too" in one and "twice" in two
    assert "session_id" not in one and '"user":' not in one
    assert await listed(caches, most=1) == [(4, one)]
    caches.clock.now += DAY_S
    assert await listed(caches) == []


async def test_a_scope_without_the_setting_leaves_nothing_in_redis(caches: Caches, redis_server: RedisServer) -> None:
    await look(caches, CANARY, 3, scope="other")
    assert keys(redis_server) == []
    assert await caches.upkeep.yesterday("gateway", "other", "", 10) == []


async def test_requests_whose_answers_are_not_kept_are_not_counted(caches: Caches, redis_server: RedisServer) -> None:
    await look(caches, CANARY, 3, parameters={"temperature": 1})
    await look(caches, "what is the time right now?", 3)
    assert keys(redis_server) == []


async def test_redis_holds_no_text_and_everything_ends(caches: Caches, redis_server: RedisServer) -> None:
    await look(caches, CANARY, 3)
    assert keys(redis_server)
    with contextlib.closing(redis_server.client()) as client:
        for key in keys(redis_server):
            assert 0 < client.ttl(key) <= 2 * DAY_S
            assert CANARY.encode() not in client.dump(key) + key


@pytest.mark.parametrize("erase", [False, True])
async def test_erasing_a_scope_deletes_its_requests(caches: Caches, erase: bool) -> None:
    await look(caches, CANARY, 2)
    await caches.upkeep.invalidate("gateway", scope="faq", erase=erase)
    caches.clock.now += DAY_S
    assert len(await listed(caches)) == (0 if erase else 1)


async def test_a_flood_of_different_questions_hides_no_frequent_one(caches: Caches, redis_server: RedisServer) -> None:
    for number in range(3 * QUESTIONS):
        await look(caches, f"flood {number}")
        if number % 50 == 0:
            await look(caches, CANARY, 4)
    caches.clock.now += DAY_S
    assert CANARY in (await listed(caches))[0][1]
    with contextlib.closing(redis_server.client()) as client:
        (counts,) = [key for key in keys(redis_server) if b":m:" in key]
        assert client.zcard(counts) == QUESTIONS


@pytest.mark.parametrize("limit", ["STORED", "LISTS"])
async def test_a_client_that_divides_itself_leaves_room_for_the_questions_of_others(
    caches: Caches, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, limit: str
) -> None:
    monkeypatch.setattr(frequent, limit, 16)
    for part in range(20):
        await look(caches, CANARY, 2, tenant=f"client:loud:{part:064x}")
    assert len([key for key in keys(redis_server) if b":m:" in key]) == (20 if limit == "STORED" else 8)
    for quiet in ("client:quiet", "key:quiet", ""):
        await look(caches, "theirs", 2, tenant=quiet)
    await look(caches, "later", 2, tenant="client:loud:later")
    caches.clock.now += DAY_S
    for quiet in ("client:quiet", "key:quiet", ""):
        assert "theirs" in str(await listed(caches, tenant=quiet))
    assert await listed(caches, tenant="client:loud:later") == []
    parts = [await listed(caches, tenant=f"client:loud:{part:064x}") for part in range(20)]
    assert sum(map(bool, parts)) == 8


@pytest.mark.parametrize("other", [{"client": "another"}, {"tenant": "b"}, {"tenant": ""}], ids=str)
async def test_a_tenants_questions_are_its_own(caches: Caches, other: dict[str, str]) -> None:
    await look(caches, CANARY, 3, tenant="a")
    await look(caches, "their own", 2, **{**other, "client": "gateway"})
    caches.clock.now += DAY_S
    assert CANARY not in str(await listed(caches, **other))
    assert CANARY in str(await listed(caches, tenant="a"))


async def test_a_record_that_is_copied_to_another_tenant_does_not_open(caches: Caches, redis_server: RedisServer) -> None:
    await look(caches, CANARY, 2, tenant="a")
    await look(caches, "theirs", 2, tenant="b")
    (requests,) = [key for key in keys(redis_server) if b":r:" in key]
    with contextlib.closing(redis_server.client()) as client:
        records = client.hgetall(requests)
        (one, first), (two, second) = records.items()
        client.hset(requests, mapping={one: second, two: first})
    caches.clock.now += DAY_S
    assert await listed(caches, tenant="a") == await listed(caches, tenant="b") == []


@pytest.mark.parametrize("what", ["types", "members", "scores"])
async def test_foreign_values_stop_no_count(caches: Caches, redis_server: RedisServer, what: str) -> None:
    await look(caches, CANARY, 2)
    with contextlib.closing(redis_server.client()) as client:
        for key in keys(redis_server):
            if what == "types":
                client.delete(key)
                client.set(key, "text")
            elif b":m:" in key:
                client.zadd(key, {b"\xff\x00": 9, "": 8} if what == "members" else {client.zrange(key, 0, 0)[0]: "inf"})
    await look(caches, "after", 3)
    await look(caches, CANARY, 2)
    caches.clock.now += DAY_S
    assert CANARY in str(await listed(caches))


async def test_without_redis_a_lookup_is_a_miss_and_the_list_is_unknown(tmp_path: Path) -> None:
    caches = Caches(f"redis://127.0.0.1:{free_port()}/0", tmp_path, {"faq": ScopeSettings(warm_up=True)}, timeout_s=0.1)
    await look(caches, CANARY, 2)
    assert await caches.upkeep.yesterday("gateway", "faq", "", 10) is None
    await caches.close()


def test_only_requests_that_can_be_sent_again_are_stored() -> None:
    def body(**fields: Any) -> bytes | None:
        return body_of(CacheRequest(**{"model": "m", "parameters": {}, **fields}))

    assert body(prompt="why", parameters={"stream": True}) == b'{"model":"m","prompt":"why"}'
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "sha256:00"}}]}
    assert body(messages=(image,)) is None
    assert body(prompt="why", parameters={"url_query": "key=secret"}) is None
    assert body(prompt="w" * LONGEST) is None
