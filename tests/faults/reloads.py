"""New model versions are loaded under load by the sidecars of a fleet, one after the other: no request fails.

The versions are copies of one model under other names, so every answer tells by which it was made.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.processes import Sidecar
from benchmarks.requests import conversations, request
from lpc.model.versions import served
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from tests.tuned import command

CALLERS: Final = 4
"""Callers of `Predict` per sidecar, one call at a time each; and requests kept in flight on one stream."""
INTERVALS_S: Final = (0.3, 1.0)
"""Seconds between looks for a new version, by sidecar: they reload at different times."""
LOADED_S: Final = 90.0


class Traffic:
    """Callers of one sidecar, until told to stop.

    Attributes:
        answered: predictions by model version.
        failed: calls that had none, by status.
    """

    def __init__(self, address: str, requests: Sequence[pb.Conversation]) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._awaited = "", asyncio.Event()
        self._requests = requests
        self._stop = asyncio.Event()
        self._channel = grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = rpc.ContinuationPredictorStub(self._channel)
        self._tasks = [asyncio.create_task(self._call(k)) for k in range(CALLERS)]

    async def serves(self, version: str) -> None:
        """Wait until an answer was made by a version."""
        self._awaited = version, asyncio.Event()
        await self._awaited[1].wait()

    async def stop(self) -> None:
        """Let what is in flight end, and hang up."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._channel.close()

    def _note(self, prediction: pb.Prediction) -> None:
        self.answered[prediction.model_version] += 1
        if prediction.model_version == self._awaited[0]:
            self._awaited[1].set()

    async def _call(self, caller: int) -> None:
        number = caller
        while not self._stop.is_set():
            number += CALLERS
            message = pb.PredictRequest(conversation=self._requests[number % len(self._requests)])
            try:
                self._note((await self._stub.Predict(message, timeout=60)).prediction)
            except grpc.aio.AioRpcError as error:
                self.failed[error.code().name] += 1


def publish(source: Path, models: Path, model: str, number: int) -> str:
    """Put a copy of a version into a repository as `lpc export` does, newer than the ones before; return its name."""
    version = f"v{number}"
    scratch, place = models / model / f".new-{version}", models / model / version
    shutil.copytree(source, scratch, copy_function=_link_or_copy)
    manifest = scratch / "manifest.json"
    values = json.loads(manifest.read_text())
    values |= {"version": version, "created": (datetime.now(UTC) + timedelta(seconds=number)).isoformat()}
    manifest.unlink()
    manifest.write_text(json.dumps(values))
    scratch.rename(place)
    return version


def _link_or_copy(source: str, target: str) -> None:
    """Link a file, since a model has 118 MB and nobody writes to it; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


async def _roll(
    sidecars: Sequence[Sidecar], publish_next: Sequence[Callable[[], str]], requests: Sequence[pb.Conversation]
) -> dict[str, Any]:
    traffic = [Traffic(sidecar.address, requests) for sidecar in sidecars]
    loaded = 0
    try:
        for publish_one in publish_next:
            version = await asyncio.to_thread(publish_one)
            async with asyncio.timeout(LOADED_S):
                await asyncio.gather(*(one.serves(version) for one in traffic))
            loaded += 1
    except TimeoutError:
        pass
    finally:
        for one in traffic:
            await one.stop()
    return {
        "reloads": loaded * len(traffic),
        "answered": sum(sum(one.answered.values()) for one in traffic),
        "failed": sum(sum(one.failed.values()) for one in traffic),
        "versions_seen": min(len(one.answered) for one in traffic),
    }


def reloads(folder: Path, models: Path, model: str, *, rounds: int) -> dict[str, Any]:
    """Publish ``rounds`` new versions, one when all sidecars serve the one before; return what became of the requests.

    Raises:
        BenchmarkError: there is no model, or a sidecar does not start.
    """
    source = served(models / model)
    repository = folder / "models"
    publish(source, repository, model, 0)
    requests = [request(turns) for turns in conversations(64, 1)[0]]
    with contextlib.ExitStack() as stack:
        sidecars = [
            stack.enter_context(Sidecar(folder / str(number), repository, model, command=command(reload_s=interval), threads=1))
            for number, interval in enumerate(INTERVALS_S)
        ]
        publishing = [lambda number=number: publish(source, repository, model, number) for number in range(1, rounds + 1)]
        figures = asyncio.run(_roll(sidecars, publishing, requests))
    figures["passed"] = figures["failed"] == 0 and figures["reloads"] == rounds * len(INTERVALS_S)
    return figures
