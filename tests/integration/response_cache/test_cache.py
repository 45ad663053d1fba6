"""The response caches on a real Redis: keys, owners, expiry, refusals, single flight, invalidation and limits."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.metric_values import counted
from tests.response_cache import KEY_LINES, Caches, answer, asked

Make = Callable[..., Caches]


@pytest.fixture
async def make(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Caches] = []

    def one(*arguments: Any, **fields: Any) -> Caches:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Caches(redis_server.url, folder, *arguments, **fields))
        return made[-1]

    yield one
    for caches in made:
        await caches.close()


async def ask(caches: Caches, request: Any, client: str = "a", **fields: Any) -> CacheHit | CacheMiss:
    return await caches.cache.lookup(client, request, **fields)


async def fill(caches: Caches, request: Any, reply: Any = None, client: str = "a", **fields: Any) -> Any:
    miss = await ask(caches, request, client)
    assert isinstance(miss, CacheMiss)
    return await caches.cache.store(client, request, reply or answer(), flight=miss.flight, **fields)


def entries_in(server: RedisServer) -> dict[bytes, int]:
    """Return the sizes of all entries in bytes, by key."""
    with contextlib.closing(server.client()) as client:
        return {key: client.strlen(key) for key in client.scan_iter("lpc:rc:*:e:*")}


def evicted(caches: Caches) -> dict[str, float]:
    """Return the number of evictions by limit."""
    return {bound: counted(caches.metrics.evictions.labels("faq", bound)) for bound in ("entries", "bytes")}


def counted_bytes(server: RedisServer) -> int:
    with contextlib.closing(server.client()) as client:
        return sum(int(client.get(key)) for key in client.scan_iter("lpc:rc:*:b"))


async def test_the_same_request_gets_the_same_answer(make: Make) -> None:
    caches = make()
    first = await ask(caches, asked("Is it?"))
    assert isinstance(first, CacheMiss) and first.reason == "cold" and first.flight
    stored = await caches.cache.store("a", asked("Is it?"), answer("It is."), flight=first.flight)
    assert stored.refusal is None
    caches.clock.now += 30
    hit = await ask(caches, asked("Is it?", parameters={"stream": False, "user": "u", "n": 1}))
    assert isinstance(hit, CacheHit)
    assert (hit.source, hit.answer) == ("exact", answer("It is."))
    assert hit.age_s == pytest.approx(30) and hit.remaining_s == pytest.approx(4 * 3600 - 30)


async def test_another_sidecar_finds_the_answer(make: Make) -> None:
    await fill(make(), asked("Is it?"))
    assert isinstance(await ask(make(), asked("Is it?")), CacheHit)


@pytest.mark.parametrize(
    "other",
    [
        asked("Is it not?"),
        asked("Is it?", model="m:lora"),
        asked("Is it?", tenant="another"),
        asked("Is it?", scope="other"),
        asked("Is it?", tools=[{"type": "function", "function": {"name": "f"}}]),
        asked("Is it?", parameters={"max_tokens": 5}),
        asked("Is it?", parameters={"response_format": {"type": "json_object"}}),
        asked("Is it?", parameters={"unheard_of": 1}),
        asked("Is it?", parameters={"seed": 0}),
        asked("", "Yes.", "Is it?"),
    ],
    ids=lambda request: "",
)
async def test_requests_that_differ_in_a_relevant_field_do_not_share_an_answer(make: Make, other: Any) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    assert isinstance(await ask(caches, other), CacheMiss)


async def test_clients_do_not_share_answers(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), client="a")
    assert isinstance(await ask(caches, asked("Is it?"), client="b"), CacheMiss)
    assert isinstance(await ask(caches, asked("Is it?"), client="a"), CacheHit)


async def test_a_record_that_was_copied_to_another_clients_key_does_not_decrypt(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), client="a")
    await fill(caches, asked("Is it?"), client="b")
    with contextlib.closing(redis_server.client()) as client:
        one, other = list(client.scan_iter("lpc:rc:*:e:*"))
        client.set(one, client.get(other))
        client.set(other, b"\x01" + b"damaged" * 9)
    for name in "ab":
        assert isinstance(await ask(caches, asked("Is it?"), client=name), CacheMiss)
    assert counted(caches.metrics.unreadable) == 2
    # A new answer can be stored.
    await fill(caches, asked("Is it?"), client="a")


@pytest.mark.parametrize(
    ("one", "other"),
    [("Is it in the US?", "Is it in the us?"), ("x = 'A'", "x = 'a'"), ("Is it?", "Is it"), ("caf\u00e9", "cafe\u0301")],
)
async def test_text_is_compared_byte_by_byte(make: Make, one: str, other: str) -> None:
    caches = make()
    await fill(caches, asked(one))
    assert isinstance(await ask(caches, asked(other)), CacheMiss)


async def test_a_hit_does_not_prolong_the_life_of_an_answer(make: Make) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    for _ in range(3):
        caches.clock.now += 33
        assert isinstance(await ask(caches, asked("Is it?")), CacheHit)
    caches.clock.now += 2
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)


async def test_no_operation_prolongs_the_life_of_an_answer(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))

    def ends() -> dict[bytes, int]:
        with contextlib.closing(redis_server.client()) as client:
            return {key: client.pexpiretime(key) for key in client.scan_iter("lpc:rc:*:e:*")}

    before = ends()
    assert len(before) == 1
    caches.clock.now += 60
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, CacheHit)
    for wrong in (False, True):
        await caches.upkeep.feedback("a", hit.ticket, wrong=wrong, drop=False)
    for fields in ({"no_store": True}, {"aborted": True}):
        await caches.cache.store("a", asked("Is it?"), answer(), **fields)
    await caches.upkeep.invalidate("a", scope="other")
    assert ends() == before


async def test_entries_expire_in_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    with contextlib.closing(redis_server.client()) as client:
        lives = {key: client.pttl(key) for key in client.scan_iter("lpc:rc:*")}
    assert all(life > 0 for life in lives.values()), lives
    assert all(life <= 100_000 for key, life in lives.items() if b"}:e:" in key)


@pytest.mark.parametrize("step", [-1e6, -50.0, 50.0])
async def test_a_clock_step_does_not_move_the_age_outside_the_life(make: Make, step: float) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    caches.clock.now += step
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, CacheHit)
    assert 0 <= hit.age_s <= 100 and 0 <= hit.remaining_s <= 100


@pytest.mark.parametrize(
    ("reply", "refusal"),
    [
        (answer(finish_reason="length"), "finish_reason"),
        (answer(finish_reason=""), "finish_reason"),
        (answer(body=b""), "empty"),
        (answer(""), "empty"),
        (answer(body=b'{"choices": [{"message": {"content": null, "audio": {}}, "finish_reason": "stop"}]}'), "empty"),
        (answer(body=b'{"error": {"message": "no"}}'), "error"),
        (answer(body=b'{"choices": [{"message": {"tool_calls": [{}]}, "finish_reason": "stop"}]}'), "tool_calls"),
        (answer(body=b"", chunks=(b'{"choices": [{"delta": {"tool_calls": [{}]}}]}',)), "tool_calls"),
        (answer(body=b"", chunks=(b'{"choices": [{"delta": {}, "finish_reason": "length"}]}',)), "finish_reason"),
        (answer(body=b'{"choices": [{"index": 0}, {"index": 1}]}'), "n"),
        (answer("x" * 70_000), "too_large"),
    ],
)
async def test_an_answer_that_is_incomplete_or_not_text_is_not_cached(make: Make, reply: Any, refusal: str) -> None:
    caches = make()
    assert (await fill(caches, asked("Is it?"), reply)).refusal == refusal
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (asked("Is it?", parameters={"temperature": 0.7}), "temperature"),
        (asked("Is it?", parameters={"temperature": None}), "temperature"),
        (asked("Is it?", parameters={"n": 2}), "n"),
        (asked("Is it?", parameters={"logprobs": True}), "logprobs"),
        (asked("Is it?", parameters={"logprobs": 0}), "logprobs"),
        (asked("Is it?", parameters={"prompt_logprobs": 0}), "logprobs"),
        (asked("Is it?", parameters={"store": False}), "no_store"),
        (
            asked(messages=({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]},)),
            "images",
        ),
    ],
)
async def test_a_request_whose_answer_is_never_cached_is_refused_at_once(make: Make, request_: Any, refusal: str) -> None:
    caches = make()
    miss = await ask(caches, request_)
    assert isinstance(miss, CacheMiss)
    assert (miss.reason, miss.refusal, miss.flight) == ("refused", refusal, b"")
    assert (await caches.cache.store("a", request_, answer())).refusal == refusal


async def test_a_scope_can_allow_any_temperature(make: Make) -> None:
    caches = make({"warm": ScopeSettings(any_temperature=True)})
    await fill(caches, asked("Is it?", scope="warm", parameters={"temperature": 0.7}))
    assert isinstance(await ask(caches, asked("Is it?", scope="warm", parameters={"temperature": 0.7})), CacheHit)


async def test_creative_writing_is_not_cached(make: Make) -> None:
    caches = make({"poems": ScopeSettings(kind="creative")})
    miss = await ask(caches, asked("A poem!", scope="poems"))
    assert isinstance(miss, CacheMiss) and miss.reason == "off"


async def test_a_digest_can_replace_an_image(make: Make) -> None:
    from response_cache.keys.canonical import digest_of

    def with_image(url: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        return asked(messages=({"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]},))

    caches = make()
    url = "data:image/png;base64,AAAA"
    await fill(caches, with_image(url))
    assert isinstance(await ask(caches, with_image(digest_of(url))), CacheHit)
    assert isinstance(await ask(caches, with_image(url + "A")), CacheMiss)


async def test_64_concurrent_requests_call_the_engine_once(make: Make) -> None:
    sidecars = [make(), make()]
    engine_calls = 0

    async def one(caches: Caches) -> CacheHit | CacheMiss:
        nonlocal engine_calls
        outcome = await ask(caches, asked("Is it?"), wait_s=20)
        if isinstance(outcome, CacheMiss):
            engine_calls += 1
            await asyncio.sleep(0.1)
            await caches.cache.store("a", asked("Is it?"), answer(), flight=outcome.flight)
        return outcome

    outcomes = await asyncio.gather(*(one(sidecars[n % 2]) for n in range(64)))
    assert engine_calls == 1
    assert sum(isinstance(outcome, CacheHit) for outcome in outcomes) == 63


async def test_a_dead_leader_does_not_block_the_followers(make: Make) -> None:
    caches = make(flight_s=0.3)
    leader = await ask(caches, asked("Is it?"), wait_s=5)
    assert isinstance(leader, CacheMiss) and leader.flight
    engine_calls = 1

    async def one() -> CacheHit | CacheMiss:
        nonlocal engine_calls
        outcome = await ask(caches, asked("Is it?"), wait_s=20)
        if isinstance(outcome, CacheMiss):
            engine_calls += 1
            await caches.cache.store("a", asked("Is it?"), answer(), flight=outcome.flight)
        return outcome

    await asyncio.gather(*(one() for _ in range(20)))
    assert engine_calls == 2


async def test_after_an_aborted_answer_a_follower_becomes_leader(make: Make) -> None:
    caches = make()
    leader = await ask(caches, asked("Is it?"))
    assert isinstance(leader, CacheMiss)
    waiting = asyncio.create_task(ask(caches, asked("Is it?"), wait_s=20))
    await asyncio.sleep(0.1)
    assert (await caches.cache.store("a", asked("Is it?"), answer(), flight=leader.flight, aborted=True)).refusal == "aborted"
    outcome = await waiting
    assert isinstance(outcome, CacheMiss) and outcome.flight


async def test_followers_go_to_the_engine_if_the_answer_is_not_cached(make: Make) -> None:
    caches = make()
    leader = await ask(caches, asked("Is it?"))
    assert isinstance(leader, CacheMiss)
    waiting = [asyncio.create_task(ask(caches, asked("Is it?"), wait_s=20)) for _ in range(5)]
    await asyncio.sleep(0.1)
    await caches.cache.store("a", asked("Is it?"), answer(finish_reason="length"), flight=leader.flight)
    outcomes = await asyncio.gather(*waiting)
    # Not "in_flight", after which they would go on waiting.
    assert {(outcome.reason, outcome.flight) for outcome in outcomes if isinstance(outcome, CacheMiss)} == {("cold", b"")}


async def test_a_lookup_without_wait_time_returns_at_once(make: Make) -> None:
    caches = make()
    await ask(caches, asked("Is it?"))
    outcome = await ask(caches, asked("Is it?"))
    assert isinstance(outcome, CacheMiss)
    assert (outcome.reason, outcome.flight) == ("in_flight", b"")


@pytest.mark.parametrize("scope", ["faq", None])
async def test_an_invalidated_answer_is_not_found(make: Make, scope: str | None) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    assert await caches.upkeep.invalidate("a", scope=scope) == (True, 0)
    for sidecar in (caches, make()):
        assert isinstance(await ask(sidecar, asked("Is it?")), CacheMiss)
    await fill(make(), asked("And now?"))
    assert isinstance(await ask(caches, asked("And now?")), CacheHit)


@pytest.mark.parametrize("how", ["purged", "flushed"])
async def test_an_answer_that_is_stored_after_all_data_was_lost_can_be_invalidated(
    make: Make, redis_server: RedisServer, how: str
) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    if how == "purged":
        assert await caches.upkeep.invalidate("a", erase=True) == (True, 1)
    else:
        with contextlib.closing(redis_server.client()) as client:
            client.flushall()
    await fill(caches, asked("Is it?"))
    assert await caches.upkeep.invalidate("a", scope=None) == (True, 0)
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)


async def test_answers_of_other_scopes_and_clients_are_not_invalidated(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    await fill(caches, asked("Is it?"), client="b")
    await caches.upkeep.invalidate("a", scope="other")
    await caches.upkeep.invalidate("b", scope=None)
    assert isinstance(await ask(caches, asked("Is it?")), CacheHit)


async def test_an_answer_to_a_request_from_before_an_invalidation_is_not_stored(make: Make) -> None:
    caches = make()
    miss = await ask(caches, asked("Is it?"))
    assert isinstance(miss, CacheMiss)
    await caches.upkeep.invalidate("a", scope="faq")
    stored = await caches.cache.store("a", asked("Is it?"), answer(), flight=miss.flight)
    assert stored.refusal == "stale"
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)


async def test_an_answer_without_a_flight_that_began_before_an_invalidation_is_not_stored(make: Make) -> None:
    caches = make()
    await caches.upkeep.invalidate("a", scope="faq")
    stored = await caches.cache.store("a", asked("Is it?"), answer(engine_s=60.0))
    assert stored.refusal == "stale"
    assert (await caches.cache.store("a", asked("Is it?"), answer(engine_s=0.0))).refusal is None


async def test_only_the_client_that_got_an_entry_can_drop_it(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, CacheHit)
    wrong = {"wrong": True, "drop": True}
    assert await caches.upkeep.feedback("b", hit.ticket, **wrong) == (False, False)
    assert await caches.upkeep.feedback("a", hit.ticket[:-1] + b"x", **wrong) == (False, False)
    assert isinstance(await ask(caches, asked("Is it?")), CacheHit)
    assert await caches.upkeep.feedback("a", hit.ticket, **wrong) == (True, True)
    assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)


async def test_erased_entries_are_deleted_from_redis(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    for n in range(20):
        await fill(caches, asked(f"Is it {n}?"))
    await fill(caches, asked("Is it?"), client="b")
    assert await caches.upkeep.invalidate("a", scope="faq", erase=True) == (True, 20)
    with contextlib.closing(redis_server.client()) as client:
        assert len(list(client.scan_iter("lpc:rc:*:e:*"))) == 1
    assert await caches.upkeep.invalidate("b", erase=True) == (True, 1)
    with contextlib.closing(redis_server.client()) as client:
        assert not [key for kind in "ev" for key in client.scan_iter(f"lpc:rc:*:{kind}:*")]


async def test_a_scope_stays_within_its_limit_of_entries(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(max_entries=10)})
    for n in range(30):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?"))
    with contextlib.closing(redis_server.client()) as client:
        assert len(list(client.scan_iter("lpc:rc:*:e:*"))) == 10
    assert isinstance(await ask(caches, asked("Is it 29?")), CacheHit)
    assert isinstance(await ask(caches, asked("Is it 3?")), CacheMiss)
    assert evicted(caches) == {"entries": 20, "bytes": 0}


async def test_an_invalid_entry_id_does_not_stop_the_deletion(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    with contextlib.closing(redis_server.client()) as client:
        (ends,) = client.scan_iter("lpc:rc:*:z")
        client.zadd(ends, {"a:1": 1e12})
    assert await caches.upkeep.invalidate("a", scope="faq", erase=True) == (True, 1)


async def test_a_scope_stays_within_its_limit_of_bytes(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(max_mib=1)})
    for n in range(40):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?"), answer(secrets.token_hex(30_000)))
    held = entries_in(redis_server)
    assert 0.9 * 2**20 < sum(held.values()) <= 2**20
    assert counted_bytes(redis_server) == sum(held.values())
    assert isinstance(await ask(caches, asked("Is it 39?")), CacheHit)
    assert isinstance(await ask(caches, asked("Is it 3?")), CacheMiss)
    assert evicted(caches) == {"entries": 0, "bytes": 40 - len(held)}


async def test_replaced_deleted_and_expired_entries_are_not_counted(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), answer("short"))
    await caches.cache.store("a", asked("Is it?"), answer(secrets.token_hex(9000)))
    await fill(caches, asked("And that?"), answer(secrets.token_hex(5000)))
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values())
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, CacheHit)
    await caches.upkeep.feedback("a", hit.ticket, wrong=False, drop=True)
    await caches.upkeep.feedback("a", hit.ticket, wrong=False, drop=True)
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values())
    # All entries expire by this clock before the next one is stored.
    with contextlib.closing(redis_server.client()) as client:
        client.delete(*entries_in(redis_server))
    caches.clock.now += 24 * 3600
    await fill(caches, asked("Much later?"))
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values()) > 0


async def test_keys_can_be_rotated_without_a_restart(make: Make) -> None:
    caches = make()
    await fill(caches, asked("old?"))
    names, first = KEY_LINES.splitlines()
    caches.key_file.write_text("\n".join((names, "k2: " + "33" * 32, first)))
    assert caches.keys.refresh()
    await fill(caches, asked("new?"))
    assert isinstance(await ask(caches, asked("old?")), CacheHit)
    caches.key_file.write_text("\n".join((names, "k2: " + "33" * 32)))
    assert caches.keys.refresh()
    assert isinstance(await ask(caches, asked("old?")), CacheMiss)
    assert isinstance(await ask(caches, asked("new?")), CacheHit)


async def test_with_another_key_old_entries_are_misses_and_new_ones_can_be_stored(make: Make) -> None:
    await fill(make(), asked("Is it?"))
    other = make(key_lines=KEY_LINES.replace("22", "44"))
    await fill(other, asked("Is it?"))
    assert isinstance(await ask(other, asked("Is it?")), CacheHit)
