"""The response caches on a real Redis: what is found, by whom, for how long, and what is never kept."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import RedisServer
from lpc.responses.scopes import ScopeSettings
from predictor_service.responses.outcomes import Hit, Miss
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


async def ask(caches: Caches, request: Any, client: str = "a", **fields: Any) -> Hit | Miss:
    return await caches.cache.lookup(client, request, **fields)


async def fill(caches: Caches, request: Any, said: Any = None, client: str = "a", **fields: Any) -> Any:
    miss = await ask(caches, request, client)
    assert isinstance(miss, Miss)
    return await caches.cache.store(client, request, said or answer(), flight=miss.flight, **fields)


def entries_in(server: RedisServer) -> dict[bytes, int]:
    """Return the keys of all entries, and their bytes."""
    with contextlib.closing(server.client()) as client:
        return {key: client.strlen(key) for key in client.scan_iter("lpc:rc:*:e:*")}


def evicted(caches: Caches) -> dict[str, float]:
    """Return how many answers went before their time, by the bound."""
    return {bound: caches.metrics.evictions.labels("faq", bound)._value.get() for bound in ("entries", "bytes")}


def counted_bytes(server: RedisServer) -> int:
    with contextlib.closing(server.client()) as client:
        return sum(int(client.get(key)) for key in client.scan_iter("lpc:rc:*:b"))


async def test_the_same_request_gets_the_same_answer(make: Make) -> None:
    caches = make()
    first = await ask(caches, asked("Is it?"))
    assert isinstance(first, Miss) and first.reason == "cold" and first.flight
    stored = await caches.cache.store("a", asked("Is it?"), answer("It is."), flight=first.flight)
    assert stored.refusal is None
    caches.clock.now += 30
    hit = await ask(caches, asked("Is it?", parameters={"stream": True, "user": "u", "n": 1}))
    assert isinstance(hit, Hit)
    assert (hit.source, hit.answer, hit.question) == ("exact", answer("It is."), "")
    assert hit.age_s == pytest.approx(30) and hit.remaining_s == pytest.approx(4 * 3600 - 30)


async def test_another_sidecar_finds_it(make: Make) -> None:
    await fill(make(), asked("Is it?"))
    assert isinstance(await ask(make(), asked("Is it?")), Hit)


@pytest.mark.parametrize(
    "other",
    [
        asked("Is it not?"),
        asked("Is it?", model="m:lora"),
        asked("Is it?", model_version="2"),
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
async def test_what_differs_in_anything_that_counts_is_another_request(make: Make, other: Any) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    assert isinstance(await ask(caches, other), Miss)


async def test_no_client_gets_what_another_one_was_given(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), client="a")
    assert isinstance(await ask(caches, asked("Is it?"), client="b"), Miss)
    assert isinstance(await ask(caches, asked("Is it?"), client="a"), Hit)


async def test_a_record_that_was_copied_to_another_clients_place_does_not_open(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), client="a")
    await fill(caches, asked("Is it?"), client="b")
    with contextlib.closing(redis_server.client()) as client:
        one, other = list(client.scan_iter("lpc:rc:*:e:*"))
        client.set(one, client.get(other))
        client.set(other, b"\x01" + b"damaged" * 9)
    for name in "ab":
        assert isinstance(await ask(caches, asked("Is it?"), client=name), Miss)
    assert caches.metrics.unreadable._value.get() == 2
    # The way back to a good record is open.
    await fill(caches, asked("Is it?"), client="a")


@pytest.mark.parametrize(
    ("one", "other"),
    [("Is it in the US?", "Is it in the us?"), ("x = 'A'", "x = 'a'"), ("Is it?", "Is it"), ("caf\u00e9", "cafe\u0301")],
)
async def test_any_difference_makes_another_request(make: Make, one: str, other: str) -> None:
    caches = make()
    await fill(caches, asked(one))
    assert isinstance(await ask(caches, asked(other)), Miss)


async def test_a_hit_prolongs_nothing(make: Make) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    for _ in range(3):
        caches.clock.now += 33
        assert isinstance(await ask(caches, asked("Is it?")), Hit)
    caches.clock.now += 2
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


async def test_nothing_that_is_done_with_an_answer_prolongs_it(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))

    def ends() -> dict[bytes, int]:
        with contextlib.closing(redis_server.client()) as client:
            return {key: client.pexpiretime(key) for key in client.scan_iter("lpc:rc:*:e:*")}

    before = ends()
    assert len(before) == 1
    caches.clock.now += 60
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, Hit)
    for wrong in (False, True):
        await caches.upkeep.feedback("a", hit.ticket, wrong=wrong, reason="", drop=False)
    assert isinstance(await ask(caches, asked("Is it?"), max_age_s=1), Miss)
    for fields in ({"no_store": True}, {"aborted": True}):
        await caches.cache.store("a", asked("Is it?"), answer(), **fields)
    await caches.upkeep.invalidate("a", scope="other")
    assert ends() == before


async def test_redis_forgets_it_too(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    with contextlib.closing(redis_server.client()) as client:
        lives = {key: client.pttl(key) for key in client.scan_iter("lpc:rc:*")}
    assert all(life > 0 for life in lives.values()), lives
    assert all(life <= 100_000 for key, life in lives.items() if b"}:e:" in key)


async def test_a_caller_may_want_younger_answers_and_shorter_lives(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), ttl_s=60)
    caches.clock.now += 30
    assert isinstance(await ask(caches, asked("Is it?"), max_age_s=20), Miss)
    assert isinstance(await ask(caches, asked("Is it?"), max_age_s=40), Hit)
    caches.clock.now += 31
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


@pytest.mark.parametrize("step", [-1e6, -50.0, 50.0])
async def test_a_clock_that_steps_shows_no_age_beyond_the_life(make: Make, step: float) -> None:
    caches = make({"faq": ScopeSettings(ttl_s=100)})
    await fill(caches, asked("Is it?"))
    caches.clock.now += step
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, Hit)
    assert 0 <= hit.age_s <= 100 and 0 <= hit.remaining_s <= 100


@pytest.mark.parametrize(
    ("said", "why"),
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
async def test_an_answer_that_is_not_whole_or_not_text_is_not_kept(make: Make, said: Any, why: str) -> None:
    caches = make()
    assert (await fill(caches, asked("Is it?"), said)).refusal == why
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


@pytest.mark.parametrize(
    ("request_", "why"),
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
async def test_a_request_whose_answer_is_never_kept_is_refused_at_once(make: Make, request_: Any, why: str) -> None:
    caches = make()
    miss = await ask(caches, request_)
    assert isinstance(miss, Miss)
    assert (miss.reason, miss.refusal, miss.flight) == ("refused", why, b"")
    assert (await caches.cache.store("a", request_, answer())).refusal == why


async def test_a_scope_may_ask_for_any_temperature(make: Make) -> None:
    caches = make({"warm": ScopeSettings(any_temperature=True)})
    await fill(caches, asked("Is it?", scope="warm", parameters={"temperature": 0.7}))
    assert isinstance(await ask(caches, asked("Is it?", scope="warm", parameters={"temperature": 0.7})), Hit)


async def test_creative_writing_is_not_kept(make: Make) -> None:
    caches = make({"poems": ScopeSettings(kind="creative")})
    miss = await ask(caches, asked("A poem!", scope="poems"))
    assert isinstance(miss, Miss) and miss.reason == "off"


async def test_an_image_counts_by_its_digest(make: Make) -> None:
    from lpc.responses.canonical import digest_of

    def with_image(url: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        return asked(messages=({"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]},))

    caches = make()
    url = "data:image/png;base64,AAAA"
    await fill(caches, with_image(url))
    assert isinstance(await ask(caches, with_image(digest_of(url))), Hit)
    assert isinstance(await ask(caches, with_image(url + "A")), Miss)


async def test_64_at_once_ask_the_engine_once(make: Make) -> None:
    sidecars = [make(), make()]
    engine_calls = 0

    async def one(caches: Caches) -> Hit | Miss:
        nonlocal engine_calls
        outcome = await ask(caches, asked("Is it?"), wait_s=20)
        if isinstance(outcome, Miss):
            engine_calls += 1
            await asyncio.sleep(0.1)
            await caches.cache.store("a", asked("Is it?"), answer(), flight=outcome.flight)
        return outcome

    outcomes = await asyncio.gather(*(one(sidecars[n % 2]) for n in range(64)))
    assert engine_calls == 1
    assert sum(isinstance(outcome, Hit) for outcome in outcomes) == 63


async def test_a_leader_that_dies_frees_the_others(make: Make) -> None:
    caches = make(flight_s=0.3)
    leader = await ask(caches, asked("Is it?"), wait_s=5)
    assert isinstance(leader, Miss) and leader.flight
    engine_calls = 1

    async def one() -> Hit | Miss:
        nonlocal engine_calls
        outcome = await ask(caches, asked("Is it?"), wait_s=20)
        if isinstance(outcome, Miss):
            engine_calls += 1
            await caches.cache.store("a", asked("Is it?"), answer(), flight=outcome.flight)
        return outcome

    await asyncio.gather(*(one() for _ in range(20)))
    assert engine_calls == 2


async def test_an_aborted_answer_lets_one_of_the_others_try(make: Make) -> None:
    caches = make()
    leader = await ask(caches, asked("Is it?"))
    assert isinstance(leader, Miss)
    waiting = asyncio.create_task(ask(caches, asked("Is it?"), wait_s=20))
    await asyncio.sleep(0.1)
    assert (await caches.cache.store("a", asked("Is it?"), answer(), flight=leader.flight, aborted=True)).refusal == "aborted"
    outcome = await waiting
    assert isinstance(outcome, Miss) and outcome.flight


async def test_when_the_answer_is_not_kept_nobody_waits_for_the_next(make: Make) -> None:
    caches = make()
    leader = await ask(caches, asked("Is it?"))
    assert isinstance(leader, Miss)
    waiting = [asyncio.create_task(ask(caches, asked("Is it?"), wait_s=20)) for _ in range(5)]
    await asyncio.sleep(0.1)
    await caches.cache.store("a", asked("Is it?"), answer(finish_reason="length"), flight=leader.flight)
    outcomes = await asyncio.gather(*waiting)
    # None is told that another one has it, which would be a reason to go on waiting.
    assert {(outcome.reason, outcome.flight) for outcome in outcomes if isinstance(outcome, Miss)} == {("cold", b"")}


async def test_who_has_no_patience_does_not_wait(make: Make) -> None:
    caches = make()
    await ask(caches, asked("Is it?"))
    outcome = await ask(caches, asked("Is it?"))
    assert isinstance(outcome, Miss)
    assert (outcome.reason, outcome.flight) == ("in_flight", b"")


@pytest.mark.parametrize(
    "narrow", [{"scope": "faq"}, {"scope": None}, {"scope": None, "model": "m"}, {"scope": "faq", "tag": "t"}]
)
async def test_what_is_invalidated_is_found_no_more(make: Make, narrow: dict[str, Any]) -> None:
    caches = make()
    await fill(caches, asked("Is it?", tags=("t",)))
    assert await caches.upkeep.invalidate("a", **narrow) == (True, 0)
    for sidecar in (caches, make()):
        assert isinstance(await ask(sidecar, asked("Is it?", tags=("t",))), Miss)
    await fill(make(), asked("And now?", tags=("t",)))
    assert isinstance(await ask(caches, asked("And now?", tags=("t",))), Hit)


@pytest.mark.parametrize("how", ["purged", "flushed"])
async def test_what_is_stored_after_everything_was_lost_can_be_invalidated(
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
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


@pytest.mark.parametrize("narrow", [{"scope": "other"}, {"scope": None, "model": "m2"}, {"scope": None, "tag": "t2"}])
async def test_nothing_else_is_invalidated(make: Make, narrow: dict[str, Any]) -> None:
    caches = make()
    await fill(caches, asked("Is it?", tags=("t",)))
    await fill(caches, asked("Is it?"), client="b")
    await caches.upkeep.invalidate("a", **narrow)
    await caches.upkeep.invalidate("b", scope=None)
    assert isinstance(await ask(caches, asked("Is it?", tags=("t",))), Hit)


async def test_an_answer_that_was_asked_for_before_an_invalidation_is_not_stored_after_it(make: Make) -> None:
    caches = make()
    miss = await ask(caches, asked("Is it?"))
    assert isinstance(miss, Miss)
    await caches.upkeep.invalidate("a", scope="faq")
    stored = await caches.cache.store("a", asked("Is it?"), answer(), flight=miss.flight)
    assert stored.refusal == "stale"
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


async def test_nor_is_one_without_a_flight_that_the_engine_had_begun_before_it(make: Make) -> None:
    caches = make()
    await caches.upkeep.invalidate("a", scope="faq", model="m")
    stored = await caches.cache.store("a", asked("Is it?"), answer(engine_s=60.0))
    assert stored.refusal == "stale"
    assert (await caches.cache.store("a", asked("Is it?"), answer(engine_s=0.0))).refusal is None


async def test_an_entry_is_dropped_by_who_was_served_it_and_by_nobody_else(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, Hit)
    wrong = {"wrong": True, "reason": "outdated", "drop": True}
    assert await caches.upkeep.feedback("b", hit.ticket, **wrong) == (False, False)
    assert await caches.upkeep.feedback("a", hit.ticket[:-1] + b"x", **wrong) == (False, False)
    assert isinstance(await ask(caches, asked("Is it?")), Hit)
    assert await caches.upkeep.feedback("a", hit.ticket, **wrong) == (True, True)
    assert isinstance(await ask(caches, asked("Is it?")), Miss)


async def test_what_is_erased_is_gone_from_redis(make: Make, redis_server: RedisServer) -> None:
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


async def test_a_scope_keeps_within_its_bound(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(max_entries=10)})
    for n in range(30):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?"))
    with contextlib.closing(redis_server.client()) as client:
        assert len(list(client.scan_iter("lpc:rc:*:e:*"))) == 10
    assert isinstance(await ask(caches, asked("Is it 29?")), Hit)
    assert isinstance(await ask(caches, asked("Is it 3?")), Miss)
    assert evicted(caches) == {"entries": 20, "bytes": 0}


@pytest.mark.parametrize(
    ("narrow", "goes"),
    [
        ({"scope": None, "tag": "t"}, {"tagged", "both"}),
        ({"scope": None, "model": "m2"}, {"other model", "its version", "both"}),
        ({"scope": "faq", "model": "m2", "version": "7"}, {"its version"}),
        ({"scope": "other", "tag": "t"}, set()),
    ],
)
async def test_what_is_erased_by_tag_or_model_is_gone_from_redis_and_nothing_else_is(
    make: Make, redis_server: RedisServer, narrow: dict[str, Any], goes: set[str]
) -> None:
    caches = make()
    requests = {
        "plain": asked("Is it?"),
        "tagged": asked("Is it tagged?", tags=("t", "u")),
        "other model": asked("Is it?", model="m2"),
        "its version": asked("Is it?", model="m2", model_version="7"),
        "both": asked("Is it both?", model="m2", tags=("t",)),
    }
    for request in requests.values():
        await fill(caches, request)
    before = len(entries_in(redis_server))
    assert await caches.upkeep.invalidate("a", **narrow, erase=True) == (True, len(goes))
    assert len(entries_in(redis_server)) == before - len(goes)
    for name, request in requests.items():
        assert isinstance(await ask(caches, request), Miss if name in goes else Hit), name
    (figures,) = await caches.upkeep.figures("a", None, 1)
    assert figures.entries == 5 - len(goes)


async def test_what_is_no_name_of_an_entry_stops_no_erasure(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?", tags=("t",)))
    with contextlib.closing(redis_server.client()) as client:
        (ends,) = client.scan_iter("lpc:rc:*:z")
        client.zadd(ends, {"a:1": 1e12})
    assert await caches.upkeep.invalidate("a", scope="faq", tag="t", erase=True) == (True, 1)


async def test_a_scope_keeps_within_its_bytes(make: Make, redis_server: RedisServer) -> None:
    caches = make({"faq": ScopeSettings(max_mib=1)})
    for n in range(40):
        caches.clock.now += 1
        await fill(caches, asked(f"Is it {n}?"), answer(secrets.token_hex(30_000)))
    held = entries_in(redis_server)
    assert 0.9 * 2**20 < sum(held.values()) <= 2**20
    assert counted_bytes(redis_server) == sum(held.values())
    assert isinstance(await ask(caches, asked("Is it 39?")), Hit)
    assert isinstance(await ask(caches, asked("Is it 3?")), Miss)
    assert evicted(caches) == {"entries": 0, "bytes": 40 - len(held)}


async def test_what_is_replaced_dropped_or_ended_is_no_longer_counted(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    await fill(caches, asked("Is it?"), answer("short"))
    await caches.cache.store("a", asked("Is it?"), answer(secrets.token_hex(9000)))
    await fill(caches, asked("And that?"), answer(secrets.token_hex(5000)))
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values())
    hit = await ask(caches, asked("Is it?"))
    assert isinstance(hit, Hit)
    await caches.upkeep.invalidate_entry("a", hit.ticket)
    await caches.upkeep.invalidate_entry("a", hit.ticket)
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values())
    # All that lives ends, by this clock, before the next one is stored.
    with contextlib.closing(redis_server.client()) as client:
        client.delete(*entries_in(redis_server))
    caches.clock.now += 24 * 3600
    await fill(caches, asked("Much later?"))
    assert counted_bytes(redis_server) == sum(entries_in(redis_server).values()) > 0


async def test_figures_say_what_was_spared(make: Make) -> None:
    caches = make()
    await fill(caches, asked("Is it?"))
    for _ in range(2):
        await ask(caches, asked("Is it?"))
    await caches.upkeep.feedback("a", (await fill(caches, asked("So?"))).ticket, wrong=False, reason="", drop=False)
    (figures,) = await caches.upkeep.figures("a", None, 2)
    assert (figures.name, figures.known, figures.entries, len(figures.days)) == ("faq", True, 2, 2)
    (today, yesterday) = figures.days.values()
    assert yesterday == {}
    assert today["hit:exact"] == 2 and today["miss:cold"] == 2 and today["stored"] == 2
    assert (today["prompt_tokens"], today["completion_tokens"], today["engine_ms"]) == (14, 10, 1000)
    assert today["feedback:right"] == 1
    assert await caches.upkeep.figures("b", None, 1) == []


async def test_keys_are_rotated_while_it_serves(make: Make) -> None:
    caches = make()
    await fill(caches, asked("old?"))
    names, first = KEY_LINES.splitlines()
    caches.key_file.write_text("\n".join((names, "k2: " + "33" * 32, first)))
    assert caches.keys.refresh()
    await fill(caches, asked("new?"))
    assert isinstance(await ask(caches, asked("old?")), Hit)
    caches.key_file.write_text("\n".join((names, "k2: " + "33" * 32)))
    assert caches.keys.refresh()
    assert isinstance(await ask(caches, asked("old?")), Miss)
    assert isinstance(await ask(caches, asked("new?")), Hit)


async def test_with_another_key_everything_is_a_miss_and_can_be_filled_again(make: Make) -> None:
    await fill(make(), asked("Is it?"))
    other = make(key_lines=KEY_LINES.replace("22", "44"))
    await fill(other, asked("Is it?"))
    assert isinstance(await ask(other, asked("Is it?")), Hit)
