"""The normalised tier on a real Redis, without an encoder: its own evidence, and no answer that is another one's."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from response_cache.keys.canonical import CacheRequest
from response_cache.semantic import gate as gates
from response_cache.semantic.gate import Gate
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.metric_values import counted
from tests.response_cache import Caches, answer, asked
from tests.unit.response_cache import opposites

Make = Callable[..., Caches]
COUNT = 340
SERVES = {"faq": ScopeSettings(normalised="serve"), "code": ScopeSettings(kind="code", mode="serve")}


@pytest.fixture
async def make(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Caches] = []

    def one(scopes: dict[str, ScopeSettings] = SERVES, **changes: object) -> Caches:
        made.append(Caches(redis_server.url, tmp_path, scopes, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for caches in made:
        await caches.close()


def learning(scope: ScopeSettings) -> Gate:
    return Gate(scope.bound, serves=True)


def loud(i: int, scope: str = "faq", tenant: str = "") -> CacheRequest:
    return asked(f"  Where is NUMBER {i}, please?", scope=scope, tenant=tenant)


def plain(i: int, scope: str = "faq", tenant: str = "") -> CacheRequest:
    return asked(f"where is number {i}, please", scope=scope, tenant=tenant)


async def drive(caches: Caches, numbers: range, right: bool = True, **place: str) -> list[CacheHit]:
    """Store plain questions, ask for the loud ones, and return the hits. The engine's own answers are right, or all differ."""
    hits = []
    for i in numbers:
        await caches.cache.store("a", plain(i, **place), answer(f"answer {i}"))
        found = await caches.cache.lookup("a", loud(i, **place))
        if isinstance(found, CacheHit):
            hits.append(found)
            continue
        text = f"answer {i}" if right else f"another answer {i}"
        await caches.cache.store("a", loud(i, **place), answer(text), flight=found.flight, candidate=found.candidate)
    return hits


@pytest.mark.parametrize("scope", ["faq", "code"])
async def test_labels_open_the_tier_without_an_encoder_also_for_code(make: Make, scope: str) -> None:
    caches = make(make_gate=learning)
    hits = await drive(caches, range(COUNT), scope=scope)
    assert hits and {hit.source for hit in hits} == {"normalised"}
    name = caches.store.namer.scope("a", scope)
    digests = {caches.store.namer.question(name, "", f"where is number {i}, please") for i in range(COUNT)}
    assert all(0 < hit.error_bound <= 0.05 and not hit.question and hit.question_digest in digests for hit in hits)
    assert not (await caches.redis.ask(lambda client: client.keys("lpc:rc:*:v:*")))
    assert counted(caches.metrics.lookups.labels(scope, "normalised")) == len(hits)


async def test_wrong_answers_never_open_it(make: Make) -> None:
    caches = make(make_gate=learning)
    assert await drive(caches, range(COUNT), right=False) == []


