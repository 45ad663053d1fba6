"""What a sidecar learns of returns while it serves, over real gRPC and with a clock that is set by hand."""

import asyncio
import contextlib
import io
import logging
import math
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from lpc.model.inference import Model
from lpc.model.returns.groups import GROUPS
from lpc.model.returns.hazards import EDGES
from lpc.model.returns.model import ReturnModel
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service import server
from predictor_service.errors import StartError
from predictor_service.process import Addresses
from predictor_service.returns.learning import ReturnLearning
from predictor_service.server import Parts, running
from tests.full_disk import fill
from tests.integration.test_server import scrape
from tests.tuned import TINY, tuned

START = 1_700_000_000.0
LONG, SHORT = 20_000, 20
"""Characters of prompts."""
DAY_S = 86_400.0


class InstantModel(Model):
    """A model whose session takes no time."""

    def run(self, batch):
        return [0.5] * len(batch)


@dataclass
class Sidecar:
    """A sidecar whose clock stands still until it is set, and whose refits are asked for: a slow machine learns the same."""

    now: float = START
    asked: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    stub: rpc.ContinuationPredictorStub = field(init=False)
    addresses: Addresses = field(init=False)
    model: ReturnModel = field(init=False)
    learning: ReturnLearning = field(init=False)

    def learn_from(self, turns: int) -> ReturnModel:
        self.model = ReturnModel(turns)
        return self.model

    def learning_of(self, *args: Any, **changes: Any) -> ReturnLearning:
        self.learning = ReturnLearning(*args, **changes)
        return self.learning

    async def ask(self, *conversations: pb.Conversation) -> list[int]:
        """Return the groups of conversations, asked at once."""
        batch = pb.PredictBatchRequest(conversations=conversations)
        results = (await self.stub.PredictBatch(batch)).results
        return [result.prediction.reuse_group for result in results]

    async def traffic(self, minutes: int) -> None:
        """Conversations with long prompts come back after 30 s or so, up to three times; those with short ones never do."""
        waiting: list[tuple[float, str, int]] = []
        for _ in range(12 * minutes):
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
        await self.learning.learn()

    async def groups_of_both(self) -> list[int]:
        """Return the groups of a conversation with a long prompt and of one with a short prompt."""
        self.asked += 1
        return await self.ask(named(LONG, f"long {self.asked}", 1), named(SHORT, f"short {self.asked}", 1))

    async def tells_them_apart(self) -> bool:
        groups = await self.groups_of_both()
        if 0 in groups:
            return False
        stays = np.prod(1.0 - self.model.group_curves().hazards, axis=1)
        long, short = (float(stays[group - 1]) for group in groups)
        return long < 0.5 < short


@contextlib.asynccontextmanager
async def sidecar(models: Path, start: float = START, **changes: object) -> AsyncIterator[Sidecar]:
    made = Sidecar(start)
    values = {"models": models, **TINY, "client_rate": 0, **changes}
    parts = Parts(clock=lambda: made.now, load=InstantModel, returns=made.learn_from, learning=made.learning_of)
    async with (
        running(*tuned(values, parts)) as made.addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{made.addresses.port}") as channel,
    ):
        made.stub = rpc.ContinuationPredictorStub(channel)
        yield made


def named(chars: int, name: str, turn_count: int) -> pb.Conversation:
    """A turn of a named conversation that begins with so many characters."""
    messages = [pb.ChatMessage(role="tool", content="x" * chars), pb.ChatMessage(role="user", content=f"turn {turn_count}")]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), conversation_id=name, turn_count=turn_count)


