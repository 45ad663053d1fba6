"""The gateway holds requests while an engine's prefill is busy, and loses none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import pytest

from lpc_apps.routing.counted import COUNT_S
from response_cache.gateway.queue import first_tokens_of, tokens_of
from response_cache.gateway.settings import GatewaySettings
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat
from tests.integration.response_cache.test_callers import tokens

QUEUE = {"gateway_queue": "warm-first", "gateway_engine_tokens": 100_000}
LONG = "word " * 8000
"""Its prefill takes a second at the speed that is assumed before one is measured, so the next may be sent after four."""


@contextlib.asynccontextmanager
async def asking(
    gateway: Running, engines: Sequence[EngineDouble] | EngineDouble, *texts: str, stream: bool = True
) -> AsyncIterator[list[asyncio.Task[httpx2.Response]]]:
    """Ask these questions, each when the one before is held, at an engine or answered."""
    tasks: list[asyncio.Task[httpx2.Response]] = []
    those = [engines] if isinstance(engines, EngineDouble) else engines

    async def arrived() -> bool:
        found = sum([len(engine.completions) + await held(gateway, engine) for engine in those])
        return tasks[-1].done() or found >= len(tasks)

    for text in texts:
        tasks.append(asyncio.ensure_future(gateway.ask(chat(text + LONG, stream=stream))))
        await eventually(arrived)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def held(gateway: Running, engine: EngineDouble) -> float:
    return await gateway.metric(f'lpc_gateway_held{{engine="{engine.url.removeprefix("http://")}"}}')


async def until_held(gateway: Running, engine: EngineDouble, count: int) -> None:
    """Wait until the engine has a request and the gateway holds so many for it."""
    while not engine.completions or await held(gateway, engine) != count:
        await asyncio.sleep(0.01)


async def test_a_request_waits_in_the_gateway_until_the_first_token_of_the_one_before() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with (
        serve_double(engine),
        a_gateway(engine, **QUEUE) as gateway,
        asking(gateway, engine, "a", "b") as (first, second),
    ):
        await until_held(gateway, engine, 1)
        assert len(engine.completions) == 1
        engine.go.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]
        assert len(engine.completions) == 2
        assert await held(gateway, engine) == 0


async def test_the_queue_is_on_unless_it_is_turned_off() -> None:
    assert GatewaySettings().gateway_queue == "warm-first"
    engine = EngineDouble()
    engine.go.clear()
    usual = {"gateway_queue": GatewaySettings().gateway_queue, "gateway_engine_tokens": 100_000}
    async with serve_double(engine), a_gateway(engine, **usual) as gateway, asking(gateway, engine, "a", "b"):
        await until_held(gateway, engine, 1)
        engine.go.set()


async def test_a_client_that_leaves_while_its_request_is_held_is_taken_out() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with (
        serve_double(engine),
        a_gateway(engine, **QUEUE) as gateway,
        asking(gateway, engine, "a", "b") as (first, second),
    ):
        await until_held(gateway, engine, 1)
        second.cancel()
        await until_held(gateway, engine, 0)
        engine.go.set()
        assert (await first).status_code == 200
        assert len(engine.completions) == 1


async def test_a_client_that_leaves_during_its_prefill_lets_the_next_one_in() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with (
        serve_double(engine),
        a_gateway(engine, **QUEUE) as gateway,
        asking(gateway, engine, "a", "b") as (first, second),
    ):
        await until_held(gateway, engine, 1)
        first.cancel()
        await eventually(lambda: len(engine.completions) == 2)
        engine.go.set()
        assert (await second).status_code == 200


async def test_the_requests_of_an_engine_that_ends_go_to_another_one_also_those_that_are_held() -> None:
    good, bad, ending = EngineDouble(), EngineDouble(), contextlib.AsyncExitStack()
    good.go.clear()
    bad.go.clear()
    await ending.enter_async_context(serve_double(bad))
    async with (
        serve_double(good),
        a_gateway(good, bad, **QUEUE) as gateway,
        asking(gateway, (good, bad), *map(str, range(6))) as tasks,
    ):
        await until_held(gateway, bad, 2)
        assert len(good.completions) == len(bad.completions) == 1
        await ending.aclose()
        good.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}


async def test_a_request_that_is_held_for_too_long_gets_one_clear_error() -> None:
    engine = EngineDouble()
    engine.go.clear()
    limited = {**QUEUE, "gateway_queue_timeout_s": 0.5}
    async with (
        serve_double(engine),
        a_gateway(engine, **limited) as gateway,
        asking(gateway, engine, "a", "b") as (first, second),
    ):
        refused = await second
        assert refused.status_code == 503 and "LPC_GATEWAY_QUEUE_TIMEOUT_S" in refused.text
        engine.go.set()
        assert (await first).status_code == 200


async def test_an_engine_that_shows_no_first_token_gets_the_next_request_anyway() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with serve_double(engine), a_gateway(engine, **QUEUE) as gateway, asking(gateway, engine, "a", "b"):
        await until_held(gateway, engine, 1)
        await eventually(lambda: len(engine.completions) == 2)
        engine.go.set()


async def test_answers_without_a_stream_are_not_held_while_the_engines_speed_is_unknown() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with serve_double(engine), a_gateway(engine, **QUEUE) as gateway, asking(gateway, engine, "a", "b", stream=False):
        await eventually(lambda: len(engine.completions) == 2)
        engine.go.set()


async def test_nothing_is_held_for_an_engine_whose_cache_has_no_known_size() -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with (
        serve_double(engine),
        a_gateway(engine, gateway_queue="warm-first") as gateway,
        asking(gateway, engine, "a", "b"),
    ):
        await eventually(lambda: len(engine.completions) == 2)
        engine.go.set()


VLLM = (
    '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",'
    'num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0\n'
)


@pytest.mark.parametrize(
    ("answers", "tokens"),
    [
        ({"/metrics": VLLM}, 16_000),
        ({"/metrics": VLLM + VLLM.replace('engine="0"', 'engine="1"')}, 32_000),  # ranks of one address
        ({"/metrics": VLLM.replace("num_gpu_blocks=", 'kv_cache_size_tokens="9000",num_gpu_blocks=')}, 9_000),
        ({"/metrics": VLLM.replace("num_gpu_blocks=", "offload=\"{'a': 1}\",num_gpu_blocks=")}, 16_000),
        ({"/metrics": VLLM.replace("num_gpu_blocks=", "user_specified_block_size=")}, None),
        ({"/metrics": VLLM.replace('"1000"', '"None"')}, None),
        ({"/metrics": VLLM.replace('"1000"', '"9999999999999999"')}, None),
        ({"/metrics": "x" * (5 << 20)}, None),
        ({"/server_info": '{"max_total_num_tokens": 5000, "version": "0.5.23"}'}, 5_000),
        ({"/server_info": '{"max_total_num_tokens": true}'}, None),
        ({"/server_info": "[" * 100_000}, None),
        ({}, None),
    ],
)
async def test_the_size_of_an_engines_cache_is_read(answers: dict[str, str], tokens: int | None) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        text = answers.get(request.url.path)
        return httpx2.Response(404) if text is None else httpx2.Response(200, text=text)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        ranks = 2 if tokens == 32_000 else 1
        assert await tokens_of(http, "http://engine", {}) == (None if tokens is None else (tokens, ranks))


def prompts_of(engine: EngineDouble) -> list[str]:
    """Return the first word of each question, in the order in which an engine got them."""
    return [one.json["messages"][0]["content"].split()[0] for one in engine.completions]


async def ask_in_order(gateway: Running, engine: EngineDouble, *asked: tuple[str, dict[str, object], str]) -> list[str]:
    """Ask while the engine is busy with one prompt: text, fields and token; return the order in which it gets the rest."""
    engine.go.clear()
    tasks = []
    for number, (text, fields, token) in enumerate((("busy", {}, asked[0][2]), *asked)):
        body = chat(f"{text} {LONG}", stream=True, **fields)
        tasks.append(asyncio.ensure_future(gateway.ask(body, **({"authorization": f"Bearer {token}"} if token else {}))))
        await until_held(gateway, engine, number)
    engine.go.set()
    assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
    return prompts_of(engine)[1:]


async def test_held_requests_of_a_tenant_are_handed_on_by_their_priority_which_the_engine_does_not_get() -> None:
    engine = EngineDouble()
    async with serve_double(engine), a_gateway(engine, **QUEUE) as gateway:
        asked = [("late ", {"priority": 5}, ""), ("plain ", {}, ""), ("first ", {"priority": -1}, "")]
        assert await ask_in_order(gateway, engine, *asked) == ["first", "plain", "late"]
        assert not any("priority" in one.json for one in engine.completions)


async def test_a_priority_moves_no_request_before_another_tenants(tmp_path: Path) -> None:
    engine = EngineDouble()
    async with serve_double(engine), a_gateway(engine, **QUEUE, tokens=tokens(tmp_path, "loud", "quiet")) as gateway:
        asked = [*((f"loud{n} ", {"priority": -(2**63)}, "loud") for n in range(4)), ("quiet ", {}, "quiet")]
        order = await ask_in_order(gateway, engine, *asked)
        assert order.index("quiet") <= 1


async def test_identity_headers_that_a_client_invents_give_it_no_larger_share(tmp_path: Path) -> None:
    engine = EngineDouble()
    async with serve_double(engine), a_gateway(engine, **QUEUE, tokens=tokens(tmp_path, "loud", "quiet")) as gateway:
        engine.go.clear()
        tasks = []
        for number in range(8):
            owner = "quiet" if number == 7 else "loud"
            headers = {"authorization": f"Bearer {owner}", "x_forwarded_user": f"invented {number}"}
            tasks.append(asyncio.ensure_future(gateway.ask(chat(f"{owner} {number} " + LONG, stream=True), **headers)))
            await until_held(gateway, engine, number)
        engine.go.set()
        await asyncio.gather(*tasks)
        assert prompts_of(engine)[1:].index("quiet") <= 1


@pytest.mark.parametrize("priority", [True, 1.5, "1", [1], None, {"a": 1}])
async def test_what_is_not_a_whole_number_is_no_priority(priority: object, tmp_path: Path) -> None:
    engine = EngineDouble()
    async with serve_double(engine), a_gateway(engine, **QUEUE, tokens=tokens(tmp_path, "a")) as gateway:
        answer = await gateway.ask(chat("a", priority=priority), authorization="Bearer a")
        assert answer.status_code == (200 if priority is None else 400)


@pytest.mark.parametrize("fields", [{"extra_body": {"priority": 1}}, {"vllm_xargs": {"priority": 1}}, {"Priority": 1}])
async def test_a_priority_in_another_place_is_refused_as_without_a_queue(fields: dict[str, object], tmp_path: Path) -> None:
    engine = EngineDouble()
    async with serve_double(engine), a_gateway(engine, **QUEUE, tokens=tokens(tmp_path, "a")) as gateway:
        answer = await gateway.ask(chat("a", **fields), authorization="Bearer a")
        assert answer.status_code == 400 and not engine.completions


VERY_LONG = LONG * 20
"""Without a first token its engine would get the next request after a minute."""


async def until_counts_are_read(engine: EngineDouble, looks: int) -> None:
    before = engine.looks
    await eventually(lambda: engine.looks >= before + looks)


async def test_the_engines_count_of_first_tokens_ends_prefills_whose_answers_are_not_streamed() -> None:
    engine = EngineDouble(counted=5)
    engine.go.clear()
    async with serve_double(engine), a_gateway(engine, **QUEUE, max_values=10**7) as gateway:

        def ask(text: str) -> asyncio.Task[httpx2.Response]:
            return asyncio.ensure_future(gateway.ask(chat(text + VERY_LONG)))

        first = ask("first, whose engine is not known to count")
        await until_counts_are_read(engine, 1)
        engine.counted = 6
        engine.go.set()
        assert (await first).status_code == 200
        engine.go.clear()
        second = ask("second")
        await eventually(lambda: len(engine.completions) == 2)
        third = ask("third")
        await until_held(gateway, engine, 1)
        await until_counts_are_read(engine, 3)
        assert len(engine.completions) == 2
        engine.counted = 7
        await eventually(lambda: len(engine.completions) == 3)
        assert not second.done()
        engine.go.set()
        assert {answer.status_code for answer in await asyncio.gather(second, third)} == {200}
        assert await gateway.metric('lpc_gateway_task_failures_total{task="count"}') == 0


async def test_an_engine_is_not_asked_for_its_count_without_a_request_that_needs_it() -> None:
    engine = EngineDouble(counted=5)
    async with serve_double(engine), a_gateway(engine, **QUEUE) as gateway:
        answers = [(await gateway.ask(chat("a" + LONG, stream=True))).status_code for _ in range(3)]
        await asyncio.sleep(3 * COUNT_S)
        assert answers == [200] * 3 and not engine.looks


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('vllm:time_to_first_token_seconds_count{engine="0"} 7.0\n', 7),
        (
            'vllm:time_to_first_token_seconds_count{engine="0"} 7.0\nvllm:time_to_first_token_seconds_count{engine="1"} 1e3\n',
            1007,
        ),
        ("vllm:time_to_first_token_seconds_count 3\n", 3),
        ("vllm:time_to_first_token_seconds_sum 3\n", None),
        ("vllm:time_to_first_token_seconds_count 1e999\n", None),
        ("vllm:time_to_first_token_seconds_count ee+.\n", None),
        ("sglang:time_to_first_token_seconds_count 3\n", None),
        ("", None),
    ],
)
async def test_an_engines_count_of_first_tokens_is_read(text: str, count: int | None) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=text))
    async with httpx2.AsyncClient(transport=transport) as http:
        assert await first_tokens_of(http, "http://engine", {}) == count


async def test_a_client_that_reads_no_further_than_the_first_token_holds_nobody() -> None:
    engine = EngineDouble(hold_after=2)
    async with (
        serve_double(engine),
        a_gateway(engine, **QUEUE) as gateway,
        asking(gateway, engine, "a", "b") as (first, second),
    ):
        await eventually(lambda: len(engine.completions) == 2)
        assert await held(gateway, engine) == 0
        engine.further.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]
