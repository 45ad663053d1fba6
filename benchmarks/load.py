"""Benchmark `load`: overload of the sidecar for minutes. It must refuse requests, not collapse.

Clients behave like engines: each has its own connection, and requests have the engines' default deadline of 10 s. First every
client keeps one request in flight, in a closed loop without a deadline: the answers per second are saturation. Then requests
arrive at random (exponential gaps) at ``factor`` times that rate, independent of earlier ones.

An answer after the deadline does not count. Latency is from the arrival at the client to the answer there.
"""

import asyncio
import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import grpc.aio
import numpy as np
from rich.table import Table

from benchmarks import BenchmarkError
from lpc.errors import UsageError
from lpc.model.versions import served_folder
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.terminal import console
from testing.processes import Sidecar
from testing.requests import conversations, request

PATIENCE_S: Final = 10.0
"""An engine's default deadline."""
WINDOW_S: Final = 10.0
CONVERSATIONS: Final = 300

Fate = Literal["answered", "refused", "expired", "failed", "unanswered"]
_FATES: Final[dict[grpc.StatusCode, Fate]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
    grpc.StatusCode.DEADLINE_EXCEEDED: "expired",
}


@dataclass(slots=True)
class Sent:
    """One request: time of its arrival and end (seconds since the start of the load), and how it ended."""

    at: float
    done: float = 0.0
    fate: Fate = "unanswered"

    @property
    def latency_s(self) -> float:
        """Time from arrival to answer."""
        return self.done - self.at


class Client:
    """One engine, with its own connection. ``patience_s``: deadline of a request."""

    def __init__(self, address: str, clock: Callable[[], float], patience_s: float) -> None:
        # Otherwise all channels of a process share one connection.
        self._channel = grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = rpc.ContinuationPredictorStub(self._channel)
        self._clock = clock
        self._patience_s = patience_s
        self._calls: set[asyncio.Task[None]] = set()

    def ask(self, conversation: pb.Conversation, sent: Sent) -> asyncio.Event:
        """Send a request; return an event that is set at its end. ``sent`` gets the result."""
        ended = asyncio.Event()
        call = asyncio.create_task(self._call(pb.PredictRequest(conversation=conversation), sent, ended))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return ended

    async def close(self) -> None:
        """Wait for the answers and close the connection."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=PATIENCE_S + 20)
        await self._channel.close()

    async def _call(self, request: pb.PredictRequest, sent: Sent, ended: asyncio.Event) -> None:
        try:
            await self._stub.Predict(request, timeout=self._patience_s if math.isfinite(self._patience_s) else None)
        except grpc.aio.AioRpcError as error:
            sent.fate = _FATES.get(error.code(), "failed")
        else:
            sent.fate = "answered"
        sent.done = self._clock()
        # An engine cannot use a late answer, even if the sidecar sent it in time.
        if sent.fate == "answered" and sent.latency_s > self._patience_s:
            sent.fate = "expired"
        ended.set()


async def saturation(address: str, requests: Iterator[pb.Conversation], clients: int, seconds: float) -> float:
    """Return the answers per second while every client keeps one request in flight, without the first third of the time."""
    start = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - start

    engines = [Client(address, clock, math.inf) for _ in range(clients)]
    answered = 0

    async def keep_asking(engine: Client) -> None:
        nonlocal answered
        while clock() < seconds:
            sent = Sent(clock())
            await engine.ask(next(requests), sent).wait()
            if sent.fate != "answered":
                raise BenchmarkError(f"with {clients} clients of one request each, one {sent.fate}: see the sidecar's log")
            answered += seconds / 3 <= sent.done < seconds

    await asyncio.gather(*map(keep_asking, engines))
    await asyncio.gather(*(engine.close() for engine in engines))
    return answered / (seconds * 2 / 3)


async def overload(
    sidecar: Sidecar,
    requests: Iterator[pb.Conversation],
    *,
    clients: int,
    per_second: float,
    seconds: float,
) -> tuple[list[Sent], list[float]]:
    """Send ``per_second`` requests for ``seconds``; return them, and the sidecar's MiB at the end of each window."""
    start = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - start

    engines = [Client(sidecar.address, clock, PATIENCE_S) for _ in range(clients)]
    rng = random.Random(0)
    everything: list[Sent] = []
    memory: list[float] = []
    at = rng.expovariate(per_second)
    while at < seconds:
        await asyncio.sleep(at - clock())
        while at <= clock() and at < seconds:
            # The arrival is the scheduled time: delays in this process count against the sidecar.
            everything.append(Sent(at))
            rng.choice(engines).ask(next(requests), everything[-1])
            at += rng.expovariate(per_second)
        if clock() >= WINDOW_S * (len(memory) + 1):
            memory.append(sidecar.rss_mib)
    await asyncio.gather(*(engine.close() for engine in engines))
    memory.append(sidecar.rss_mib)
    return everything, memory


