"""Time: the limit on a lookup, pauses between lookups in a silent sidecar, and clock steps."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor_service.server import Parts
from response_cache.client import SILENCES, ResponseCacheClient
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.running import running as a_sidecar
from response_cache.service.settings import CacheSettings
from response_cache.store.scopes import LIFE_S
from testing.processes import RedisServer
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat
from tests.response_cache import KEY_LINES

HOUR = 3600.0


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Wall:
    """A wall clock that may step."""

    step = 0.0

    def __call__(self) -> float:
        return time.monotonic() + 1_790_000_000.0 + self.step


@pytest.mark.parametrize("step", [0.0, HOUR, -HOUR])
async def test_a_silent_sidecar_delays_three_requests_by_50_ms_and_then_none(
    silent: str, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    patience: list[float] = []
    call = ResponseCacheClient._call

    async def noted(self: ResponseCacheClient, method: str, message: Any, timeout_s: float) -> Any:
        if method == "Lookup":
            patience.append(timeout_s)
        return await call(self, method, message, timeout_s)

    monkeypatch.setattr(ResponseCacheClient, "_call", noted)
    monkeypatch.setattr("response_cache.client.REST_S", 10_000.0)  # longer than the machine may be busy
    default = GatewaySettings.model_fields["gateway_lookup_timeout_s"].default
    assert default <= 0.05
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, sidecar=silent, gateway_lookup_timeout_s=default) as gateway,
    ):
        for i in range(SILENCES):
            answer = await gateway.ask(chat(f"{i}"))
            assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
        assert patience == [default] * SILENCES
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + step)
        answers = await asyncio.gather(*(gateway.ask(chat("more")) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(patience) == SILENCES, "a request waited for a sidecar that is known to be silent"
        assert len(engine.completions) == SILENCES + 20


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_clock_step_prolongs_no_answer(
    tmp_path: Path, tiny_models: Path, redis_server: RedisServer, step: float
) -> None:
    wall, life_s = Wall(), LIFE_S["default"]
    keys = tmp_path / "keys"
    await asyncio.to_thread(keys.write_text, KEY_LINES)
    values: Any = {"models": tiny_models, "model": "tiny", "port": 0, "metrics_port": None, "unix_socket": None, "threads": 1}
    cache: Any = {
        "cache_redis_url": redis_server.url,
        "cache_keys": keys,
        "cache_gateways": "anonymous",
        "cache_redis_timeout_s": 5.0,
    }
    async with (
        a_sidecar(CacheSettings(**values, **cache), Parts(clock=wall)) as addresses,
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, sidecar=f"127.0.0.1:{addresses.port}", clock=wall) as gateway,
    ):
        await eventually(lambda: hits(gateway, "kept"))
        wall.step = step
        again = await gateway.ask(chat("kept"))
        assert again.headers["x-lpc-cache"] == "exact"
        assert 0 <= int(again.headers["age"]) <= max(step, 0) + 600
        assert again.json()["created"] == pytest.approx(wall(), abs=600)
        # One flies while the clock steps back.
        engine.go.clear()
        calls = len(engine.completions)
        asking = [asyncio.ensure_future(gateway.ask(chat("flight"))) for _ in range(8)]
        await eventually(lambda: len(engine.completions) > calls)
        wall.step = 0.0
        engine.go.set()
        answers = await asyncio.gather(*asking)
        assert len(engine.completions) == calls + 1
        assert sorted(answer.headers["x-lpc-cache"] for answer in answers) == ["exact"] * 7 + ["miss"]
        # By no clock longer than its life.
        wall.step = life_s + 1
        assert (await gateway.ask(chat("kept"), cache_control="only-if-cached")).status_code == 504
        left = [redis_server.client().pttl(key) for key in redis_server.client().scan_iter("lpc:rc:*:e:*")]
        assert left and all(0 < ms <= life_s * 1000 for ms in left)


async def hits(gateway: Running, text: str) -> bool:
    return (await gateway.ask(chat(text))).headers.get("x-lpc-cache") == "exact"
