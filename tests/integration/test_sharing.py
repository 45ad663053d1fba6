"""A conversation whose turns reach different sidecars, with a real Redis, without one, and with one that dies."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lpc.clock import MonotoneClock
from lpc.model.arrivals import GapHistory
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Past
from lpc.model.returns.users import UserPast
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.redis_connection import Connection
from predictor_service.batching.prepare import Preparation
from predictor_service.labels.tracker import TurnTracker
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import ServedModels
from predictor_service.sharing import records, registry
from predictor_service.sharing.records import SharedTurn
from predictor_service.sharing.registry import TurnRegistry
from testing.processes import RedisServer
from tests.eventually import eventually, until
from tests.guarded_redis import GuardedRedis
from tests.integration.test_returns import Sidecar, sidecar
from tests.integration.test_server import scrape
from tests.jobs import unread_job
from tests.metric_values import counted

HORIZON_S = 600.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for Redis as long as a loaded machine takes."""
    monkeypatch.setattr(registry, "PATIENCE_S", 20.0)


def turn(*prompts: str, name: str = "") -> pb.Conversation:
    """The request of a conversation's latest turn, with all before it."""
    messages = []
    for prompt in prompts[:-1]:
        messages += [pb.ChatMessage(role="user", content=prompt), pb.ChatMessage(role="assistant", content="yes")]
    messages.append(pb.ChatMessage(role="user", content=prompts[-1]))
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), conversation_id=name)


@contextlib.asynccontextmanager
async def fleet(models: Path, redis_url: str, size: int = 2, **settings: object) -> AsyncIterator[list[Sidecar]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(sidecar(models, redis_url=redis_url, label_horizon_s=HORIZON_S, **settings))
            for _ in range(size)
        ]
        if redis_url:
            for one in made:
                await eventually(lambda one=one: shows(one, "lpc_turns_shared 1.0"))  # type: ignore[misc]
        yield made


async def shows(one: Sidecar, line: str) -> bool:
    return line in await scrape(one.addresses)


async def counts(one: Sidecar, metric: str) -> dict[str, float]:
    lines = [line for line in (await scrape(one.addresses)).splitlines() if line.startswith(f"{metric}{{")]
    return {line.split('"')[-2]: float(line.rsplit(" ", 1)[1]) for line in lines}


async def labelled(one: Sidecar) -> dict[str, float]:
    """What became of the predictions: continued or not."""
    found = {"true": 0.0, "false": 0.0}
    for line in (await scrape(one.addresses)).splitlines():
        if line.startswith("lpc_labelled_predictions_total{"):
            for answer in found:
                found[answer] += float(line.rsplit(" ", 1)[1]) * (f'continued="{answer}"' in line)
    return found


async def learnt(one: Sidecar) -> dict[str, float]:
    return await counts(one, "lpc_returns_learnt")


async def set_clocks(sidecars: list[Sidecar], seconds: float) -> None:
    for one in sidecars:
        one.now += seconds


PROMPTS = ("tell me of caches, at some length, so that nobody else would begin so", "and then?", "and after that?")


@pytest.mark.parametrize("name", ["", "conversation-1"])
async def test_a_next_turn_at_another_sidecar_counts_as_a_return(
    tiny_models: Path, redis_server: RedisServer, name: str
) -> None:
    async with fleet(tiny_models, redis_server.url, label_log=None) as (a, b):
        both = [a, b]
        await a.ask(turn(PROMPTS[0], name=name))
        await set_clocks(both, 30)
        await b.ask(turn(*PROMPTS[:2], name=name))
        await eventually(lambda: shows(a, 'lpc_returns_learnt{of="returns"} 1.0'))
        await set_clocks(both, 40)
        await a.ask(turn(*PROMPTS, name=name))
        await eventually(lambda: shows(b, 'lpc_returns_learnt{of="returns"} 1.0'))
        assert (await counts(a, "lpc_turns_total"))["elsewhere"] == (await counts(a, "lpc_turns_total"))["heard"] == 1
        # The gaps are those of the whole conversation, though each sidecar saw every other turn.
        facts = Facts._make([*a.model._memory._values[1], ""])
        assert (facts.turn_count, facts.last_gap) == (3, 40.0)
        assert facts.mean_gap == pytest.approx((30 * 40) ** 0.5, rel=1e-3)
        await set_clocks(both, HORIZON_S)
        await eventually(lambda: is_labelled(a, 2))
        assert await labelled(a) == {"true": 1.0, "false": 1.0}  # the first went on, the last did not
        await eventually(lambda: is_labelled(b, 1))
        assert await labelled(b) == {"true": 1.0, "false": 0.0}


