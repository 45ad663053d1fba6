"""Benchmark `wire`: what gRPC costs, with a model that answers at once.

The sidecar runs in a process of its own with its real server, parsing, tokenisation, queue and batching; only the session
is replaced by a constant, so that what is left is the wire and the work around the model.
"""

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio
from rich.progress import track
from rich.table import Table

from benchmarks.processes import Sidecar
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.versions import served
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.terminal import console
from predictor_service import server
from predictor_service.settings import ServiceSettings

BATCH: Final = 16
IN_FLIGHT: Final = 64
TEXT: Final = "How do I keep the conversations that go on in the cache?"

Send = Callable[[Any, int], Awaitable[None]]


def run(*, quick: bool = False, models: Path = Path("models"), model: str = "e5-small") -> dict[str, Any]:
    """Measure; print a table; return unary_per_second, batch_16_items_per_second, stream_items_per_second.

    Raises:
        ArtifactError: there is no artefact whose tokenizer the sidecar could use.
    """
    screen = console()
    rounds, count = (3, 1600) if quick else (7, 8000)
    served(models / model)
    kinds: dict[str, Send] = {"unary": _unary, "batch_16_items": _batches, "stream_items": _stream}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with (
        tempfile.TemporaryDirectory(prefix="lpc-") as folder,
        Sidecar(Path(folder), models, model, command=["benchmarks.wire"]) as sidecar,
    ):
        for _ in track(range(rounds), "bench wire", console=screen, transient=True):
            for kind, send in kinds.items():
                rates[kind].append(count / asyncio.run(_timed(sidecar.address, send, count)))
    figures = {f"{kind}_per_second": round(statistics.median(values), 1) for kind, values in rates.items()}
    table = Table("call", "conversations/s", title="gRPC with an instant model, one client process, one server process")
    for kind, value in figures.items():
        table.add_row(kind, f"{value:,.0f}")
    screen.print(table)
    return figures


async def _timed(address: str, send: Send, count: int) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = rpc.ContinuationPredictorStub(channel)
        await stub.GetModelInfo(pb.GetModelInfoRequest())
        start = time.perf_counter()
        await send(stub, count)
        return time.perf_counter() - start


def _conversation() -> pb.Conversation:
    return pb.Conversation(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=TEXT)]))


async def _unary(stub: Any, count: int) -> None:
    message = pb.PredictRequest(conversation=_conversation())
    await _in_flight(lambda: stub.Predict(message), count)


async def _batches(stub: Any, count: int) -> None:
    message = pb.PredictBatchRequest(conversations=[_conversation()] * BATCH)
    await _in_flight(lambda: stub.PredictBatch(message), count // BATCH)


async def _in_flight(call: Callable[[], Awaitable[Any]], count: int) -> None:
    permits = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> None:
        async with permits:
            await call()

    await asyncio.gather(*(one() for _ in range(count)))


async def _stream(stub: Any, count: int) -> None:
    permits = asyncio.Semaphore(IN_FLIGHT)

    async def requests() -> AsyncIterator[pb.PredictStreamRequest]:
        for number in range(count):
            await permits.acquire()
            yield pb.PredictStreamRequest(request_id=str(number), conversation=_conversation())

    async for _ in stub.PredictStream(requests()):
        permits.release()


class InstantModel(Model):
    """A model whose session takes no time."""

    def run(self, batch: Sequence[Features]) -> list[float]:
        """Return the same probability for all."""
        return [0.5] * len(batch)


def serve_instant() -> None:
    """Serve with the instant model: the other process of this benchmark."""
    logging.basicConfig(level="INFO", stream=sys.stderr)
    asyncio.run(server.serve(ServiceSettings(), server.Parts(load=InstantModel)))


if __name__ == "__main__":
    serve_instant()
