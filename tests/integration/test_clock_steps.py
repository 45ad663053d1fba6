"""What a step of the wall clock and a suspended machine do to labels. Real sidecars, a real Redis."""

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import grpc.aio
import pytest

from lpc.clock import MonotoneClock
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.redis_connection import Connection
from predictor_service import server
from predictor_service.batching.prepare import Preparation
from predictor_service.labels.tracker import TurnTracker
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import ServedModels
from predictor_service.server import Parts
from predictor_service.sharing import registry
from predictor_service.sharing.registry import TurnRegistry
from testing.processes import RedisServer
from tests.eventually import eventually
from tests.integration.test_labels import Sidecar, chat
from tests.jobs import unread_job
from tests.label_log import rows_of
from tests.tuned import SHIPPED, TINY, tuned

HOURS = 7200.0
REAL = time.time


class Rounds:
    """Counts the rounds in which a sidecar labels turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        expire = TurnTracker.expire

        def counted(tracker: TurnTracker, now: float) -> None:
            expire(tracker, now)
            self.count += 1

        monkeypatch.setattr(TurnTracker, "expire", counted)
        monkeypatch.setattr(server, "EXPIRE_INTERVAL_S", 0.02)

    async def two(self) -> None:
        until = self.count + 2
        await eventually(lambda: self.count >= until)


@contextlib.asynccontextmanager
async def sidecar(models: Path, parts: Parts = SHIPPED, **changes: object) -> AsyncIterator[Sidecar]:
    values = {"models": models, **TINY, "client_rate": 0, **changes}
    async with (
        server.running(*tuned(values, parts)) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        yield Sidecar(rpc.ContinuationPredictorStub(channel), addresses)


@pytest.mark.parametrize("step", [HOURS, -HOURS])
async def test_a_step_of_the_wall_clock_labels_no_conversation_and_holds_up_no_label(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    rounds = Rounds(monkeypatch)
    async with sidecar(tiny_models, label_log=tmp_path / "log", label_horizon_s=3600.0) as long:
        await long.ask(chat(["what is a cache"], "c"))
        monkeypatch.setattr(time, "time", lambda: REAL() + step)
        await rounds.two()
        await long.until("lpc_label_memory_turns 1.0")
        await long.ask(chat(["what is a cache", "thank you"], "c"))
        await long.until('lpc_returns_learnt{of="returns"} 1.0')
    monkeypatch.setattr(time, "time", REAL)
    async with sidecar(tiny_models, label_log=tmp_path / "log", label_horizon_s=2.0) as short:
        await short.ask(chat(["what is a cache"], "c"))
        monkeypatch.setattr(time, "time", lambda: REAL() + step)
        await short.ask(chat(["what is a cache", "thank you"], "c"))
        await short.until("lpc_label_memory_turns 0.0")
    before, last = rows_of(tmp_path / "log")
    assert before["continues"] and 0.0 <= before["gap_s"] < 2.0 and not last["continues"]
    # People read the rows, so their times are those of the wall clock, when they were written.
    assert abs(before["asked_at"].replace(tzinfo=UTC).timestamp() - REAL() - step) < 600.0


async def test_users_who_waited_while_the_machine_was_suspended_did_not_continue(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, suspended = Rounds(monkeypatch), [0.0]
    parts = Parts(clock=lambda: REAL() + suspended[0])
    async with sidecar(tiny_models, parts, label_log=tmp_path / "log", label_horizon_s=3600.0) as one:
        await one.ask(chat(["what is a cache"], "c"))
        suspended[0] = HOURS
        await rounds.two()
    assert [row["continues"] for row in rows_of(tmp_path / "log")] == [False]


class Machine:
    """A sidecar's part that shares turns, on a machine whose wall clock can be set."""

    def __init__(self, url: str) -> None:
        self.stepped = 0.0
        self.metrics = Metrics()
        clock = MonotoneClock(time.monotonic, lambda: REAL() + self.stepped)
        tracker = TurnTracker(100, 3600.0, [])
        self.shared = TurnRegistry(Connection(url, timeout_s=20.0), tracker, self.metrics, clock)
        parser = RequestParser(RequestLimits(10, 1000, 100), ServedModels({}))
        self.preparation = Preparation(parser, tracker, self.metrics, registry=self.shared, threads=1, clock=clock.now)

    async def ask(self, tokens: int):
        ids = pb.TokenIds(ids=range(tokens), served_model="nobody knows it")
        return await self.preparation.note_unread(unread_job(pb.Conversation(tokens=ids, conversation_id="c")))

    def close(self) -> None:
        self.preparation.close()
        self.shared.close()


@pytest.mark.parametrize("step", [HOURS, -HOURS, 10 * HOURS, -1e9])
@pytest.mark.parametrize("when", ["before both", "between", "after both"])
async def test_a_return_to_another_sidecar_has_its_time_although_a_clock_was_set(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, step: float, when: str
) -> None:
    monkeypatch.setattr(registry, "PATIENCE_S", 20.0)
    monkeypatch.setattr(registry, "RETURNS_S", 0.3)
    a, b = Machine(redis_server.url), Machine(redis_server.url)
    try:
        for one in (a, b):
            await eventually(lambda one=one: one.shared.key is not None)
        if when == "before both":
            a.stepped = step
        first = await a.ask(500)
        if when == "between":
            a.stepped = b.stepped = step
        second = await b.ask(700)
        if when == "after both":
            a.stepped = step
        await eventually(lambda: first.next_at is not None)
        assert second.arrival.conversation == first.arrival.conversation
        assert -1.0 < first.next_at - first.arrival.asked_at < 30.0
        assert not second.arrival.facts.last_gap > 3 * HOURS and second.arrival.facts.last_gap != 0.0
    finally:
        a.close()
        b.close()
