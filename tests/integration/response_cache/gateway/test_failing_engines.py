"""Engines that fail: what was not answered goes to another one, and the metric of the alert falls."""

from collections.abc import AsyncIterator

import pytest

from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat
from tests.rude_engine import (
    Manner,
    answers_nothing,
    answers_once,
    begins_and_closes,
    closes,
    core_died,
    full,
    late_upstream,
    overloaded,
    promises_and_closes,
    reads_and_closes,
    refuses_and_closes,
    refuses_early,
    serve_rude,
    streams_an_error,
    without_upstream,
)

ECHO = {"gateway_paths": ("POST /echo",)}
FORM = {"content-type": "multipart/form-data; boundary=x"}


async def statuses(gateway: Running, count: int) -> set[int]:
    """Return the statuses of so many conversations."""
    return {(await gateway.ask(chat(f"conversation {i}"))).status_code for i in range(count)}


async def up(gateway: Running, url: str) -> float:
    return await gateway.metric(f'lpc_gateway_engine_up{{engine="{url.removeprefix("http://")}"}}')


async def counted(gateway: Running, url: str, status: str) -> float:
    name = url.removeprefix("http://")
    return await gateway.metric(f'lpc_gateway_engine_requests_total{{engine="{name}",status="{status}"}}')


FAILING = [
    *(closes, reads_and_closes, begins_and_closes, promises_and_closes, answers_nothing, streams_an_error),
    *(overloaded, without_upstream, core_died, late_upstream),
]
ANSWERED = (overloaded, without_upstream, core_died, late_upstream, streams_an_error)


@pytest.mark.parametrize("manner", FAILING)
async def test_no_client_sees_an_engine_that_fails_and_the_engine_counts_as_down(manner: Manner) -> None:
    async with serve_double(EngineDouble()) as good, serve_rude(manner) as bad, a_gateway(good, bad.url) as gateway:
        assert await statuses(gateway, 20) == {200}
        assert len(good.completions) == 20
        assert (await up(gateway, good.url), await up(gateway, bad.url)) == (1, 0)
        # Good probes alone do not make it up, or the alert would not fire.
        seen = bad.probes
        await eventually(lambda: bad.connections and (manner is closes or bad.probes >= seen + 5))
        assert await statuses(gateway, 20) == {200}
        assert await up(gateway, bad.url) == 0
        failure = "5xx" if manner in ANSWERED else "broken"
        assert 0 < await counted(gateway, bad.url, failure) < 20


async def test_a_request_whose_kept_connection_closes_is_sent_again_on_a_new_one() -> None:
    async with serve_rude(answers_once) as engine, a_gateway(engine.url) as gateway:
        assert await statuses(gateway, 10) == {200}
        assert len(engine.bodies) == 10 and await up(gateway, engine.url) == 1
        assert await counted(gateway, engine.url, "stale") >= 4
        assert await counted(gateway, engine.url, "broken") == 0


async def test_no_client_sees_an_engine_without_room_while_another_has_some_and_it_counts_as_up() -> None:
    async with serve_double(EngineDouble()) as good, serve_rude(full) as bad, a_gateway(good, bad.url) as gateway:
        assert await statuses(gateway, 20) == {200}
        assert bad.bodies and await up(gateway, bad.url) == 1


@pytest.mark.parametrize("manner", [begins_and_closes, streams_an_error])
async def test_a_stream_that_fails_before_its_first_chunk_is_another_engines(manner: Manner) -> None:
    async with serve_double(EngineDouble()) as good, serve_rude(manner) as bad, a_gateway(good, bad.url) as gateway:
        for i in range(8):
            answer = await gateway.ask(chat(str(i), stream=True))
            assert answer.status_code == 200 and "error" not in answer.text and answer.text.endswith("data: [DONE]\n\n")
        assert bad.bodies


async def test_an_error_of_the_only_engine_is_passed_on_as_it_is() -> None:
    async with serve_rude(streams_an_error) as engine, a_gateway(engine.url) as gateway:
        answer = await gateway.ask(chat("x", stream=True))
        assert answer.status_code == 200 and '"code": 500' in answer.text and answer.text.endswith("data: [DONE]\n\n")
    async with serve_rude(begins_and_closes) as engine, a_gateway(engine.url) as gateway:
        assert (await gateway.ask(chat("x", stream=True))).status_code == 502


async def test_a_request_that_fails_at_all_engines_takes_none_down() -> None:
    async with (
        serve_rude(core_died) as one,
        serve_rude(core_died) as two,
        serve_rude(core_died) as three,
        serve_rude(core_died) as four,
        a_gateway(one.url, two.url, three.url, four.url) as gateway,
    ):
        assert await statuses(gateway, 1) == {500}
        assert sorted(len(engine.bodies) for engine in (one, two, three, four)) == [0, 1, 1, 1]
        assert [await up(gateway, engine.url) for engine in (one, two, three, four)] == [1, 1, 1, 1]


async def test_a_request_that_takes_longer_than_proxies_wait_occupies_two_engines_at_most() -> None:
    async with (
        serve_rude(late_upstream) as one,
        serve_rude(late_upstream) as two,
        serve_rude(late_upstream) as three,
        a_gateway(one.url, two.url, three.url) as gateway,
    ):
        assert await statuses(gateway, 1) == {504}
        assert sum(len(engine.bodies) for engine in (one, two, three)) == 2


