"""Benchmark `gateway`: latency that the gateway adds to a request, compared with the same proxy path without a cache.

Client, engine and gateways share one process and one event loop, so both sides of each comparison have the same overhead.
Sidecar and Redis are separate processes.
"""

import asyncio
import contextlib
import secrets
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import uvicorn
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from eviction_client.settings import ClientSettings
from lpc.wire.terminal import console
from response_cache.client import SILENCES
from response_cache.gateway.server import running
from response_cache.gateway.settings import GatewaySettings
from testing.processes import RedisServer, Sidecar

CHAT: Final = "/v1/chat/completions"
REQUESTS: Final = 200
LOOKUP_S: Final[float] = GatewaySettings.model_fields["gateway_lookup_timeout_s"].default
"""The default of LPC_GATEWAY_LOOKUP_TIMEOUT_S."""
SIDES: Final = {
    "direct": "the engine itself",
    "plain": "the gateway without a cache",
    "miss": "a miss",
    "hit": "a hit",
    "sidecar_dead": "no sidecar",
}


async def _complete(request: Request) -> JSONResponse:
    await request.body()
    message = {"role": "assistant", "content": "It keeps blocks of finished requests."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
    return JSONResponse({"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], "usage": usage})


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[str]:
    """Serve an engine that answers at once; yield its base URL."""
    app = Starlette(routes=[Route(CHAT, _complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.create_task(server._serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def run(models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Measure; print a table; return the medians and the latency that a silent sidecar adds, in milliseconds.

    Raises:
        BenchmarkError: sidecar or Redis cannot be started here.
    """
    figures = asyncio.run(_measure(models.absolute(), model, REQUESTS // 4 if quick else REQUESTS))
    overhead, added = figures["overhead_p50_ms"], figures["silent_sidecar_added_ms"]
    table = Table("request", "p50, ms", "over plain")
    for name, shown in SIDES.items():
        table.add_row(shown, f"{overhead[name]:.1f}", f"{overhead[name] / overhead['plain']:.2f}")
    console().print(table)
    console().print(
        f"A silent sidecar adds at most {added['first_most']:.0f} ms to the first {SILENCES} requests (deadline of a look-up: "
        f"{1000 * LOOKUP_S:.0f} ms), then {added['later_p50']:.1f} ms (p50)."
    )
    return figures


async def _measure(models: Path, model: str, requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name) / "redis") as redis:
        folder = Path(name)
        keys = folder / "keys"
        keys.write_text(f"names: {secrets.token_hex(32)}\nk1: {secrets.token_hex(32)}\n")
        settings: dict[str, Any] = {
            "cache_redis_url": redis.url,
            "cache_keys": keys,
            "cache_gateways": "anonymous",
            "cache_redis_timeout_s": 1,
        }
        with Sidecar(folder, models, model, **settings) as sidecar:
            async with (
                _engine() as url,
                _gateway(url, sidecar.address, cache=True) as cached,
                _gateway(url, sidecar.address, cache=False) as plain,
                _gateway(url, sidecar.address, cache=True, lookup_s=LOOKUP_S) as hurried,
                httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as direct,
            ):
                overhead = await _overhead(direct, plain, cached, requests, sidecar)
                added = await _silent(plain, hurried, requests, sidecar)
                return {"overhead_p50_ms": overhead, "silent_sidecar_added_ms": added}


@contextlib.asynccontextmanager
async def _gateway(url: str, sidecar: str, *, cache: bool, lookup_s: float = 10.0) -> AsyncIterator[httpx2.AsyncClient]:
    settings = GatewaySettings(
        port=0,
        metrics_port=None,
        gateway_engines=(url,),
        gateway_cache=cache,
        gateway_cache_anonymous=True,
        gateway_lookup_timeout_s=lookup_s,
    )
    limits = httpx2.Limits(max_connections=None)
    async with running(settings, ClientSettings(predictor_address=sidecar)) as addresses:
        where = f"http://127.0.0.1:{addresses.port}"
        async with httpx2.AsyncClient(base_url=where, timeout=120, trust_env=False, limits=limits) as client:
            yield client


def _body(text: str) -> dict[str, Any]:
    return {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": text}]}


async def _overhead(
    direct: httpx2.AsyncClient, plain: httpx2.AsyncClient, cached: httpx2.AsyncClient, requests: int, sidecar: Sidecar
) -> dict[str, float]:
    """Send requests to the engine, the plain proxy and the cache in turn."""
    took: dict[str, list[float]] = {name: [] for name in SIDES}

    async def ask(name: str, client: httpx2.AsyncClient, text: str) -> None:
        began = time.perf_counter()
        answer = await client.post(CHAT, json=_body(text))
        took[name].append(time.perf_counter() - began)
        answer.raise_for_status()

    for client in (direct, plain, cached):
        await client.post(CHAT, json=_body("warm"))
    await cached.post(CHAT, json=_body("kept"))
    for i in range(requests):
        await ask("direct", direct, f"{i}")
        await ask("plain", plain, f"{i}")
        await ask("miss", cached, f"new {i}")
        await ask("hit", cached, "kept")
    sidecar.kill()
    for i in range(requests):
        await ask("sidecar_dead", cached, f"{i}")
    sidecar.start()
    await _warm(cached)
    return {name: 1000 * statistics.median(values) for name, values in took.items()}


async def _warm(cached: httpx2.AsyncClient) -> None:
    """Wait until answers are cached again."""
    for _ in range(300):
        if (await cached.post(CHAT, json=_body("back"))).headers.get("x-lpc-cache") == "exact":
            return
        await asyncio.sleep(0.1)


async def _silent(plain: httpx2.AsyncClient, hurried: httpx2.AsyncClient, requests: int, sidecar: Sidecar) -> dict[str, float]:
    """Return the milliseconds over the plain proxy's median while the sidecar is stopped and never answers."""

    async def ask(client: httpx2.AsyncClient, text: str) -> float:
        began = time.perf_counter()
        (await client.post(CHAT, json=_body(text))).raise_for_status()
        return 1000 * (time.perf_counter() - began)

    await _warm(hurried)
    usual = statistics.median([await ask(plain, f"plain {i}") for i in range(requests)])
    sidecar.freeze()
    first = [await ask(hurried, f"first {i}") - usual for i in range(SILENCES)]
    later = [await ask(hurried, f"later {i}") - usual for i in range(requests)]
    sidecar.thaw()
    return {"first_most": max(first), "later_p50": statistics.median(later)}
