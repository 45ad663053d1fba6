"""A sidecar whose wall clock is wrong at its start and is set later: its days are those of the clock as it is set."""

import time
from pathlib import Path

import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from response_cache.service.running import running_alone
from response_cache.service.settings import CacheSettings
from response_cache.store.days import day_of
from testing.processes import RedisServer
from tests.caching_sidecar import write_keys
from tests.integration.response_cache.test_service import request
from tests.tuned import TINY

REAL = time.time
YEARS = 4 * 365 * 86_400.0


@pytest.mark.parametrize("step", [YEARS, -YEARS, 30 * 3600.0, -30 * 3600.0])
async def test_after_the_clock_was_set_look_ups_count_on_the_right_day(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """They counted on the days of the wrong clock until the next restart, where other sidecars did not report them."""
    monkeypatch.setattr(time, "time", lambda: REAL() - step)
    settings = CacheSettings(
        **TINY,
        models=tmp_path,
        cache_redis_url=redis_server.url,
        cache_keys=write_keys(tmp_path / "keys"),
        cache_gateways="anonymous",
        cache_scopes={"default": {}},
        state=tmp_path / "state",
    )
    async with running_alone(settings) as addresses, grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        stub = rpc.ResponseCacheStub(channel)
        monkeypatch.setattr(time, "time", REAL)
        await stub.Lookup(pb.LookupRequest(request=request()))
        now = REAL()
        report = await stub.Report(pb.ReportRequest(days=1))
    assert [one.day for one in report.days] in ([day_of(now)], [day_of(now - 60.0)])
