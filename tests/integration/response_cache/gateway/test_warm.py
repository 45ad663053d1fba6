"""`lpc cache warm` through a real gateway, sidecar and Redis: each question once, for one tenant, whatever the list holds."""

import asyncio
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from lpc_cli.cli import app
from response_cache.gateway.targets import FREQUENT
from response_cache.gateway.warming import IN_VAIN, LONGEST, Warmed, Warmer, WarmError, read_requests
from response_cache.service.outcomes import SOURCES
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat

SCOPES: dict[str, Any] = {"default": {}, "faq": {"warm_up": True}, "off": {"kind": "creative"}}
OTHERS = (
    {"scope": "faq"},
    {"x-lpc-scope": "faq"},
    {"tenant": "client:b"},
    {"cache_salt": "b"},
    {"model": "m\r\nx-lpc-scope: faq"},
)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, SCOPES) as made:
        yield made


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with serve_double(EngineDouble()) as made:
        yield made


@pytest.fixture
async def gateway(caches: ResponseCaches, engine: EngineDouble, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway with two clients, a and b, whose tokens are their names. Only a may use the scope faq."""
    caches.redis.ask("FLUSHALL")
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{name}: {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", "b")))
    settings = {"tokens": tokens, "gateway_scopes": {"a": ("faq", "off")}}
    async with a_gateway(engine, sidecar=caches.sidecar.address, **settings) as made:
        yield made


@contextlib.asynccontextmanager
async def warming(gateway: Running, scope: str = "", token: str = "a", **fields: Any) -> AsyncIterator[Warmer]:
    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=patiently(), trust_env=False) as client:
        yield Warmer(client, scope, sleep=at_once, **fields)


async def run(gateway: Running, bodies: list[dict[str, Any]], **fields: Any) -> Warmed:
    warmed = Warmed()
    async with warming(gateway, **fields) as warmer:
        await warmer.run(bodies, warmed)
    return warmed


async def stored(gateway: Running, count: float) -> None:
    async def enough() -> bool:
        return await gateway.metric('lpc_gateway_stores_total{result="stored"}') >= count

    await eventually(enough)


async def test_each_question_reaches_an_engine_once_however_often_it_is_warmed(gateway: Running, engine: EngineDouble) -> None:
    bodies = [chat(f"question {number}") for number in range(6)]
    assert await run(gateway, bodies[:3]) == Warmed(asked=3)  # interrupted
    await stored(gateway, 3)
    assert await run(gateway, [*bodies, bodies[0]]) == Warmed(asked=3, cached=3, skipped=1)
    await stored(gateway, 6)
    assert await run(gateway, bodies) == Warmed(cached=6)
    more = [chat(f"more {number}") for number in range(6)]
    await asyncio.gather(run(gateway, more), run(gateway, more))
    assert len(engine.completions) == 12


async def test_at_most_the_given_number_reaches_an_engine(gateway: Running, engine: EngineDouble) -> None:
    assert await run(gateway, [chat(f"{number}") for number in range(9)], most=4) == Warmed(asked=4)
    assert len(engine.completions) == 4


async def test_an_uncacheable_body_ends_the_run(gateway: Running, engine: EngineDouble) -> None:
    drawn = [chat(f"drawn {number}", temperature=1) for number in range(50)]
    with pytest.raises(WarmError, match="temperature 0"):
        await run(gateway, drawn)
    with pytest.raises(WarmError, match="left nothing"):
        await run(gateway, [chat(f"{number}") for number in range(50)], scope="off")
    assert len(engine.completions) == 2 * IN_VAIN


async def test_a_failing_engine_ends_the_run_and_one_odd_request_does_not(gateway: Running, engine: EngineDouble) -> None:
    odd: dict[str, Any] = {"model": "m", "messages": 7, "temperature": 0, "kv_transfer_params": {}}
    assert await run(gateway, [odd, chat("half \ud800"), chat("whole")]) == Warmed(asked=1, failed=2)
    engine.refuse = True
    with pytest.raises(WarmError, match="HTTP 400"):
        await run(gateway, [chat(f"fails {number}") for number in range(50)])


async def test_an_unknown_client_is_refused_at_once(gateway: Running, engine: EngineDouble) -> None:
    for bodies in ([chat("x")], []):
        with pytest.raises(WarmError, match="401") as raised:
            async with warming(gateway, token="guess") as warmer:
                await (warmer.run(bodies, Warmed()) if bodies else warmer.yesterday())
        assert "guess" not in str(raised.value)
    assert not engine.completions


async def test_a_list_cannot_reach_another_scope_or_tenant(gateway: Running, engine: EngineDouble) -> None:
    hostile = [{**chat("shared question"), **other} for other in OTHERS]
    await run(gateway, hostile, token="b")
    before = len(engine.completions)
    for scope, token in (("faq", "a"), ("", "a")):
        assert (await run(gateway, [chat("shared question")], scope=scope, token=token)).cached == 0
        assert (await run(gateway, hostile, scope=scope, token=token)).cached == 0
    assert len(engine.completions) > before
    with pytest.raises(WarmError, match="403"):
        await run(gateway, [chat("shared question")], scope="faq", token="b")


async def until_yesterday(caches: ResponseCaches) -> None:
    """Make the questions of today those of yesterday."""
    with contextlib.closing(caches.redis.client()) as client:
        for key in [key for kind in "mr" for key in client.scan_iter(f"lpc:rc:*:{kind}:*")]:
            rest, _, day = key.rpartition(b":")
            client.rename(key, rest + b":%d" % (int(day) - 1))


async def test_yesterdays_questions_are_those_of_the_client_and_scope(caches: ResponseCaches, gateway: Running) -> None:
    async def ask(token: str, text: str, scope: str) -> None:
        for _ in range(2):
            await gateway.ask(chat(text), authorization=f"Bearer {token}", **({"x_lpc_scope": scope} if scope else {}))

    await ask("a", "mine", "faq")
    await ask("a", "not counted", "")
    await ask("b", "theirs", "")

    async def counted() -> bool:
        with contextlib.closing(caches.redis.client()) as client:
            return any(client.hlen(key) for key in client.scan_iter("lpc:rc:*:r:*"))

    await eventually(counted)
    await until_yesterday(caches)
    async with warming(gateway, "faq") as mine, warming(gateway) as other_scope, warming(gateway, token="b") as theirs:
        assert await mine.yesterday() == [chat("mine")]
        assert await other_scope.yesterday() == await theirs.yesterday() == []
        warmed = Warmed()
        await mine.run(await mine.yesterday(), warmed)
        assert warmed == Warmed(cached=1)  # the same key: the stored body names the same answer
    refused = await gateway.client.get(FREQUENT, headers={"authorization": "Bearer b", "x-lpc-scope": "faq"})
    assert refused.status_code == 403
    assert (await gateway.client.get(FREQUENT)).status_code == 401
    assert (await gateway.client.post(FREQUENT, headers={"authorization": "Bearer a"})).status_code == 405


LINES = [
    b'{"model": "m", "messages": [{"role": "user", "content": "good"}]}',
    b'{"model": "m", "prompt": "good"}',
    b"",
    b"question,answer",
    b'{"model": "m", "messages": [{"role": "user", "content": "a\x00b\x1b[2J"}]}',
    b'{"model": "m"}',
    b'{"model": 7, "prompt": "x"}',
    b'["model"]',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"model": "m", "prompt": "' + b"x" * LONGEST + b'"}',
    b"7" * 5000,
    b'=cmd|"/C calc"!A1',
]


def test_lines_that_are_not_requests_are_skipped(tmp_path: Path) -> None:
    path, warmed = tmp_path / "list", Warmed()
    path.write_bytes(b"\n".join(LINES))
    assert [sorted(body) for body in read_requests(path, warmed)] == [["messages", "model"], ["model", "prompt"]]
    assert warmed == Warmed(skipped=len(LINES) - 3)


async def test_the_command_warms_a_file_and_shows_no_text_of_it(gateway: Running, tmp_path: Path) -> None:
    token, path = tmp_path / "token", tmp_path / "list"
    token.write_text("a\n")
    path.write_text(f"{json.dumps(chat('canary'))}\ncanary \x1b[2J\n")

    async def command(*words: str | Path) -> Any:
        arguments = ["cache", "warm", *map(str, words), "--gateway", gateway.url, "--token-file", str(token)]
        return await asyncio.to_thread(CliRunner().invoke, app, arguments)

    done = await command(path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"asked": 1, "cached": 0, "failed": 0, "skipped": 1}
    await stored(gateway, 1)
    assert (await command(path)).output == "asked 0, cached 1, failed 0, skipped 1\n"
    done = await command("--yesterday")
    assert (done.exit_code, done.output) == (0, "asked 0, cached 0, failed 0, skipped 0\n")
    (tmp_path / "empty").touch()
    for words, code, message in (
        ([], 2, "FILE or --yesterday"),
        ([path, "--yesterday"], 2, "FILE or --yesterday"),
        ([path, "--daily", "25:00"], 2, "HH:MM"),
        ([tmp_path / "absent"], 1, "cannot read"),
        ([tmp_path / "empty"], 1, "empty is empty: write one request body per line"),
        ([path, "--ca", path], 1, "PEM"),
        ([path, "--ca", tmp_path / "absent"], 1, "cannot read"),
    ):
        done = await command(*words)
        assert done.exit_code == code and message in done.output, done.output
        assert "canary" not in done.output
    for content, message in ((b"\n", "is empty: write the token into it"), (b"\xff", "it is not text")):
        token.write_bytes(content)
        done = await command(path)
        assert done.exit_code == 1 and message in done.output, done.output


async def test_the_daily_command_runs_at_once_then_waits_and_ends_at_sigterm(gateway: Running, tmp_path: Path) -> None:
    token, path = tmp_path / "token", tmp_path / "list"
    token.write_text("a")
    path.write_text(json.dumps(chat("daily")))
    words = ["cache", "warm", path, "--gateway", gateway.url, "--token-file", token, "--daily", "00:00"]
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lpc_cli", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert await started.stdout.readline() == b"asked 1, cached 0, failed 0, skipped 0\n"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(started.stdout.readline(), 1)  # behaviour: it prints nothing more
    started.send_signal(signal.SIGTERM)
    assert await started.wait() == 0


@pytest.mark.parametrize(("result", "counted"), [(name, Warmed(cached=1)) for name in SOURCES] + [("miss", Warmed(asked=1))])
async def test_a_hit_of_any_tier_reaches_no_engine(result: str, counted: Warmed) -> None:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={"x-lpc-cache": result}))
    warmed = Warmed()
    async with httpx2.AsyncClient(base_url="http://gateway", transport=answer) as client:
        await Warmer(client, sleep=no_pause).run([chat("hi")], warmed)
    assert warmed == counted


async def no_pause(_: float) -> None:
    return None


async def test_yesterdays_questions_are_returned_although_look_ups_have_just_timed_out(
    tmp_path: Path, tiny_models: Path, engine: EngineDouble
) -> None:
    """After a time-out the sidecar asks Redis nothing for a moment. That was a 503 while Redis was up."""
    with response_caches(tmp_path, tiny_models, {"default": {"warm_up": True}}, cache_redis_timeout_s=0.1) as caches:
        async with a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
            await eventually(lambda: _known(gateway))
            for _ in range(3):
                caches.redis.freeze()
                for _ in range(4):
                    assert (await gateway.ask(chat("times out"))).status_code == 200
                    await asyncio.sleep(0.1)
                caches.redis.thaw()
                answer = await gateway.client.get(FREQUENT)
                assert (answer.status_code, answer.json()) == (200, {"questions": []})


async def _known(gateway: Running) -> bool:
    return (await gateway.client.get(FREQUENT)).status_code == 200