async def is_labelled(one: Sidecar, count: int) -> bool:
    return sum((await labelled(one)).values()) == count


async def test_a_turn_repeated_at_another_sidecar_is_not_a_return(tiny_models: Path, redis_server: RedisServer) -> None:
    async with fleet(tiny_models, redis_server.url) as (a, b):
        both = [a, b]
        await a.ask(turn(*PROMPTS[:2]))
        await set_clocks(both, 1)
        await b.ask(turn(*PROMPTS[:2]))
        assert (await counts(b, "lpc_turns_total"))["repeated"] == 1
        assert (await learnt(b))["turns"] == 0
        await set_clocks(both, 30)
        await b.ask(turn(*PROMPTS))
        await eventually(lambda: shows(a, 'lpc_returns_learnt{of="returns"} 1.0'))
        await set_clocks(both, HORIZON_S)
        await eventually(lambda: is_labelled(a, 1))
        await eventually(lambda: is_labelled(b, 1))
        assert await labelled(a) == {"true": 1.0, "false": 0.0}
        assert await labelled(b) == {"true": 0.0, "false": 1.0}
        assert (await counts(b, "lpc_unlabelled_predictions_total"))["repeated"] == 1


async def test_answers_go_on_when_redis_dies_and_the_log_has_it_once(
    tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lpc.wire.redis_health")
    with RedisServer(tmp_path) as server:
        async with fleet(tiny_models, server.url, redis_timeout_s=0.5) as (a, b):
            server.kill()
            for n in range(5):
                assert await a.ask(turn(f"a question of its own, number {n}"))
                await set_clocks([a, b], 1)
            await eventually(lambda: shows(a, "lpc_turns_shared 0.0"))
            await eventually(lambda: shows(b, "lpc_turns_shared 0.0"))
            await asyncio.sleep(2)
            assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # of two sidecars
            # Meanwhile each learns from its own turns.
            await a.ask(turn(*PROMPTS[:1]))
            await set_clocks([a, b], 20)
            await a.ask(turn(*PROMPTS[:2]))
            assert (await learnt(a))["returns"] == 1
            server.start()
            for one in (a, b):
                await eventually(lambda one=one: shows(one, "lpc_turns_shared 1.0"))  # type: ignore[misc]
            await set_clocks([a, b], 20)
            await b.ask(turn("something new that is long enough to be unlike all others, I hope"))
            await set_clocks([a, b], 20)
            await a.ask(turn("something new that is long enough to be unlike all others, I hope", "well?"))
            assert (await counts(a, "lpc_turns_total"))["elsewhere"] == 1


async def test_redis_contains_no_text_and_keys_expire(tiny_models: Path, redis_server: RedisServer) -> None:
    async with fleet(tiny_models, redis_server.url, size=1) as (a,):
        await a.ask(turn("zebra crossing", name="giraffe"))
        await a.ask(turn("zebra crossing", "hippopotamus"))
        with contextlib.closing(redis_server.client()) as client:
            keys = list(client.keys("*"))
            assert len(keys) >= 3 and all(key.startswith(b"lpc:seen:") for key in keys)
            for key in keys:
                assert client.pttl(key) > 0
                for word in (b"zebra", b"giraffe", b"hippo"):
                    assert word not in key and word not in (client.get(key) or b"")


def seen(number: int, count: int = 1) -> SharedTurn:
    past = Past(GapHistory(1.7e9 + number, 30.0, 3.4, 1), 512.0, 128.0)
    return SharedTurn(b"sidecar.", number.to_bytes(8, "big"), bytes(16), bytes(16), count, past)


def test_of_several_turns_under_one_name_the_one_with_the_right_count_is_taken(redis_server: RedisServer) -> None:
    with contextlib.closing(redis_server.client()) as client:
        records.put(client, [(b"n", seen(n, count)) for n, count in enumerate((5, 2, 2))], 60)
        taken = [records.take(client, b"sidecar.", [(b"n", b"", 3)])[0] for _ in range(4)]
        assert [one and int.from_bytes(one.turn, "big") for one in taken] == [1, 2, 0, None]
        assert taken[0] == seen(1, 2)


def test_a_record_is_read_as_it_was_written_and_a_broken_one_is_passed_over() -> None:
    one = seen(7, 3)
    assert list(SharedTurn.all_in(one.pack() + one.pack()[:-1])) == [one]
    assert list(SharedTurn.all_in(b"")) == []


def as_user(conversation: pb.Conversation) -> pb.Conversation:
    conversation.user = "me"
    return conversation


async def test_the_engines_user_of_redis_may_do_all_of_it(tiny_models: Path, guarded_redis: GuardedRedis) -> None:
    async with fleet(tiny_models, guarded_redis.url) as (a, b):
        await a.ask(as_user(turn(PROMPTS[0])))
        await set_clocks([a, b], 30)
        await b.ask(as_user(turn(*PROMPTS[:2])))
        await eventually(lambda: shows(a, 'lpc_returns_learnt{of="returns"} 1.0'))
        await b.ask(as_user(turn(*PROMPTS)))
        assert (await counts(b, "lpc_turns_total"))["own"] == 1
        await asyncio.sleep(1)
        with contextlib.closing(Connection(guarded_redis.url).client) as client:
            records.shed_users(client, [b"client"])
        assert guarded_redis.refused() == set()


@contextlib.contextmanager
def prepared_sides(url: str, count: int) -> Iterator[list[tuple[Preparation, TurnRegistry, Metrics]]]:
    """Preparations of sidecars that share their turns, without the sidecars around them."""
    sides: list[tuple[Preparation, TurnRegistry, Metrics]] = []
    try:
        for _ in range(count):
            tracker, metrics = TurnTracker(100, HORIZON_S, []), Metrics()
            clock = MonotoneClock(lambda: 1_700_000_000.0)
            shared = TurnRegistry(Connection(url, timeout_s=20.0), tracker, metrics, clock)
            parser = RequestParser(RequestLimits(10, 1000, 100), ServedModels({}))
            preparation = Preparation(parser, tracker, metrics, registry=shared, threads=1, clock=clock.now)
            sides.append((preparation, shared, metrics))
        yield sides
    finally:
        for preparation, shared, _ in sides:
            preparation.close()
            shared.close()


async def connected(shared: TurnRegistry) -> None:
    await eventually(lambda: shared.key is not None)


async def shared_past(
    sides: list[tuple[Preparation, TurnRegistry, Metrics]], name: str, between: Callable[[], object] = lambda: None
) -> bool:
    """Ask the first sidecar for a conversation's first turn, the second one for its next; say if that one knew the first."""
    ids = pb.TokenIds(ids=range(500), served_model="nobody knows it")
    await sides[0][0].note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id=name)))
    between()
    ids.ids.extend(range(200))
    second = await sides[1][0].note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id=name)))
    return second.arrival.facts.growth_tokens == 200


