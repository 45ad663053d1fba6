"""What a sidecar learns of returns while it serves, over real gRPC and with a clock that is set by hand."""

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import numpy as np

from lpc.bench.wire import InstantModel
from lpc.model.returns.credit import LIFETIMES
from lpc.model.returns.model import ReturnModel
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.server import Addresses, Parts, running
from predictor_service.settings import ServiceSettings
from tests.integration.test_server import _scrape

START = 1_700_000_000.0
ZEROS = [0.0] * len(LIFETIMES)
LONG, SHORT = 20_000, 20
"""Characters of prompts."""
NIGHT_S = 10 * 3600.0
DAY_S = 86_400.0


@dataclass
class Sidecar:
    """A sidecar whose clock stands still until it is set, and whose refits are asked for."""

    now: float = START
    asked: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    stub: rpc.ContinuationPredictorStub = field(init=False)
    addresses: Addresses = field(init=False)
    model: ReturnModel = field(init=False)

    def learn_from(self, turns: int) -> ReturnModel:
        self.model = ReturnModel(turns)
        return self.model

    async def ask(self, *conversations: pb.Conversation) -> list[list[float]]:
        """Return the credit tables of conversations, asked at once."""
        batch = pb.PredictBatchRequest(conversations=conversations)
        results = (await self.stub.PredictBatch(batch)).results
        return [list(result.prediction.credit_s) for result in results]

    async def traffic(self, minutes: int) -> None:
        """Conversations with long prompts come back after 30 s or so, up to three times; those with short ones never do."""
        waiting: list[tuple[float, str, int]] = []
        end = self.now + 60.0 * minutes
        while self.now < end:
            self.now += 5.0
            due = [turn for turn in waiting if turn[0] <= self.now]
            waiting = [turn for turn in waiting if turn[0] > self.now]
            for _ in range(2):
                self.asked += 1
                due.append((self.now, f"long {self.asked}", 1))
            await self.ask(*(named(LONG, name, turn) for _, name, turn in due))
            await self.ask(*(named(SHORT, f"short {self.asked} {n}", 1) for n in range(4)))
            waiting += [
                (self.now + 15.0 + self.draw.expovariate(1 / 15.0), name, turn + 1) for _, name, turn in due if turn < 4
            ]
        self.model.refit(self.now)

    async def credits_of_both(self) -> tuple[list[float], list[float]]:
        """Return the tables of a conversation with a long prompt and of one with a short prompt."""
        self.asked += 1
        long, short = await self.ask(named(LONG, f"long {self.asked}", 1), named(SHORT, f"short {self.asked}", 1))
        return long, short

    async def tells_them_apart(self) -> bool:
        long, short = await self.credits_of_both()
        return long[LOOKED_AT] > 0 > short[LOOKED_AT]


LOOKED_AT = int(np.searchsorted(LIFETIMES, 10.0))
"""A lifetime of some 10 s: who returns after 30 s finds nothing left without credit."""


@contextlib.asynccontextmanager
async def sidecar(models: Path, start: float = START, **changes: object) -> AsyncIterator[Sidecar]:
    made = Sidecar(start)
    values = {"models": models, "model": "tiny", "port": 0, "metrics_port": 0, "unix_socket": None, "threads": 1, **changes}
    parts = Parts(clock=lambda: made.now, load=InstantModel, returns=made.learn_from)
    async with (
        running(ServiceSettings(**values), parts) as made.addresses,  # type: ignore[arg-type]
        grpc.aio.insecure_channel(f"127.0.0.1:{made.addresses.port}") as channel,
    ):
        made.stub = rpc.ContinuationPredictorStub(channel)
        yield made


def named(chars: int, name: str, turn_count: int) -> pb.Conversation:
    """A turn of a named conversation that begins with so many characters."""
    messages = [pb.ChatMessage(role="tool", content="x" * chars), pb.ChatMessage(role="user", content=f"turn {turn_count}")]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), conversation_id=name, turn_count=turn_count)


async def test_a_cold_sidecar_gives_no_credit_to_anyone(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running_:
        assert await running_.ask(named(LONG, "a", 1), named(SHORT, "b", 1)) == [ZEROS, ZEROS]
        info = await running_.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert list(info.credit_lifetimes_s) == LIFETIMES.tolist()
    assert info.credit_returns == 0


async def test_who_returns_gets_credit_and_who_does_not_gets_less_than_none(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running_:
        await running_.traffic(4)
        assert await running_.tells_them_apart()
        info = await running_.stub.GetModelInfo(pb.GetModelInfoRequest())
        metrics = await _scrape(running_.addresses)
    assert info.credit_returns > 50
    assert f'lpc_returns_learnt{{of="returns"}} {float(info.credit_returns)}' in metrics
    assert "lpc_return_model_nats NaN" in metrics
    assert "lpc_return_model_head_share 0.5" in metrics
