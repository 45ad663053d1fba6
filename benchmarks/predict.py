"""Benchmark `predict`: the sidecar over gRPC against the bare ONNX Runtime session on the same conversations.

Both run in separate processes with the same threads, in alternating rounds. The result is the median of the rounds' ratios.

Saturation. Bare: the conversations, tokenised in advance, sorted by length and split into batches by the sidecar's own budget.
This is the session's maximum. Service: a client keeps enough of them in flight for full batches.

Half load. Conversations arrive at random (exponential gaps) at half the service's rate at saturation. The service's latency,
with queue and network, is compared with the bare session's on the same schedule, one conversation at a time in order of
arrival: the latency of an engine that calls the session itself.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio
import numpy as np
from rich.table import Table

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.model.versions import served_folder
from lpc.progress import each
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.terminal import console
from predictor_service.batching.budget import BATCH_TOKENS
from testing.processes import Sidecar
from testing.requests import conversations, request

IN_FLIGHT: Final = 64
CHANNEL: Final = [("grpc.max_send_message_length", -1)]


def run(models: Path, model: str, *, against: str | None = None, quick: bool = False) -> dict[str, Any]:
    """Measure a model, and another one on the same conversations; print tables; return the figures of the first.

    They have throughput_ratio, p99_ratio_half_load, predictions_per_second and their raw data. With another model they have its
    figures as `against`, and two ratios of the first to it: `faster` (predictions/s) and `processor_ratio` (predictions per
    second of the sidecar's processor time, which other work on the machine changes less).

    Raises:
        ArtifactError: a model does not exist.
        BenchmarkError: the sidecar does not start.
    """
    figures = _measure(models, model, quick=quick)
    if against is None:
        return figures
    other = _measure(models, against, quick=quick)
    faster = figures["predictions_per_second"] / other["predictions_per_second"]
    less = other["processor_ms"] / figures["processor_ms"]
    console().print(f"{model} answers {faster:.1f}x the predictions/s of {against}, {less:.1f}x per second of processor time")
    return {**figures, "against": other, "faster": round(faster, 2), "processor_ratio": round(less, 2)}


def _measure(models: Path, model: str, *, quick: bool) -> dict[str, Any]:
    screen = console()
    rounds, count = (3, 64) if quick else (5, 300)
    folder = served_folder(models / model)
    session = Model(folder, InferenceSettings())
    measured: dict[str, list[float]] = {}

    def note(**figures: float) -> None:
        for name, value in figures.items():
            measured.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory(prefix="lpc-") as run_folder, Sidecar(Path(run_folder), models, model) as sidecar:
        address = sidecar.address
        drawn = list(enumerate(conversations(count, rounds)))
        for seed, turns in each(drawn, "bench predict", "draws"):
            features = [session.encode(t) for t in turns]
            requests = [pb.PredictRequest(conversation=request(t)) for t in turns]

            def saturate_bare(features: Sequence[ModelInput] = features) -> float:
                return count / _bare_saturated(session, features)

            def saturate_service(requests: Sequence[pb.PredictRequest] = requests) -> float:
                return count / asyncio.run(service_saturated(address, requests))

            used = sidecar.processor_s
            bare, service = _in_turn(seed, saturate_bare, saturate_service)
            note(processor_ms=(sidecar.processor_s - used) / count * 1e3)
            schedule = _arrivals(count, service / 2, seed)

            def load_bare(features: Sequence[ModelInput] = features, at: Sequence[float] = schedule) -> list[float]:
                return _bare_scheduled(session, features, at)

            def load_service(requests: Sequence[pb.PredictRequest] = requests, at: Sequence[float] = schedule) -> list[float]:
                return asyncio.run(_service_scheduled(address, requests, at))

            alone, served = _in_turn(seed, load_bare, load_service)
            note(bare_per_second=bare, predictions_per_second=service, throughput_ratio=service / bare)
            note(bare_p50_ms=float(np.percentile(alone, 50)) * 1e3, bare_p99_ms=float(np.percentile(alone, 99)) * 1e3)
            note(p50_ms=float(np.percentile(served, 50)) * 1e3, p99_ms=float(np.percentile(served, 99)) * 1e3)
            note(p50_ratio_half_load=float(np.percentile(served, 50)) / float(np.percentile(alone, 50)))
            note(p99_ratio_half_load=float(np.percentile(served, 99)) / float(np.percentile(alone, 99)))
    figures = {name: round(statistics.median(values), 3) for name, values in measured.items()}
    figures |= {"rounds": rounds, "conversations": count}
    table = Table(title=f"{folder.name} on {session.provider}: medians of {rounds} rounds of {count} ShareGPT conversations")
    for column in ("", "bare session", "service over gRPC", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    ratio = "{:.2f}x".format
    table.add_row(
        "predictions/s at saturation",
        f"{figures['bare_per_second']:.1f}",
        f"{figures['predictions_per_second']:.1f}",
        ratio(figures["throughput_ratio"]),
    )
    table.add_row("processor time of a prediction, ms", "", f"{figures['processor_ms']:.2f}", "")
    for q in ("p50", "p99"):
        table.add_row(
            f"{q} at half load, ms",
            f"{figures[f'bare_{q}_ms']:.1f}",
            f"{figures[f'{q}_ms']:.1f}",
            ratio(figures[f"{q}_ratio_half_load"]),
        )
    screen.print(table)
    return figures


def _in_turn(seed: int, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Run two measurements; the order alternates by round."""
    if seed % 2:
        b = second()
        return first(), b
    a = first()
    return a, second()


def _bare_saturated(session: Model, features: Sequence[ModelInput]) -> float:
    batches: list[list[ModelInput]] = []
    for item in sorted(features, key=lambda f: len(f.input_ids)):
        if batches and (len(batches[-1]) + 1) * len(item.input_ids) <= BATCH_TOKENS[session.provider]:
            batches[-1].append(item)
        else:
            batches.append([item])
    start = time.perf_counter()
    for batch in batches:
        session.run(batch)
    return time.perf_counter() - start


def _bare_scheduled(session: Model, features: Sequence[ModelInput], arrivals: Sequence[float]) -> list[float]:
    latencies = []
    start = time.perf_counter()
    for item, at in zip(features, arrivals, strict=True):
        time.sleep(max(0.0, at - (time.perf_counter() - start)))
        session.run([item])
        latencies.append(time.perf_counter() - start - at)
    return latencies


async def service_saturated(address: str, requests: Sequence[pb.PredictRequest]) -> float:
    """Return the seconds in which a sidecar answers all requests, IN_FLIGHT at a time."""
    async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        await stub.GetModelInfo(pb.GetModelInfoRequest())
        permits = asyncio.Semaphore(IN_FLIGHT)

        async def one(message: pb.PredictRequest) -> None:
            async with permits:
                await stub.Predict(message)

        start = time.perf_counter()
        await asyncio.gather(*map(one, requests))
        return time.perf_counter() - start


async def _service_scheduled(address: str, requests: Sequence[pb.PredictRequest], arrivals: Sequence[float]) -> list[float]:
    async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        await stub.GetModelInfo(pb.GetModelInfoRequest())
        start = time.perf_counter()

        async def one(message: pb.PredictRequest, at: float) -> float:
            await asyncio.sleep(max(0.0, at - (time.perf_counter() - start)))
            await stub.Predict(message)
            return time.perf_counter() - start - at

        return await asyncio.gather(*map(one, requests, arrivals))


def _arrivals(count: int, per_second: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(per_second)
        arrivals.append(now)
    return arrivals
