"""Pairs of own traffic to judge, and a similarity set by hand, on a real Redis: who sees what, and attacks on it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from response_cache.service.judging import rules_of
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store import pairs as stored
from response_cache.store.pairs import BURST, LIFE_S, MOST, QuestionPair
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer, free_port
from tests.response_cache import Caches, GivenVectors, answer, asked

pytestmark = pytest.mark.usefixtures("patient")
CANARY = "where can a xylophone be bought"
NEAR = "where can xylophones be bought"
FAR = "where is the oldest library"


def unit(*values: float) -> Any:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


VECTORS = GivenVectors({CANARY: unit(1, 0), FAR: unit(0.93, (1 - 0.93**2) ** 0.5)}, unit(0.97, (1 - 0.97**2) ** 0.5))
SCOPES = {
    "text": ScopeSettings(mode="serve", similarity=0.95, pairs="text", question="text"),
    "digest": ScopeSettings(mode="serve", similarity=0.95, pairs="digest"),
    "off": ScopeSettings(mode="serve", similarity=0.95),
}
Make = Callable[..., Caches]


@pytest.fixture
async def make(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Caches] = []

    def caches(scopes: dict[str, ScopeSettings] | None = None, url: str = redis_server.url, **fields: Any) -> Caches:
        one = Caches(url, tmp_path, scopes or SCOPES, embedder=VECTORS, rules=partial(rules_of, VECTORS), **fields)
        made.append(one)
        return one

    yield caches
    for one in made:
        await one.close()


async def fill(caches: Caches, scope: str, client: str = "a", **fields: Any) -> None:
    assert (await caches.cache.store(client, asked(CANARY, scope=scope, **fields), answer())).refusal is None
    await caches.cache.lookup(client, asked("brings it into use", scope=scope, **fields))
    await caches.semantic.sync(0.0)


async def look(caches: Caches, text: str, scope: str, client: str = "a", **fields: Any) -> CacheHit | CacheMiss:
    caches.clock.now += 1
    found = await caches.cache.lookup(client, asked(text, scope=scope, **fields))
    await caches.semantic.noted()
    return found


async def listed(caches: Caches, scope: str, client: str = "a", most: int = MOST) -> list[QuestionPair]:
    found = await caches.upkeep.pairs(client, scope, most)
    assert found is not None
    return list(found)


def keys(server: RedisServer) -> list[bytes]:
    with contextlib.closing(server.client()) as client:
        return list(client.scan_iter("lpc:rc:*:p"))


@pytest.mark.parametrize("scope", ["text", "digest"])
async def test_a_similar_question_is_served_without_evidence_and_shows_the_question_as_the_scope_allows(
    make: Make, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("response_cache.semantic.set_gate.AUDITS", 0.0)
    caches = make()
    await fill(caches, scope)
    hit = await look(caches, NEAR, scope)
    assert isinstance(hit, CacheHit) and hit.source == "semantic"
    assert hit.similarity == pytest.approx(0.97, abs=1e-3) and hit.error_bound == 1.0
    assert hit.question == (CANARY if scope == "text" else "") and len(bytes.fromhex(hit.question_digest)) == 16
    miss = await look(caches, FAR, scope)
    assert isinstance(miss, CacheMiss) and miss.reason == "below_threshold" and miss.candidate
    far, near, *_ = await listed(caches, scope)
    assert (near.served, far.served) == (True, False)
    assert near.candidate_digest == far.candidate_digest == hit.question_digest != near.question_digest
    texts = (near.candidate, near.question, far.question)
    assert texts == ((CANARY, NEAR, FAR) if scope == "text" else ("", "", ""))
    exact = await look(caches, CANARY, scope)
    assert isinstance(exact, CacheHit) and (exact.question, exact.question_digest) == ("", "")
    (stats,) = await caches.upkeep.stats("a", scope)
    assert (stats.similarity, stats.threshold, stats.error_bound) == (0.95, 0.95, 1.0)


async def test_a_scope_without_the_setting_leaves_no_pair_in_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, "off")
    await look(caches, NEAR, "off")
    assert keys(redis_server) == [] and await listed(caches, "off") == []


async def test_redis_holds_no_text_and_pairs_end(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, "text")
    await look(caches, NEAR, "text")
    with contextlib.closing(redis_server.client()) as client:
        (key,) = keys(redis_server)
        assert 0 < client.ttl(key) <= LIFE_S
        for word in ("xylophone", "bought"):
            assert word.encode() not in client.dump(key)
    assert await listed(caches, "text")
    caches.clock.now += LIFE_S + 1
    assert await listed(caches, "text") == []


async def test_a_client_sees_pairs_of_its_own_scopes_only_and_a_gateway_those_of_its_tenants(make: Make) -> None:
    caches = make()
    await fill(caches, "text", client="gateway", tenant="t1")
    await look(caches, NEAR, "text", client="gateway", tenant="t1")
    assert await listed(caches, "text", client="gateway")
    assert await listed(caches, "text", client="other") == [] == await listed(caches, "text", client="gateway:t1")
    # Digests of one question differ between tenants, so that none learns of another's by its digest.
    await fill(caches, "text", client="gateway", tenant="t2")
    await look(caches, NEAR, "text", client="gateway", tenant="t2")
    digests = {pair.candidate_digest for pair in await listed(caches, "text", client="gateway") if pair.question == NEAR}
    assert len(digests) == 2


async def test_a_setting_that_was_narrowed_shows_no_text_of_before(make: Make) -> None:
    caches = make()
    await fill(caches, "text")
    await look(caches, NEAR, "text")
    for pairs in ("digest", "off"):
        narrowed = make({"text": SCOPES["text"].model_copy(update={"pairs": pairs})})
        found = await listed(narrowed, "text")
        assert "xylophone" not in str(found) and bool(found) == (pairs == "digest")


@pytest.mark.parametrize("erase", [False, True])
async def test_invalidation_deletes_pairs(make: Make, redis_server: RedisServer, erase: bool) -> None:
    caches = make()
    await fill(caches, "text")
    await look(caches, NEAR, "text")
    assert keys(redis_server)
    await caches.upkeep.invalidate("a", scope="text", erase=erase)
    assert keys(redis_server) == []


async def test_a_flood_of_one_tenant_leaves_room_and_the_list_is_bounded(
    make: Make, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = make()
    for tenant in ("client:loud:1", "client:loud:2", "client:quiet"):
        await fill(caches, "text", client="gateway", tenant=tenant)
    for number in range(60):
        await look(caches, f"where can xylophones be bought {'in town ' * number}", "text", "gateway", tenant="client:loud:1")
        await look(caches, f"where may xylophones be bought {'in town ' * number}", "text", "gateway", tenant="client:loud:2")
    before = len(await listed(caches, "text", "gateway"))
    await look(caches, NEAR, "text", "gateway", tenant="client:quiet")
    assert len(await listed(caches, "text", "gateway")) == before + 1 <= 2 * BURST + 2
    monkeypatch.setattr(stored, "MOST", 5)
    caches.clock.now += 3600
    await look(caches, NEAR, "text", "gateway", tenant="client:quiet")
    with contextlib.closing(redis_server.client()) as client:
        assert client.zcard(keys(redis_server)[0]) == 5
    newest, *_ = await listed(caches, "text", "gateway")
    assert newest.at == caches.clock.now


async def test_long_texts_are_not_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "LONGEST", len(CANARY) + len(NEAR) - 1)
    caches = make()
    await fill(caches, "text")
    await look(caches, NEAR, "text")
    pair, *_ = await listed(caches, "text")
    assert (pair.question, pair.candidate) == ("", "") and pair.question_digest


@pytest.mark.parametrize("what", ["type", "members", "other scope"])
async def test_foreign_values_neither_open_nor_stop_a_pair(make: Make, redis_server: RedisServer, what: str) -> None:
    caches = make()
    for client in ("a", "b"):
        await fill(caches, "text", client=client)
        await look(caches, NEAR, "text", client=client)
    with contextlib.closing(redis_server.client()) as client:
        one, two = keys(redis_server)
        if what == "type":
            client.delete(one, two)
            client.set(one, "text")
            client.set(two, "text")
        elif what == "members":
            client.zadd(one, {b"\xff\x00": 2e9, "": 3e9})
        else:
            client.delete(two)
            client.copy(one, two)
    await look(caches, FAR, "text")
    await look(caches, FAR, "text", client="b")
    for name in ("a", "b"):
        found = await listed(caches, "text", client=name)
        assert found[0].question == FAR


async def test_without_redis_pairs_are_unknown(make: Make) -> None:
    caches = make(url=f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.1)
    assert await caches.upkeep.pairs("a", "text", 10) is None
    assert await caches.upkeep.pairs("a", "off", 10) == []


async def test_evidence_at_a_set_similarity_is_kept_apart_from_that_of_probabilities(
    make: Make, redis_server: RedisServer
) -> None:
    caches = make()
    await fill(caches, "text")
    miss = await look(caches, FAR, "text")
    assert isinstance(miss, CacheMiss)
    await caches.cache.store("a", asked(FAR, scope="text"), answer("Other."), flight=miss.flight, candidate=miss.candidate)
    await caches.semantic.sync(10.0)
    with contextlib.closing(redis_server.client()) as client:
        places = list(client.scan_iter("lpc:rc:*:t:*"))
    assert places and all(place.endswith(b":set") for place in places)
    other = make({"text": ScopeSettings(mode="serve")})
    await look(other, NEAR, "text")
    await other.semantic.sync(0.0)
    assert [(tier.source, tier.labels) for tier in (await other.upkeep.stats("a", "text"))[0].tiers] == [(3, 0), (2, 0)]