def windows(everything: Sequence[Sent], memory: Sequence[float], seconds: float) -> list[dict[str, float]]:
    """Return the figures of every ten seconds: requests by arrival, results and latencies by end."""
    rows = []
    for k in range(round(seconds / WINDOW_S)):
        begin, end = k * WINDOW_S, (k + 1) * WINDOW_S
        ended = [sent for sent in everything if begin <= sent.done < end]
        row: dict[str, float] = {"second": end, "offered": sum(begin <= sent.at < end for sent in everything)}
        for fate in ("answered", "refused", "expired", "failed"):
            row[fate] = sum(sent.fate == fate for sent in ended)
        latencies = [sent.latency_s for sent in ended if sent.fate == "answered"] or [float("nan")]
        row |= {
            "p50_s": float(np.percentile(latencies, 50)),
            "p99_s": float(np.percentile(latencies, 99)),
            "rss_mib": memory[k],
        }
        rows.append({name: round(value, 3) for name, value in row.items()})
    return rows


def verdicts(figures: dict[str, Any]) -> dict[str, bool]:
    """Return the promises for a sidecar under overload, and whether each held."""
    return {
        "answers go on: at least 85% of saturation": figures["answered_per_second"] >= 0.85 * figures["saturation_per_second"],
        "the rest is refused: at most 1 in 100 requests times out": figures["expired"] <= 0.01 * figures["offered"],
        "no request fails or stays unanswered": figures["failed"] == figures["unanswered"] == 0,
        "p99 of the answered is bounded: in no ten seconds over 1.5 times the median": (
            figures["p99_worst_s"] <= 1.5 * figures["p99_median_s"]
        ),
        "memory is bounded: the second half at most 5% above the first": figures["rss_growth"] <= 1.05,
    }


def run(
    models: Path,
    model: str,
    *,
    minutes: float = 10.0,
    clients: int = 64,
    factor: float = 1.5,
    saturation_s: float = 30.0,
) -> dict[str, Any]:
    """Measure; print the figures of every ten seconds and the verdicts; return them.

    Raises:
        BenchmarkError, ArtifactError: there is no model, or the sidecar died.
    """
    seconds = minutes * 60
    if seconds < 2 * WINDOW_S or clients < 1 or factor <= 0:
        raise UsageError("--minutes must be at least 0.34, --clients at least 1 and --factor above 0")
    served_folder(models / model)
    screen = console()
    (turns,) = conversations(CONVERSATIONS, 1)
    requests = itertools.cycle([request(t) for t in turns])
    with tempfile.TemporaryDirectory(prefix="lpc-load-") as folder, Sidecar(Path(folder), models, model) as sidecar:
        most = asyncio.run(saturation(sidecar.address, requests, clients, saturation_s))
        screen.print(f"saturation: {most:.1f} predictions/s, {clients} clients; now {factor * most:.1f} for {minutes:g} min")
        everything, memory = asyncio.run(
            overload(sidecar, requests, clients=clients, per_second=factor * most, seconds=seconds)
        )
    rows = windows(everything, memory, seconds)
    figures = _summary(everything, rows, seconds) | {"saturation_per_second": round(most, 1)}
    figures |= {"minutes": minutes, "clients": clients, "factor": factor, "windows": rows}
    figures["verdicts"] = verdicts(figures)
    figures["passed"] = all(figures["verdicts"].values())
    _print(figures)
    return figures


def _summary(everything: Sequence[Sent], rows: Sequence[dict[str, float]], seconds: float) -> dict[str, Any]:
    counts = {fate: sum(sent.fate == fate for sent in everything) for fate in ("answered", "refused", "expired", "failed")}
    latencies = [sent.latency_s for sent in everything if sent.fate == "answered"] or [float("nan")]
    # The queue fills during the first windows.
    steady = [row["p99_s"] for row in rows[2:]] or [row["p99_s"] for row in rows]
    half = len(rows) // 2
    return {
        "offered": len(everything),
        **counts,
        "unanswered": sum(sent.fate == "unanswered" for sent in everything),
        "answered_per_second": round(sum(row["answered"] for row in rows) / seconds, 1),
        "p50_s": round(float(np.percentile(latencies, 50)), 3),
        "p99_s": round(float(np.percentile(latencies, 99)), 3),
        "p99_median_s": round(statistics.median(steady), 3),
        "p99_worst_s": round(max(steady), 3),
        "rss_start_mib": round(rows[0]["rss_mib"], 1),
        "rss_highest_mib": round(max(row["rss_mib"] for row in rows), 1),
        "rss_growth": round(max(row["rss_mib"] for row in rows[half:]) / max(row["rss_mib"] for row in rows[:half]), 3),
    }


def _print(figures: dict[str, Any]) -> None:
    screen = console()
    names = ("second", "offered", "answered", "refused", "expired", "failed", "p50_s", "p99_s", "rss_mib")
    table = Table(title="every ten seconds")
    for name in names:
        table.add_column(name.replace("_s", ", s").replace("_mib", ", MiB"), justify="right")
    for row in figures["windows"]:
        table.add_row(*(f"{row[name]:.2f}" if name.endswith("_s") else f"{row[name]:,.0f}" for name in names))
    screen.print(table)
    for name, value in figures.items():
        if name not in ("windows", "verdicts", "passed"):
            screen.print(f"{name.replace('_', ' ')}: {value:g}")
    for verdict, held in figures["verdicts"].items():
        screen.print(f"{'ok  ' if held else 'FAIL'} {verdict}")
