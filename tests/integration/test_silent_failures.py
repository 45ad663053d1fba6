"""Faults inside the sidecar: each is logged with its frames and counted; where no prediction can be had, it is not serving."""

import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lpc.model.inference import Model
from lpc.model.returns.model import ReturnModel
from predictor_service import server
from predictor_service.batching.batch_queue import Batch, BatchQueue
from predictor_service.labels.tracker import TurnTracker
from predictor_service.process import Addresses
from predictor_service.repository import ModelRepository
from predictor_service.server import Parts
from tests.eventually import eventually, patiently
from tests.integration.test_server import chat, one, scrape, sidecar

SECRET = "my secret prompt"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health(addresses: Addresses) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status


async def failures(addresses: Addresses, task: str) -> float:
    for line in (await scrape(addresses)).splitlines():
        if line.startswith(f'lpc_task_failures_total{{task="{task}"}}'):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


@contextlib.asynccontextmanager
async def fast(models: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch, **settings: object) -> AsyncIterator[Any]:
    monkeypatch.setattr(server, "HEALTH_S", 0.05)
    monkeypatch.setattr(server, "EXPIRE_INTERVAL_S", 0.05)
    async with sidecar(models, parts, reload_s=0.05, **settings) as (stub, addresses):
        yield stub, addresses


async def test_a_batcher_that_dies_is_not_serving_and_answers_what_waits(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fast(tiny_models, Parts(), monkeypatch) as (stub, addresses):
        await stub.Predict(one(chat("hello")))
        assert await health(addresses) == SERVING

        def fails(queue: BatchQueue, now: float, lane: object) -> Batch:
            raise KeyError(SECRET)

        monkeypatch.setattr(BatchQueue, "next_batch", fails)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Predict(one(chat("hello")), timeout=patiently())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: _equals(health(addresses), NOT_SERVING))
        assert await failures(addresses, "batcher") == 1
    assert "bug in the batcher" in caplog.text and "in fails" in caplog.text
    assert SECRET not in caplog.text


async def test_a_model_that_fails_on_every_input_is_not_serving_until_it_recovers(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = False

    class Failing(Model):
        def run(self, batch: Any) -> Any:
            if broken:
                raise RuntimeError(SECRET)
            return super().run(batch)

    async with fast(tiny_models, Parts(load=Failing), monkeypatch) as (stub, addresses):
        broken = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Predict(one(chat("hello")), timeout=patiently())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        await eventually(lambda: _equals(health(addresses), NOT_SERVING))
        broken = False
        await eventually(lambda: _equals(health(addresses), SERVING))
        await stub.Predict(one(chat("hello")), timeout=patiently())
    assert "bug in inference" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("task", "owner", "method"),
    [
        ("reload", ModelRepository, "load_newer"),
        ("labels", TurnTracker, "expire"),
        ("returns", ReturnModel, "refit"),
    ],
)
async def test_a_periodic_task_survives_a_failed_round(
    tiny_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    task: str,
    owner: type,
    method: str,
) -> None:
    calls = 0
    works = getattr(owner, method)

    def fails_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError(SECRET)
        return works(*arguments)

    monkeypatch.setattr(owner, method, fails_once)
    async with fast(tiny_models, Parts(), monkeypatch, refit_s=0.05) as (stub, addresses):
        await eventually(lambda: _equals(failures(addresses, task), 1.0))
        await eventually(lambda: _true(calls >= 3))
        await stub.Predict(one(chat("hello")), timeout=patiently())
        assert await health(addresses) == SERVING
    assert f"bug in the task '{task}'" in caplog.text
    assert SECRET not in caplog.text


async def _equals(value: Awaitable[float], expected: float) -> bool:
    return await value == expected


async def _true(value: bool) -> bool:
    return value