async def test_an_open_tier_shuts_when_answers_turn_wrong(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = make(make_gate=learning)
    assert await drive(caches, range(COUNT))
    monkeypatch.setattr(gates, "AUDITS", 1.0)
    await drive(caches, range(COUNT, COUNT + 40), right=False)
    monkeypatch.setattr(gates, "AUDITS", 0.0)
    assert await drive(caches, range(COUNT + 40, COUNT + 60)) == []


async def test_complaints_about_its_answers_shut_it(make: Make) -> None:
    caches = make(make_gate=learning)
    hits = await drive(caches, range(2 * COUNT))
    for hit in hits:
        await caches.upkeep.feedback("a", hit.ticket, wrong=True, drop=False)
    assert await drive(caches, range(2 * COUNT, 2 * COUNT + 20)) == []


async def test_one_tenants_labels_open_nothing_for_another_and_no_answer_crosses(make: Make) -> None:
    caches = make(make_gate=learning)
    assert await drive(caches, range(COUNT), tenant="hostile")
    assert await drive(caches, range(60), right=False, tenant="victim") == []
    assert (await caches.cache.lookup("a", loud(1, tenant="third"))).__class__ is CacheMiss
    assert (await caches.cache.lookup("b", loud(1))).__class__ is CacheMiss


async def test_its_evidence_does_not_open_the_semantic_tier(make: Make) -> None:
    scopes = {"faq": ScopeSettings(mode="serve")}
    caches = make(scopes, make_gate=learning)
    assert await drive(caches, range(COUNT))
    (stats,) = await caches.upkeep.stats("a", "faq")
    normalised, semantic = stats.tiers
    assert normalised.HasField("error_bound") and normalised.labels > 200 and normalised.lookups_missing == 0
    assert not semantic.HasField("error_bound") and semantic.labels == stats.labels == 0
    assert semantic.lookups_missing >= semantic.labels_needed > 200


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_modes_off_and_shadow_serve_nothing(make: Make, mode: str) -> None:
    caches = make({"faq": ScopeSettings(normalised=mode)})  # type: ignore[arg-type]
    await caches.cache.store("a", plain(1), answer())
    found = await caches.cache.lookup("a", loud(1))
    if mode == "off":
        assert found == CacheMiss("cold", flight=found.flight)  # type: ignore[union-attr]
        assert not await caches.redis.ask(lambda client: client.keys("lpc:rc:*:n"))


async def test_opposites_and_other_contexts_are_never_found(make: Make) -> None:
    """The gate serves every candidate, so that one that must not be found is noticed."""
    caches = make()
    for a, b in opposites.OPPOSITES:
        await caches.cache.store("a", asked(a), answer())
        for other in (b, b.upper(), b.lower()):
            found = await caches.cache.lookup("a", asked(other))
            assert isinstance(found, CacheMiss) or found.question != a, (a, other)
    await caches.cache.store("a", asked("Hi", "Hello", "Where is it?"), answer())
    for other in (
        asked("where is it"),
        asked("HI", "Hello", "where is it"),
        asked("Hi", "Hello", "where is it", model="n"),
        asked("Hi", "Hello", "where is it", parameters={"max_tokens": 5}),
        asked("Hi", "Hello", "where is it", scope="code"),
    ):
        assert isinstance(await caches.cache.lookup("a", other), CacheMiss), other
    assert isinstance(await caches.cache.lookup("a", asked("Hi", "Hello", "where is IT!")), CacheMiss)
    assert isinstance(await caches.cache.lookup("a", asked("Hi", "Hello", "where Is it")), CacheHit)
    assert isinstance(await caches.cache.lookup("a", asked("Hi", "Hello", "where Is it"), exact_only=True), CacheMiss)


async def test_a_forged_mapping_serves_no_other_questions_answer(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await caches.cache.store("a", plain(1), answer("one"))
    await caches.cache.store("a", plain(2), answer("two"))
    with contextlib.closing(redis_server.client()) as client:
        (key,) = client.scan_iter("lpc:rc:*:n")
        fields = client.hgetall(key)
        entries = [name for name in fields if list(client.scan_iter(b"*:e:" + name))]
        assert len(fields) == 4 and len(entries) == 2
        forms = [name for name in fields if name not in entries]
        client.hset(key, mapping={forms[0]: fields[forms[1]], forms[1]: fields[forms[0]]})
        assert {type(await caches.cache.lookup("a", loud(i))) for i in (1, 2)} == {CacheMiss}
        for forged in (b"", b"x", b"\xff" * 20, b"9" * 5000, fields[forms[0]] + b"\n"):
            client.hset(key, mapping=dict.fromkeys(forms, forged))
            assert {type(await caches.cache.lookup("a", loud(i))) for i in (1, 2)} == {CacheMiss}
        client.delete(key)
        client.set(key, "another type")
        assert isinstance(await caches.cache.lookup("a", loud(1)), CacheMiss)
    await caches.cache.store("a", plain(3), answer("three"))
    found = await caches.cache.lookup("a", loud(3))
    assert isinstance(found, CacheHit) and found.answer.text() == "three"


async def test_evicted_and_dropped_entries_leave_no_names(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(normalised="serve", max_entries=10)})
    for i in range(50):
        caches.clock.now += 1
        await caches.cache.store("a", plain(i), answer())
    with contextlib.closing(redis_server.client()) as client:
        (key,) = client.scan_iter("lpc:rc:*:n")
        assert client.hlen(key) == 20 and 0 < client.ttl(key) <= 5 * 3600
        await caches.cache.store("a", loud(49), answer("newer"))
        hit = await caches.cache.lookup("a", loud(48))
        assert isinstance(hit, CacheHit)
        await caches.upkeep.feedback("a", hit.ticket, wrong=True, drop=True)
        assert isinstance(await caches.cache.lookup("a", loud(48)), CacheMiss)
        await caches.upkeep.invalidate("a", scope="faq", erase=True)
        assert client.hlen(key) == 0


async def test_the_latest_answer_of_a_form_is_served_until_it_expires(make: Make) -> None:
    caches = make()
    await caches.cache.store("a", plain(1), answer("first"))
    await caches.cache.store("a", asked("WHERE IS NUMBER 1, PLEASE"), answer("second"))
    found = await caches.cache.lookup("a", loud(1))
    assert isinstance(found, CacheHit) and found.answer.text() == "second"
    caches.clock.now += 5 * 3600
    assert isinstance(await caches.cache.lookup("a", loud(1)), CacheMiss)


async def test_a_time_sensitive_question_and_an_answer_past_its_semantic_life_answer_no_other(make: Make) -> None:
    caches = make({"faq": ScopeSettings(normalised="serve", semantic_ttl_s=60)})
    await caches.cache.store("a", asked("what is the latest version"), answer())
    found = await caches.cache.lookup("a", asked("What is the LATEST version?"))
    assert isinstance(found, CacheMiss) and found.reason == "time_sensitive"
    await caches.cache.store("a", plain(1), answer())
    assert isinstance(hit := await caches.cache.lookup("a", loud(1)), CacheHit) and hit.remaining_s <= 60
    caches.clock.now += 61
    assert isinstance(await caches.cache.lookup("a", loud(1)), CacheMiss)
    assert isinstance(await caches.cache.lookup("a", plain(1)), CacheHit)