async def test_a_refusal_that_an_engine_sends_before_it_has_read_the_body_reaches_the_client() -> None:
    async with serve_rude(refuses_early) as one, serve_rude(refuses_early) as two, a_gateway(one.url, two.url) as gateway:
        for i in range(4):
            answer = await gateway.ask(chat(f"{i}" + "x" * 4 * 2**20))
            assert (answer.status_code, answer.text) == (413, "large")
        assert (await up(gateway, one.url), await up(gateway, two.url)) == (1, 1)


async def test_an_engine_that_closes_while_it_receives_a_long_body_counts_as_up_and_the_error_says_why() -> None:
    async with serve_rude(refuses_and_closes) as one, serve_double(EngineDouble()) as two:
        async with a_gateway(one.url) as gateway:
            answer = await gateway.ask(chat("x" * 6 * 2**20))
            assert answer.status_code == 502 and "send a shorter one" in answer.json()["error"]["message"]
            assert await up(gateway, one.url) == 1
        async with a_gateway(one.url, two) as gateway:
            assert {(await gateway.ask(chat(f"{i}" + "x" * 6 * 2**20))).status_code for i in range(4)} == {200}
            assert await up(gateway, one.url) == 1


@pytest.mark.parametrize(
    ("manner", "status"),
    [(overloaded, 503), (without_upstream, 502), (full, 429), (core_died, 500), (late_upstream, 504)],
)
@pytest.mark.parametrize("engines", [1, 2])
async def test_the_client_gets_an_engines_own_answer_if_all_engines_refuse(manner: Manner, status: int, engines: int) -> None:
    async with serve_rude(manner) as one, serve_rude(manner) as two, a_gateway(*(one.url, two.url)[:engines]) as gateway:
        for _ in range(3):
            answer = await gateway.ask(chat("x"))
            assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (status, "too full", "7")
        assert (len(one.bodies) + len(two.bodies)) == 3 * engines


async def test_the_client_gets_the_refusal_of_the_first_engine_if_no_other_answers() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with serve_rude(overloaded) as full, a_gateway(dead, full.url) as gateway:
        for i in range(8):
            answer = await gateway.ask(chat(str(i)))
            assert (answer.status_code, answer.text) == (503, "too full")


async def test_a_request_that_ends_engines_does_not_end_all_of_them() -> None:
    async with (
        serve_rude(reads_and_closes) as one,
        serve_rude(reads_and_closes) as two,
        serve_rude(reads_and_closes) as three,
        serve_rude(reads_and_closes) as four,
        a_gateway(one.url, two.url, three.url, four.url) as gateway,
    ):
        answer = await gateway.ask(chat("x"))
        assert answer.status_code == 502
        assert "close them without an answer" in answer.json()["error"]["message"]
        assert sorted(len(engine.bodies) for engine in (one, two, three, four)) == [0, 1, 1, 1]


async def test_an_answer_that_has_begun_is_not_asked_for_again() -> None:
    engines = [EngineDouble(words=["a", "b"], die_after=2), EngineDouble(words=["a", "b"], die_after=2)]
    async with serve_double(engines[0]) as one, serve_double(engines[1]) as two, a_gateway(one, two) as gateway:
        with pytest.raises(Exception, match="peer closed connection"):
            await gateway.ask(chat("x", stream=True))
        assert len(one.completions) + len(two.completions) == 1


async def test_a_body_that_is_still_being_received_is_sent_once() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"x" * 2**16

    async with (
        serve_rude(reads_and_closes) as one,
        serve_rude(reads_and_closes) as two,
        a_gateway(one.url, two.url, **ECHO) as gateway,
    ):
        answer = await gateway.client.post("/echo", content=parts(), headers=FORM)
        assert answer.status_code == 502
        assert len(one.bodies) + len(two.bodies) == 1


async def test_a_body_of_which_nothing_was_sent_goes_to_the_next_engine() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"x" * 2**16

    dead = [f"http://127.0.0.1:{free_port()}" for _ in range(4)]
    async with serve_double(EngineDouble()) as engine, a_gateway(*dead, engine.url, **ECHO) as gateway:
        for _ in range(2):
            answer = await gateway.client.post("/echo", content=parts(), headers=FORM)
            assert (answer.status_code, answer.headers["x-length"]) == (200, str(2**21))


async def test_probes_find_an_idle_engine_that_is_gone_and_one_that_is_back() -> None:
    port = free_port()
    async with serve_double(EngineDouble()) as one:
        async with serve_double(EngineDouble(), port) as two:
            address = two.url
            async with a_gateway(one, address, idle_s=0.1) as gateway:
                await eventually(lambda: two.received)
                assert await up(gateway, address) == 1
        async with a_gateway(one, address, idle_s=0.1) as gateway:

            async def is_up(value: float) -> bool:
                return await up(gateway, address) == value

            await eventually(lambda: is_up(0))
            async with serve_double(EngineDouble(), port):
                await eventually(lambda: is_up(1))
            async with serve_rude(closes, port):
                await eventually(lambda: is_up(0))
        assert not one.completions
