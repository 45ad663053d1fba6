"""What the gateway's tests share: a gateway before engines, with or without a sidecar."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields
from typing import Any

import httpx2

from eviction_client.settings import ClientSettings
from response_cache.gateway.server import running
from response_cache.gateway.settings import Bounds, GatewaySettings
from testing.processes import free_port
from tests.engine_double import EngineDouble
from tests.eventually import patiently

CHAT = "/v1/chat/completions"


@dataclass
class Running:
    """A running gateway. ``url`` is its address."""

    url: str
    client: httpx2.AsyncClient
    metrics_url: str

    async def ask(self, body: dict[str, Any], **headers: str) -> httpx2.Response:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(CHAT, json=body, headers=fields)

    async def metric(self, line: str) -> float:
        """Return the value of a metric with its labels; 0 if it is absent."""
        text = (await self.client.get(self.metrics_url)).text
        return next((float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)


@contextlib.asynccontextmanager
async def a_gateway(
    *engines: EngineDouble | str, sidecar: str | None = None, clock: Callable[[], float] = time.time, **settings: Any
) -> AsyncIterator[Running]:
    """Run a gateway; without ``sidecar`` it gets an unused address. ``settings`` may name bounds, too."""
    urls = tuple(engine if isinstance(engine, str) else engine.url for engine in engines)
    bounds = {field.name: settings.pop(field.name) for field in fields(Bounds) if field.name in settings}
    # Longer than the default of a lookup, because the machine may be busy.
    made = GatewaySettings(
        **{
            "gateway_lookup_timeout_s": 10.0,  # the most that the setting permits
            "port": 0,
            "metrics_port": 0,
            "gateway_engines": urls,
            "gateway_cache_anonymous": True,
            "gateway_queue": "off",  # a gateway with a queue asks engines for their size, which tests would see as a request
            **settings,
        }
    )
    where = ClientSettings(predictor_address=sidecar or f"127.0.0.1:{free_port()}")
    async with running(made, where, clock, Bounds(**{"probe_interval_s": 0.05, **bounds})) as addresses:
        url = f"http://127.0.0.1:{addresses.port}"
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=url, timeout=patiently(), trust_env=False, limits=limits) as client:
            yield Running(url, client, f"http://127.0.0.1:{addresses.metrics_port}/metrics")


def chat(text: str, **others: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **others}
