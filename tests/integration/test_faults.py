"""The fault scenarios of tests/faults, and the load of benchmark `load`, with a tiny model.

`make test-nightly` makes it more kills and clients.
"""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks import load
from benchmarks.processes import Sidecar
from benchmarks.requests import conversations, request
from predictor_service.rpc.listening import Keepalive
from predictor_service.server import Parts
from tests.faults.outages import restarts
from tests.faults.rude_clients import PREFACE, SETTINGS, frame, rude_clients
from tests.integration.test_server import chat, one, sidecar
from tests.nightly import LONG
from tests.tuned import command


def test_no_call_fails_and_all_comes_back_when_sidecar_and_redis_are_killed(tiny_models: Path, tmp_path: Path) -> None:
    rounds = 20 if LONG else 1
    figures = restarts(tmp_path, tiny_models, "tiny", rounds=rounds)
    assert figures["errors"] == figures["requests_unaccounted"] == 0
    assert (figures["predictions_back"], figures["store_back"]) == (rounds, rounds)
    assert figures["by_fallback"] > 0


def test_silent_dripping_half_said_and_cut_off_clients_disturb_nobody(tiny_models: Path, tmp_path: Path) -> None:
    count, seconds, patience_s = (100, 30, 170) if LONG else (5, 2, 0)
    figures = rude_clients(tmp_path, tiny_models, "tiny", count=count, seconds=seconds, patience_s=patience_s)
    assert figures["connections"] >= 4 * count
    assert figures["failed"] == 0
    assert figures["held_after_they_left"] == 0
    assert figures["passed"]


async def test_a_peer_that_answers_no_ping_is_let_go_and_an_idle_engine_is_not(tiny_models: Path) -> None:
    async with sidecar(tiny_models, Parts(keepalive=Keepalive(idle_ms=200, timeout_ms=200))) as (stub, addresses):
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0
        reader, writer = await asyncio.open_connection("127.0.0.1", addresses.port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        # Read to the end: the sidecar has hung up.
        await reader.read()
        writer.close()
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0


@pytest.mark.nightly
def test_the_loads_clients_go_on_when_their_connections_are_ended_for_their_age(tiny_models: Path, tmp_path: Path) -> None:
    (turns,) = conversations(10, 1)
    requests = itertools.cycle([request(t) for t in turns])
    with Sidecar(tmp_path, tiny_models, "tiny", command=command(connection_age_s=2.0)) as sidecar:
        load_of = load.overload(sidecar, requests, clients=3, per_second=30, seconds=7.0)
        everything, _ = asyncio.run(load_of)
    fates = Counter(sent.fate for sent in everything)
    assert fates["failed"] == fates["unanswered"] == 0
    assert any(sent.fate == "answered" and sent.at > 3.0 for sent in everything)


@pytest.mark.nightly
def test_every_request_of_the_load_comes_to_one_end(tiny_models: Path) -> None:
    with patch("benchmarks.load.WINDOW_S", 1.0):
        figures = load.run(tiny_models, "tiny", minutes=0.05, clients=8, factor=1.5, saturation_s=1.5)
    assert figures["failed"] == figures["unanswered"] == 0
    assert figures["offered"] == figures["answered"] + figures["refused"] + figures["expired"] > 0
    assert len(figures["windows"]) == 3
