"""`kill -TERM` of a real sidecar under load: calls that were sent before the signal are answered."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from testing.processes import Sidecar
from tests.eventually import patiently, until
from tests.integration.test_server import chat, one
from tests.nightly import LONG

IN_FLIGHT: Final = 200
UPLOADS: Final = 20
"""Of the calls in flight: streams that the client ends after the signal."""
STOPS: Final = 20 if LONG else 2
LONGEST_S: Final = 0.3
"""Time under load before the signal, so that it meets calls in every state."""


def offer(may_go_on: threading.Event) -> Iterator[pb.OfferTokenizerRequest]:
    may_go_on.wait(patiently())
    yield pb.OfferTokenizerRequest(offer=pb.TokenizerOffer(served_model="unknown", digest="0" * 64))


def calls_at_the_signal(sidecar: Sidecar, stub: rpc.ContinuationPredictorStub, seconds: float) -> list[grpc.Future[Any]]:
    """Keep calls in flight for so long, then stop the sidecar; return those that were in flight."""
    stopped = threading.Event()
    text = " ".join(["what is a cache"] * 30)
    kinds: Iterator[Callable[[], grpc.Future[Any]]] = itertools.cycle(
        (
            *(lambda n=n: stub.Predict.future(one(chat(f"{text} {n}"))) for n in range(8)),
            lambda: stub.PredictBatch.future(pb.PredictBatchRequest(conversations=[chat(text), chat("hello", "hi", text)])),
        )
    )
    uploads = [stub.OfferTokenizer.future(offer(stopped)) for _ in range(UPLOADS)]
    calls: list[grpc.Future[Any]] = []
    end = time.monotonic() + seconds
    while len(calls) < IN_FLIGHT - UPLOADS or time.monotonic() < end:
        calls = [call for call in calls if not call.done()]
        calls += [next(kinds)() for _ in range(IN_FLIGHT - UPLOADS - len(calls))]
    sidecar.signal(signal.SIGTERM)
    in_flight = [*uploads, *(call for call in calls if not call.done())]
    stopped.set()
    return in_flight


@pytest.mark.parametrize("address", ["address", "socket_address"])
def test_a_stop_loses_no_call_in_flight(tiny_models: Path, tmp_path: Path, address: str) -> None:
    draws = random.Random(2)
    seen = 0
    lost: Counter[str] = Counter()
    for stop in range(STOPS // 2):
        with Sidecar(tmp_path / str(stop), tiny_models, "tiny", drain_timeout_s=60, threads=1) as sidecar:
            with grpc.insecure_channel(getattr(sidecar, address)) as channel:
                grpc.channel_ready_future(channel).result(60)
                stub = rpc.ContinuationPredictorStub(channel)
                in_flight = calls_at_the_signal(sidecar, stub, draws.uniform(0, LONGEST_S))
                seen += len(in_flight)
                lost.update(f"{error.code()}: {error.details()}" for call in in_flight if (error := call.exception(120)))
            until(lambda: not sidecar.running)
    print(f"\n== {sum(lost.values())} of {seen} calls in flight lost in {STOPS // 2} stops")
    assert seen > IN_FLIGHT / 2 * (STOPS // 2), "too few calls were in flight to show anything"
    assert not lost