async def test_a_next_turn_at_once_after_the_answer_is_found_however_slow_redis_stores(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = records.put

    def slow(*args: Any) -> list[Any]:
        time.sleep(0.2)
        return put(*args)

    monkeypatch.setattr(records, "put", slow)
    with prepared_sides(redis_server.url, 2) as sides:
        for _, shared, _ in sides:
            await connected(shared)
        assert await shared_past(sides, "slow")


async def test_a_key_of_another_type_costs_the_turns_of_one_conversation_only(redis_server: RedisServer) -> None:
    with prepared_sides(redis_server.url, 2) as sides, contextlib.closing(redis_server.client()) as admin:

        def turns() -> list[bytes]:
            return [key for key in admin.scan_iter("lpc:seen:*") if key != b"lpc:seen:key" and b":to:" not in key]

        def spoil() -> None:
            for key in until(turns):
                admin.delete(key)
                admin.rpush(key, "not ours")

        for _, shared, _ in sides:
            await connected(shared)
        assert not await shared_past(sides, "broken", spoil)
        for number in range(3):
            assert await shared_past(sides, f"sound {number}")
            assert all(shared.key is not None for _, shared, _ in sides)
        assert sum(counted(metrics.invalid_values.labels("turns")) for _, _, metrics in sides) > 0


async def test_a_full_redis_does_not_end_the_turns(redis_server: RedisServer) -> None:
    with prepared_sides(redis_server.url, 3) as sides, contextlib.closing(redis_server.client()) as admin:
        for _, shared, _ in sides[:2]:
            await connected(shared)
        admin.config_set("maxmemory", "1")
        try:
            for number in range(3):
                assert not await shared_past(sides, f"while full {number}")
                assert all(shared.key is not None for _, shared, _ in sides[:2])
            await connected(sides[2][1])  # a sidecar that starts or reconnects now reads the fleet's key
        finally:
            admin.config_set("maxmemory", "0")
        assert await shared_past(sides, "after")
        assert sum(counted(metrics.refused_by_redis.labels("turns", "OOM")) for _, _, metrics in sides) > 0


def users_of(client_part: bytes, count: int) -> list[tuple[bytes, UserPast]]:
    return [(client_part + os.urandom(10), UserPast(1_700_000_000.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0)) for _ in range(count)]


def test_the_users_that_a_client_invents_take_bounded_memory_in_redis(redis_server: RedisServer) -> None:
    with contextlib.closing(redis_server.client()) as client:
        before = client.info("memory")["used_memory"]
        other = users_of(b"quiet!", 100)
        records.put(client, [], 60, users=other)
        for _ in range(30):
            records.put(client, [], 60, users=users_of(b"loud!!", 1000))
        kept = list(client.scan_iter("lpc:seen:user:*"))
        assert len([key for key in kept if b":" + b"loud!!".hex().encode() in key]) <= records.SLOTS
        assert max(client.strlen(key) for key in kept) <= records.SLOT_BYTES
        assert client.info("memory")["used_memory"] - before < 3 * 2**20
        assert all(0 < client.pttl(key) <= 1000 * records.ONCE_S for key in kept)
        assert None not in records.look_up_users(client, [name for name, _ in other])


def test_of_one_slot_the_users_who_came_last_are_kept_and_who_returns_is_kept_longer(redis_server: RedisServer) -> None:
    def user(number: int) -> bytes:
        return b"client" + bytes(4) + number.to_bytes(6, "big")

    past = UserPast(1_700_000_000.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    with contextlib.closing(redis_server.client()) as client:
        for number in range(12):
            records.put(client, [], 60, users=[(user(number), past), (user(0), past._replace(turns=2.0 + number))])
        found = records.look_up_users(client, [user(number) for number in range(12)])
        assert [number for number, one in enumerate(found) if one is not None] == [0, *range(5, 12)]
        assert found[0] == past._replace(turns=13.0)
        (key,) = client.scan_iter("lpc:seen:user:*")
        assert client.pttl(key) > 1000 * records.ONCE_S


async def test_a_full_redis_gives_up_users_before_turns(redis_server: RedisServer) -> None:
    with prepared_sides(redis_server.url, 2) as sides, contextlib.closing(redis_server.client()) as admin:
        for _, shared, _ in sides:
            await connected(shared)
        ids = pb.TokenIds(ids=range(500), served_model="nobody knows it")
        await sides[0][0].note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id="first", user="me")))
        (client_part,) = await eventually(lambda: sides[0][1]._clients)
        for _ in range(20):
            records.put(admin, [], 60, users=users_of(client_part, 1000))
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 400_000)
        try:
            await shared_past(sides, "makes room")
            for number in range(5):
                assert await shared_past(sides, f"conversation {number}")
            assert not list(admin.scan_iter(f"lpc:seen:user:{client_part.hex()}:*"))
        finally:
            admin.config_set("maxmemory", "0")


async def test_a_second_client_finds_its_user_at_another_sidecar_after_a_flood(redis_server: RedisServer) -> None:
    with prepared_sides(redis_server.url, 2) as sides:
        for _, shared, _ in sides:
            await connected(shared)
        ids = pb.TokenIds(ids=range(500), served_model="nobody knows it")
        for number in range(200):
            one = pb.Conversation(tokens=ids, conversation_id=f"{number}", user=f"invented {number}")
            await sides[0][0].note_unread(unread_job(one, "loud"))
        await sides[0][0].note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id="mine", user="me"), "quiet"))
        found = await sides[1][0].note_unread(
            unread_job(pb.Conversation(tokens=ids, conversation_id="other", user="me"), "quiet")
        )
        assert found.arrival.user_past.turns == 1.0
