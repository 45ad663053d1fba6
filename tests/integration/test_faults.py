"""The fault scenarios of tests/faults with a tiny model.

`make test-nightly` makes it more kills and clients.
"""

import asyncio
from pathlib import Path

from predictor_service.rpc.listening import Keepalive
from predictor_service.server import Parts
from tests.faults.outages import restarts
from tests.faults.rude_clients import PREFACE, SETTINGS, frame, rude_clients
from tests.integration.test_server import chat, one, sidecar
from tests.nightly import LONG


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