async def test_returning_and_ending_conversations_get_groups_with_different_curves(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running_:
        await running_.traffic(4)
        assert await running_.tells_them_apart()
        returns = running_.model.quality.returns
        metrics = await scrape(running_.addresses)
    assert returns > 50
    assert f'lpc_returns_learnt{{of="returns"}} {float(returns)}' in metrics
    assert "lpc_return_model_nats NaN" in metrics
    assert "lpc_return_model_head_share 0.5" in metrics


@pytest.mark.parametrize("step", [DAY_S, -DAY_S])
async def test_learning_survives_a_clock_that_steps_by_a_day(
    tiny_models: Path, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with sidecar(tiny_models) as running_:
        await running_.traffic(4)
        for by in (step, -step):
            running_.now += by
            await running_.traffic(1)
            groups = await running_.ask(named(LONG, "a", 1), named(SHORT, "b", 1), named(LONG, "long 1", 5))
            assert all(0 <= group < GROUPS for group in groups)
            assert np.isfinite(running_.model.group_curves().hazards).all()
        before = running_.model.quality.returns
        await running_.traffic(4)
        assert running_.model.quality.returns > before + 50
        assert await running_.tells_them_apart()
        metrics = await scrape(running_.addresses)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 'lpc_requests_total{method="PredictBatch",status="OK"}' in metrics
    assert metrics.count('method="PredictBatch",status=') == 2  # the other one is the time of its creation


async def test_the_return_model_survives_a_restart(tiny_models: Path, tmp_path: Path) -> None:
    state = tmp_path / "a folder" / "returns.npz"
    async with sidecar(tiny_models, state=state.parent) as running_:
        await running_.traffic(4)
        learnt = running_.model.quality.returns
        now = running_.now
    async with sidecar(tiny_models, now + 60.0, state=state.parent) as running_:
        assert running_.model.quality.returns == learnt
        assert await running_.tells_them_apart()
        await running_.traffic(1)
        assert running_.model.quality.returns > learnt
    assert sorted(path.name for path in state.parent.iterdir()) == ["returns.npz"]  # and nothing half-written


async def test_a_full_disk_costs_the_saved_state_alone_and_the_log_names_the_file(
    tiny_models: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = small_disk / "returns.npz"
    async with sidecar(tiny_models, state=small_disk) as running_:
        await running_.traffic(1)
        learnt, now = running_.model.quality.returns, running_.now
    assert learnt
    before = place.read_bytes()
    fill(small_disk)
    async with sidecar(tiny_models, now + 60.0, state=small_disk) as running_:
        assert running_.model.quality.returns == learnt
        await running_.traffic(4)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert errors == [
        f"the return model cannot be saved in {place} (No space left on device): check LPC_STATE; it is tried again"
    ]
    assert place.read_bytes() == before
    assert sorted(path.name for path in place.parent.iterdir()) == ["ballast", "returns.npz"]


async def test_a_second_sidecar_does_not_start_with_the_saved_state_of_another(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OTHER_S", 0.1)
    async with sidecar(tiny_models, state=tmp_path) as first:
        await first.traffic(4)
        learnt, epoch, now = first.model.quality.returns, first.model.group_curves().epoch, first.now
        with pytest.raises(StartError, match=f"another sidecar uses the folder {tmp_path} .LPC_STATE.: give each"):
            async with sidecar(tiny_models, state=tmp_path):
                pass
        async with sidecar(tiny_models, state=tmp_path / "another") as other:
            assert other.model.group_curves().epoch != epoch
    async with sidecar(tiny_models, now + 60.0, state=tmp_path) as later:
        assert (later.model.quality.returns, later.model.group_curves().epoch) == (learnt, epoch)


async def test_a_sidecar_waits_for_the_state_of_one_that_is_about_to_stop(tiny_models: Path, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(sidecar(tiny_models, state=tmp_path))

        async def start() -> None:
            async with sidecar(tiny_models, state=tmp_path):
                pass

        starting = asyncio.create_task(start())
        await asyncio.sleep(0.2)
        await first.aclose()
        await starting


async def test_a_state_without_turns_is_loaded_without_a_warning(
    tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sidecar(tiny_models, state=tmp_path) as first:
        epoch = first.model.group_curves().epoch
    async with sidecar(tiny_models, state=tmp_path) as second:
        assert second.model.group_curves().epoch == epoch
        await second.traffic(4)
        assert await second.tells_them_apart()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def _damaged(state: Path) -> dict[str, bytes]:
    whole = state.read_bytes()
    with np.load(state) as file:
        arrays = dict(file)
    made = {"empty": b"", "text": b"returns", "cut off": whole[: len(whole) // 2], "folder": b""}
    for name, changed in {
        "another format": {"format": np.array(99)},
        "rows that do not fit": {"age": arrays["age"][:-1]},
        "ages that are none": {"age": np.full_like(arrays["age"], np.nan)},
        "another head": {name: np.zeros((2, 2)) for name in arrays if name.startswith("head")},
        "turns without a number": {"facts": np.full_like(arrays["facts"], np.nan)},
        "objects": {"age": np.array([object()] * len(arrays["age"]))},
    }.items():
        file = io.BytesIO()
        np.savez(file, **(arrays | changed))  # type: ignore[arg-type]
        made[name] = file.getvalue()
    file = io.BytesIO()
    np.savez(file, format=arrays["format"])
    made["nothing but its format"] = file.getvalue()
    file = io.BytesIO()
    np.save(file, arrays["age"])
    made["one array"] = file.getvalue()
    return made


async def test_a_state_that_is_damaged_or_foreign_is_one_warning_and_a_fresh_start(
    tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "returns.npz"
    async with sidecar(tiny_models, state=state.parent) as running_:
        await running_.traffic(4)
    for name, content in _damaged(state).items():
        place = tmp_path / name / "returns.npz"
        place.parent.mkdir()
        if name == "folder":
            place.mkdir()
        else:
            place.write_bytes(content)
        caplog.clear()
        async with sidecar(tiny_models, state=place.parent) as running_:
            warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert [record.getMessage().startswith("the saved return model") for record in warnings] == [True], name
            assert await running_.groups_of_both() == [0, 0], name


async def test_a_repeated_turn_is_not_a_return(tiny_models: Path) -> None:
    turn = named(LONG, "a", 1)
    async with sidecar(tiny_models) as running_:
        first = await running_.ask(turn)
        running_.now += 30.0
        assert await running_.ask(turn, turn) == [*first, *first]
        assert running_.model.quality[:2] == (1, 0)
        running_.now += 30.0
        await running_.ask(named(LONG, "a", 2))
        assert running_.model.quality[:2] == (2, 1)


async def test_a_bug_in_the_return_model_does_not_fail_predictions(tiny_models: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(turns: object, facts: object) -> np.ndarray:
        raise FloatingPointError("a secret")

    async with sidecar(tiny_models) as running_:
        running_.model.answer = broken  # type: ignore[method-assign, assignment]
        for _ in range(3):
            assert await running_.ask(named(LONG, "a", 1)) == [0]
    assert caplog.text.count("bug in the return model: please report these lines\nbuiltins.FloatingPointError") == 1
    assert "a secret" not in caplog.text


async def test_an_answer_says_for_how_long_a_request_is_worth_its_room(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running_:

        async def retained(chars: int, evicted_age_s: float) -> float | None:
            running_.asked += 1
            request = pb.PredictRequest(conversation=named(chars, f"{running_.asked}", 1), evicted_age_s=evicted_age_s)
            prediction = (await running_.stub.Predict(request)).prediction
            return prediction.retain_s if prediction.HasField("retain_s") else None

        assert await retained(LONG, 60.0) is None
        for _ in range(6):
            await running_.traffic(1)
        assert await running_.tells_them_apart()
        await running_.learning.learn()  # publishes the curves of groups that have just been made
        assert await retained(LONG, 0.0) is None
        long, short = [[await retained(chars, age) or 0.0 for age in (30.0, 120.0, 600.0)] for chars in (LONG, SHORT)]
        for age in (-1.0, math.inf, math.nan):
            with pytest.raises(grpc.aio.AioRpcError, match="evicted_age_s"):
                await retained(LONG, age)
    # The longer the cache keeps blocks, the less its room is worth.
    assert long == sorted(long) and long[1] > 120.0 and long[2] <= EDGES[-1]
    # At 600 s nearly nothing returns any more, in either class: there only the order is certain.
    assert short[:2] == [0.0, 0.0] and short[2] < long[2]
