"""What the gateway costs beside the same proxy path without a cache, and how many equal requests reach the engine.

All in one process and on one event loop but sidecar and Redis: both sides of each comparison pay the same for it.
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

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.processes import RedisServer, Sidecar
from eviction_client.settings import ClientSettings
from lpc.cache.patience import SILENCES
from lpc.gateway.server import running
from lpc.gateway.settings import GatewaySettings

CHAT: Final = "/v1/chat/completions"
REQUESTS: Final = 200
AT_ONCE: Final = 64
CROWD: Final = 1000
LOOKUP_S: Final[float] = GatewaySettings.model_fields["gateway_lookup_timeout_s"].default
"""The default of LPC_GATEWAY_LOOKUP_TIMEOUT_S."""
ENGINE_S: Final = 0.5
"""That an answer takes where many wait for it."""


class Engine:
    """Answers at once, or after a while; counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.called = asyncio.Event()

    async def complete(self, request: Request) -> JSONResponse:
        """Answer a chat."""
        await request.body()
        self.calls += 1
        self.called.set()
        await asyncio.sleep(self.seconds)
        message = {"role": "assistant", "content": "It keeps blocks of finished requests."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
        return JSONResponse({"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], "usage": usage})

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve while the block runs; yield the base URL."""
        app = Starlette(routes=[Route(CHAT, self.complete, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(server._serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task


def rows(models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Measure; return gateway_overhead_p50_ms (and ratios of medians), single_flight (counts) and silent_sidecar_added_ms.

    Args:
        models: the model repository.
        model: the model's name there.
        quick: fewer requests.

    Raises:
        BenchmarkError: sidecar or Redis cannot be started here.
    """
    return asyncio.run(_rows(models, model, REQUESTS // 4 if quick else REQUESTS, 0 if quick else CROWD))


async def _rows(models: Path, model: str, requests: int, crowd: int) -> dict[str, Any]:
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
            engine = Engine()
            async with (
                engine.served() as url,
                _gateway(url, sidecar.address, cache=True) as cached,
                _gateway(url, sidecar.address, cache=False) as plain,
                _gateway(url, sidecar.address, cache=True, lookup_s=LOOKUP_S) as hurried,
                httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as direct,
            ):
                overhead = await _overhead(direct, plain, cached, requests, sidecar)
                flights = await _flights(engine, cached, crowd)
                engine.seconds = 0.0
                added = await _silent(plain, hurried, requests, sidecar)
                return {"gateway_overhead_p50_ms": overhead, "single_flight": flights, "silent_sidecar_added_ms": added}


@contextlib.asynccontextmanager
async def _gateway(url: str, sidecar: str, *, cache: bool, lookup_s: float = 10.0) -> AsyncIterator[httpx.AsyncClient]:
    settings = GatewaySettings(
        gateway_port=0,
        gateway_metrics_port=None,
        gateway_engines=(url,),
        gateway_cache=cache,
        gateway_cache_anonymous=True,
        gateway_lookup_timeout_s=lookup_s,
    )
    limits = httpx.Limits(max_connections=None)
    async with running(settings, ClientSettings(predictor_address=sidecar)) as addresses:
        where = f"http://127.0.0.1:{addresses.port}"
        async with httpx.AsyncClient(base_url=where, timeout=120, trust_env=False, limits=limits) as client:
            yield client


def _body(text: str) -> dict[str, Any]:
    return {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": text}]}


async def _overhead(
    direct: httpx.AsyncClient, plain: httpx.AsyncClient, cached: httpx.AsyncClient, requests: int, sidecar: Sidecar
) -> dict[str, float]:
    """Ask the engine itself, through the plain proxy and through the cache, in turn."""
    took: dict[str, list[float]] = {name: [] for name in ("direct", "plain", "miss", "hit", "sidecar_dead")}

    async def ask(name: str, client: httpx.AsyncClient, text: str) -> None:
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
    medians = {name: 1000 * statistics.median(values) for name, values in took.items()}
    await _warm(cached)
    return {
        **medians,
        "miss_over_plain": medians["miss"] / medians["plain"],
        "hit_over_plain": medians["hit"] / medians["plain"],
    }


async def _warm(cached: httpx.AsyncClient) -> None:
    """Wait until answers are kept again."""
    for _ in range(300):
        if (await cached.post(CHAT, json=_body("back"))).headers.get("x-lpc-cache") == "exact":
            return
        await asyncio.sleep(0.1)


async def _silent(plain: httpx.AsyncClient, hurried: httpx.AsyncClient, requests: int, sidecar: Sidecar) -> dict[str, float]:
    """Ask while the sidecar is stopped and never answers: what that adds to the plain proxy's median, milliseconds."""

    async def ask(client: httpx.AsyncClient, text: str) -> float:
        began = time.perf_counter()
        (await client.post(CHAT, json=_body(text))).raise_for_status()
        return 1000 * (time.perf_counter() - began)

    await _warm(hurried)
    usual = statistics.median([await ask(plain, f"plain {i}") for i in range(requests)])
    sidecar.freeze()
    first = [await ask(hurried, f"first {i}") - usual for i in range(SILENCES)]
    later = [await ask(hurried, f"later {i}") - usual for i in range(requests)]
    sidecar.thaw()
    return {"first_three_most": max(first), "later_p50": statistics.median(later), "later_most": max(later)}


async def _flights(engine: Engine, cached: httpx.AsyncClient, crowd: int) -> dict[str, int]:
    engine.seconds = ENGINE_S

    async def calls(text: str, count: int) -> int:
        before = engine.calls
        await asyncio.gather(*(cached.post(CHAT, json=_body(text)) for _ in range(count)))
        return engine.calls - before

    found = {"requests": AT_ONCE, "engine_calls": await calls("all at once", AT_ONCE)}
    before = engine.calls
    engine.called.clear()
    leader = asyncio.create_task(cached.post(CHAT, json=_body("led")))
    await engine.called.wait()
    others = [asyncio.create_task(cached.post(CHAT, json=_body("led"))) for _ in range(AT_ONCE - 1)]
    await asyncio.sleep(ENGINE_S / 2)
    leader.cancel()
    await asyncio.gather(*others)
    found["engine_calls_leader_killed"] = engine.calls - before
    if crowd:
        found |= {"crowd": crowd, "engine_calls_crowd": await calls("a crowd", crowd)}
    return found
