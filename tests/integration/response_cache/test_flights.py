"""Leaders that go before they store: their flights end at once or soon. The waiting of others does not count as look-ups."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from predictor_service.errors import Overloaded
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import Caller, CallerLimits, InFlight
from response_cache.client import ResponseCacheClient
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.service.running import running
from response_cache.store import flights
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.eventually import eventually
from tests.integration.response_cache.test_cache import Make, ask, make
from tests.integration.response_cache.test_service import caching, request, response
from tests.metric_values import counted
from tests.response_cache import answer, asked

__all__ = ["make"]

PATIENCE_S = 30.0
"""Longer than a busy machine needs, and shorter than the flight of a leader that does not renew it."""


async def is_led(caches: Any, **fields: Any) -> bool:
    """Return whether this caller leads now."""
    outcome = await ask(caches, asked("Is it?"), **fields)
    return isinstance(outcome, CacheMiss) and bool(outcome.flight)


def flights_in(server: RedisServer) -> list[bytes]:
    with contextlib.closing(server.client()) as client:
        return list(client.scan_iter("lpc:rc:*:f:*"))


@pytest.mark.parametrize("renews", [True, False])
@pytest.mark.parametrize("scope", [ScopeSettings(), ScopeSettings(mode="shadow")], ids=["exact", "semantic"])
async def test_a_look_up_that_is_given_up_after_redis_took_its_flight_leaves_none(
    make: Make, monkeypatch: pytest.MonkeyPatch, scope: ScopeSettings, renews: bool
) -> None:
    caches = make({"faq": scope})
    taken, given_up = asyncio.Event(), asyncio.Event()
    run = caches.redis.run

    async def slow(script: str, *arguments: Any, **fields: Any) -> Any:
        found = await run(script, *arguments, **fields)
        if script == flights.TAKE:
            taken.set()
            await given_up.wait()
        return found

    monkeypatch.setattr(caches.redis, "run", slow)
    looking = asyncio.create_task(ask(caches, asked("Is it?"), renews=renews))
    await taken.wait()
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    following = asyncio.create_task(ask(caches, asked("Is it?"), wait_s=PATIENCE_S))
    given_up.set()
    outcome = await following
    assert isinstance(outcome, CacheMiss) and outcome.flight


async def test_callers_that_give_up_at_any_time_hold_up_nobody(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    for n in range(40):
        looking = asyncio.create_task(ask(caches, asked("Is it?")))
        await asyncio.sleep(n / 10_000)
        looking.cancel()
        outcome = (await asyncio.gather(looking, return_exceptions=True))[0]
        if isinstance(outcome, CacheMiss):
            await caches.cache.store("a", asked("Is it?"), answer(), flight=outcome.flight, aborted=True)
        await eventually(lambda: not flights_in(redis_server), PATIENCE_S)


async def test_a_client_whose_deadline_passes_holds_up_no_other_client(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous")
    async with running(settings) as addresses:
        hasty = ResponseCacheClient(f"127.0.0.1:{addresses.port}", timeout_s=0.001)
        patient = ResponseCacheClient(f"127.0.0.1:{addresses.port}", timeout_s=PATIENCE_S)
        for n in range(10):
            one = request(f"Is it {n}?")
            led = (await hasty.lookup(one)).miss.flight
            if led:  # it was in time
                await hasty.store(pb.StoreRequest(request=one, flight=led, aborted=True))
            found = await patient.wait_for_answer(one, PATIENCE_S)
            assert found.miss.reason == pb.REASON_COLD and found.miss.flight
        await hasty.close()
        await patient.close()


async def test_a_live_leader_renews_its_flight_and_that_of_a_dead_one_ends(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous")
    async with running(settings) as addresses:
        clients = [ResponseCacheClient(f"127.0.0.1:{addresses.port}", timeout_s=PATIENCE_S) for _ in range(2)]
        leader, follower = clients
        assert (await leader.lookup(request(tenant="t"))).miss.flight
        (flight,) = flights_in(redis_server)
        longer_ms = 2 * flights.LONGEST_LEASE_MS
        with contextlib.closing(redis_server.client()) as client:
            assert 0 < client.pttl(flight) <= 1000 * flights.LEASE_S
            client.pexpire(flight, longer_ms)
            await eventually(lambda: client.pttl(flight) <= 1000 * flights.LEASE_S)
        await leader.close()  # as if it had died: nothing is renewed or stored
        found = await follower.wait_for_answer(request(tenant="t"), PATIENCE_S)
        assert found.miss.reason == pb.REASON_COLD and found.miss.flight
        message = pb.StoreRequest(request=request(tenant="t"), response=response(), flight=found.miss.flight)
        assert (await follower.store(message)).stored
        assert not flights_in(redis_server)
        await follower.close()


async def test_only_the_leader_can_renew_a_flight(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous")
    async with running(settings) as addresses, grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        stub = rpc.ResponseCacheStub(channel)
        flight = (await stub.Lookup(pb.LookupRequest(request=request(tenant="t"), renews=True))).miss.flight

        async def renewed(*held: pb.HeldFlight) -> int:
            return (await stub.Renew(pb.RenewRequest(flights=held))).renewed

        with contextlib.closing(redis_server.client()) as client:
            client.pexpire(flights_in(redis_server)[0], 60_000)
        own = pb.HeldFlight(flight=flight, tenant="t")
        assert await renewed(pb.HeldFlight(flight=flight), pb.HeldFlight(flight=flight, tenant="u")) == 0
        assert await renewed(pb.HeldFlight(flight=b"x" * 99), own) == 1
        await stub.Store(pb.StoreRequest(request=request(tenant="t"), flight=flight, aborted=True))
        assert await renewed(own) == 0 and not flights_in(redis_server)
        with pytest.raises(grpc.aio.AioRpcError, match="more than 200 flights"):
            await renewed(*[own] * 201)


async def test_a_flight_that_a_failover_lost_is_not_created_again(make: Make, redis_server: RedisServer) -> None:
    caches = make()
    miss = await ask(caches, asked("Is it?"), renews=True)
    assert isinstance(miss, CacheMiss)
    with contextlib.closing(redis_server.client()) as client:
        client.flushall()  # a replica took over before it had the flight
    assert await caches.cache.renew("a", [("", miss.flight)]) == 0
    assert await is_led(caches), "the next caller goes to the engine"
    assert (await caches.cache.store("a", asked("Is it?"), answer(), flight=miss.flight)).refusal in (None, "stale")


@pytest.mark.parametrize("renews", [True, False])
async def test_a_clock_of_redis_that_was_set_back_holds_up_nobody(make: Make, redis_server: RedisServer, renews: bool) -> None:
    caches = make()
    assert await is_led(caches, renews=renews)
    with contextlib.closing(redis_server.client()) as client:
        (flight,) = flights_in(redis_server)
        client.pexpire(flight, 10_000 if renews else 600_000)  # what remains after a step of the wall clock
    assert await is_led(caches)


async def test_a_request_that_waits_in_several_calls_is_one_look_up(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("response_cache.client.SLICE_S", 0.1)
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous")
    async with running(settings) as addresses:
        client = ResponseCacheClient(f"127.0.0.1:{addresses.port}", timeout_s=PATIENCE_S)
        flight = (await client.lookup(request())).miss.flight

        async def follow() -> pb.LookupResponse:
            found = await client.lookup(request(), will_wait=True)
            assert found.miss.reason == pb.REASON_IN_FLIGHT
            return await client.wait_for_answer(request(), PATIENCE_S)

        following = [asyncio.create_task(follow()) for _ in range(5)]
        await asyncio.sleep(1)  # several calls of each
        await client.store(pb.StoreRequest(request=request(), response=response(), flight=flight))
        assert all(found.HasField("hit") for found in await asyncio.gather(*following))
        (day,) = (await client.report(pb.ReportRequest())).days
        assert dict(day.lookups) == {"cold": 1, "exact": 5}
        await client.close()


async def test_a_request_whose_wait_ends_without_an_answer_is_one_look_up(make: Make) -> None:
    caches = make({"faq": ScopeSettings(warm_up=True)})
    assert await is_led(caches)
    for asks_again in (True, True, True, False):
        outcome = await ask(caches, asked("Is it?"), wait_s=0.01, asks_again=asks_again)
        assert isinstance(outcome, CacheMiss) and outcome.reason == "in_flight"
    assert counted(caches.metrics.lookups.labels("faq", "in_flight")) == 1


def test_answers_without_a_wait_count_against_the_rate_afterwards() -> None:
    caller = Caller("a", "", CallerLimits(rate=0.001), Metrics(), InFlight())
    caller.admit(0)
    for _ in range(5):
        caller.owe(1)
    with pytest.raises(Overloaded, match="client a may send"):
        caller.admit(0)


async def test_a_hit_ends_a_wait_although_the_leader_is_at_another_sidecar(make: Make) -> None:
    one, other = make(), make()
    miss = await ask(one, asked("Is it?"), renews=True)
    assert isinstance(miss, CacheMiss)
    waiting = asyncio.create_task(ask(other, asked("Is it?"), wait_s=PATIENCE_S))
    await one.cache.store("a", asked("Is it?"), answer(), flight=miss.flight)
    assert isinstance(await waiting, CacheHit)
