"""The gateway asks engines what they are, and its caches join only what all of them surely read alike."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from lpc.requests.rules import ANY, sure
from response_cache.gateway.engines import ASKED_S, MISSED_PROBES, Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import GatewaySettings
from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double

VLLM = {"/version": {"version": "0.32.0+cpu"}}
SGLANG = {"/model_info": {"model_path": "m", "is_generation": True}, "/server_info": {"version": "0.5.23", "api_key": "s3cret"}}


class Asked:
    """Engines behind a gateway's part that asks them, at a time that a test sets."""

    def __init__(self, urls: list[str]) -> None:
        self.now = 1000.0
        self.metrics = Metrics()
        self.engines = Engines(urls, self.metrics, key="k3y", clock=lambda: self.now)

    async def ask(self) -> frozenset[str]:
        self.now += ASKED_S
        async with httpx2.AsyncClient(trust_env=False) as http:
            await self.engines.identify(http)
        return self.engines.rules

    def named(self) -> list[tuple[str, str]]:
        (family,) = self.metrics.engine_kind.collect()
        return [(sample.labels["kind"], sample.labels["version"]) for sample in family.samples]


@asynccontextmanager
async def asked(*says: dict[str, Any]) -> AsyncIterator[tuple[Asked, list[EngineDouble]]]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(serve_double(EngineDouble(says=each))) for each in says]
        yield Asked([engine.url for engine in engines]), engines


@pytest.mark.parametrize(
    ("says", "rules", "named"),
    [
        ([VLLM], sure("vllm"), [("vllm", "0.32.0+cpu")]),
        ([SGLANG], sure("sglang"), [("sglang", "0.5.23")]),
        ([{"/get_model_info": SGLANG["/model_info"], "/server_info": {}}], frozenset(), [("sglang", "")]),
        ([VLLM, VLLM], sure("vllm"), [("vllm", "0.32.0+cpu")] * 2),
        ([VLLM, SGLANG], ANY, [("vllm", "0.32.0+cpu"), ("sglang", "0.5.23")]),
        ([VLLM, {}], ANY, [("vllm", "0.32.0+cpu")]),
        ([{"/version": {"version": "0.99.1"}}], frozenset(), [("vllm", "0.99.1")]),
        ([{"/version": {"version": "0.99.1"}}, {}], frozenset(), [("vllm", "0.99.1")]),
        ([{}], ANY, []),
        ([{"/version": {"major": "1", "gitVersion": "v1.30"}}], ANY, []),
        ([{"/version": {"version": 'x" 1\nlpc_fake 2'}}], ANY, []),
        ([{"/version": ["0.32.0"]}], ANY, []),
        ([{"/version": {"version": "0.32.0", "more": "m" * 2**21}}], ANY, []),
    ],
)
async def test_the_rules_are_those_of_what_the_engines_say(
    says: list[dict[str, Any]], rules: frozenset[str], named: list[tuple[str, str]]
) -> None:
    async with asked(*says) as (found, _):
        assert found.engines.rules == ANY, "nothing is known yet"
        assert await found.ask() == rules
        assert found.named() == named


async def test_an_engine_that_was_down_is_asked_again_and_a_new_release_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asked(VLLM) as (found, (engine,)):
        assert await found.ask() == sure("vllm")
        for _ in range(MISSED_PROBES):
            found.engines.all[0].probed("no answer")
        assert found.engines.rules == ANY
        assert await found.ask() == ANY, "it is down"
        found.engines.all[0].probed(None)
        engine.says = {"/version": {"version": "0.99.1"}}
        found.now -= ASKED_S  # no time has passed
        assert await found.ask() == frozenset()
        assert found.named() == [("vllm", "0.99.1")]
        engine.says = SGLANG
        assert await found.ask() == sure("sglang")
        assert found.named() == [("sglang", "0.5.23")]
    assert "is vLLM 0.32.0+cpu" in caplog.text and "is SGLang 0.5.23" in caplog.text and "s3cret" not in caplog.text
    assert "in vLLM 0.99.1 no row of what engines read was run" in caplog.text


async def test_engines_that_differ_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asked(VLLM, SGLANG) as (found, _):
        for _ in range(3):
            await found.ask()
    assert caplog.text.count("the engines differ: the caches give one answer only to requests that all of them read alike") == 1


async def test_an_engine_that_does_not_answer_raises_nothing_and_is_asked_again() -> None:
    found = Asked([f"http://127.0.0.1:{free_port()}"])
    assert await found.ask() == ANY
    assert found.engines.all[0].asked_at < 0


async def test_they_are_asked_with_the_engines_key() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await Asked([f"http://127.0.0.1:{port}"]).ask() == ANY
    assert len(seen) == 3 and all(
        b"authorization: Bearer k3y\r\n" in request.lower().replace(b"bearer", b"Bearer") for request in seen
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "auto"),
        ({"gateway_hints": "vllm"}, "vllm"),
        ({"gateway_engine_kind": "any", "gateway_hints": "vllm"}, "any"),
        ({"gateway_engine_kind": "sglang"}, "sglang"),
    ],
)
def test_settings_come_before_what_the_engines_say(settings: dict[str, Any], kind: str) -> None:
    assert GatewaySettings(gateway_engines=("http://e:8000",), **settings).engine_kind == kind
