"""Think times over real gRPC: filled from what the sidecar knows of a turn, absent where the version has none."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import grpc.aio
import numpy as np
import pytest

from eviction_client.predictor_client import PredictorClient
from lpc.model.arrivals import NO_GAPS, Arrival, Gaps
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.server import Addresses, Parts, running
from predictor_service.settings import ServiceSettings
from tests.chat_templates import STYLES, tokenizer_of
from tests.tiny_model import tiny_log_mean, tiny_think_time

MIDNIGHT = 1_700_006_400.0
"""2023-11-15 00:00 UTC: the hour's sine is 0."""


class Clock:
    """Seconds since the epoch, by hand."""

    def __init__(self) -> None:
        self.now = MIDNIGHT

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def sidecar(
    models: Path, clock: Callable[[], float] | None = None, **changes: object
) -> AsyncIterator[tuple[rpc.ContinuationPredictorStub, Addresses]]:
    values = {"models": models, "model": "tiny", "port": 0, "metrics_port": 0, "unix_socket": None, "threads": 1, **changes}
    async with (
        running(ServiceSettings(**values), Parts(clock=clock or Clock())) as addresses,  # type: ignore[arg-type]
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        yield rpc.ContinuationPredictorStub(channel), addresses


def prompt(**fields: object) -> pb.Conversation:
    return pb.Conversation(prompt="hello", **fields)  # type: ignore[arg-type]


async def ask(stub: rpc.ContinuationPredictorStub, conversation: pb.Conversation) -> pb.Prediction:
    return (await stub.Predict(pb.PredictRequest(conversation=conversation))).prediction


async def scrape(addresses: Addresses) -> str:
    def get() -> str:
        with urlopen(f"http://127.0.0.1:{addresses.metrics_port}/metrics", timeout=10) as response:
            return str(response.read(), "utf-8")

    return await asyncio.to_thread(get)


async def test_a_think_time_follows_turn_and_class(timed_models: Path) -> None:
    async with sidecar(timed_models) as (stub, _):
        for turn, category in [(1, ""), (3, ""), (3, "agent"), (3, "unheard of"), (3, "agent\0")]:
            found = (await ask(stub, prompt(turn_count=turn, category=category))).think_time
            assert found.log_mean == pytest.approx(tiny_log_mean(category, log_turn=math.log(turn)))
            assert found.log_sigma == pytest.approx(math.exp(-0.5))


async def test_a_think_time_follows_the_gaps_of_its_conversation(timed_models: Path) -> None:
    clock = Clock()
    async with sidecar(timed_models, clock) as (stub, addresses):
        found = []
        for step in (0, 20, 45):
            clock.now += step
            found.append((await ask(stub, prompt(conversation_id="a"))).think_time.log_mean)
            assert (await ask(stub, prompt(conversation_id=f"other {step}"))).think_time.log_mean == pytest.approx(4, abs=1e-3)
        mean = (math.log(20) + math.log(45)) / 2
        expected = [
            tiny_log_mean(),
            tiny_log_mean(log_last_gap=math.log(20), mean_log_gap=math.log(20)),
            tiny_log_mean(log_last_gap=math.log(45), mean_log_gap=mean),
        ]
        assert found == pytest.approx(expected, abs=1e-3)  # the sine of a minute past midnight is not quite 0
        assert "lpc_gap_memory_conversations 4.0" in await scrape(addresses)


async def test_the_gap_memory_is_as_large_as_set(timed_models: Path) -> None:
    clock = Clock()
    async with sidecar(timed_models, clock, gap_memory_conversations=1) as (stub, addresses):
        for name in ("a", "b"):
            await ask(stub, prompt(conversation_id=name))
        clock.now += 20
        assert (await ask(stub, prompt(conversation_id="a"))).think_time.log_mean == pytest.approx(4, abs=1e-3)
        assert "lpc_gap_memory_conversations 1.0" in await scrape(addresses)


async def test_a_think_time_follows_the_hour(timed_models: Path) -> None:
    clock = Clock()
    async with sidecar(timed_models, clock) as (stub, _):
        clock.now += 6 * 3600
        assert (await ask(stub, prompt())).think_time.log_mean == pytest.approx(tiny_log_mean(sin_hour=1.0))


async def test_a_refused_request_is_no_turn(timed_models: Path) -> None:
    clock = Clock()
    async with sidecar(timed_models, clock) as (stub, addresses):
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(stub, pb.Conversation(prompt=" ", conversation_id="a"))
        assert "lpc_gap_memory_conversations 0.0" in await scrape(addresses)


async def test_a_batch_keeps_its_think_times_in_order(timed_models: Path) -> None:
    turns = [5, 1, 40, 2]
    async with sidecar(timed_models) as (stub, _):
        conversations = [pb.Conversation(prompt="hello " * 9 * turn, turn_count=turn) for turn in turns]
        results = (await stub.PredictBatch(pb.PredictBatchRequest(conversations=conversations))).results
    found = [result.prediction.think_time.log_mean for result in results]
    assert found == pytest.approx([tiny_log_mean(log_turn=math.log(turn)) for turn in turns])


async def test_an_engine_is_told_think_times_by_the_length_of_its_prompt(timed_models: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(tmp_path / "served")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True)
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    async with sidecar(timed_models, served_models={"m": str(tmp_path / "served")}) as (_, addresses):
        client = PredictorClient(f"127.0.0.1:{addresses.port}", served_model="m", timeout_s=60)
        try:
            client.ask(1, token_ids=ids, category="agent")
            while (answer := client.take(1)) is None:
                assert client.counters.failed == client.counters.late == 0
                await asyncio.sleep(0.01)
        finally:
            client.close()
    assert answer.think_log_mean == pytest.approx(tiny_log_mean("agent", log_input=math.log(len(ids) + 1)))
    assert answer.think_log_sigma == pytest.approx(math.exp(-0.5))


async def test_a_version_without_think_times_sends_none_and_remembers_nobody(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, addresses):
        answer = await ask(stub, prompt(conversation_id="a", category="agent"))
        assert 0 < answer.probability < 1
        assert not answer.HasField("think_time")
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.serves_think_times, list(info.think_time_categories)) == (False, [])
        text = await scrape(addresses)
    assert "lpc_think_times_served 0.0" in text
    assert "lpc_gap_memory_conversations 0.0" in text


async def test_model_info_and_metrics_say_that_think_times_are_served(timed_models: Path) -> None:
    async with sidecar(timed_models) as (stub, addresses):
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        text = await scrape(addresses)
    assert (info.serves_think_times, list(info.think_time_categories)) == (True, ["agent"])
    assert "lpc_think_times_served 1.0" in text


# The model's own part, without gRPC


@pytest.fixture(scope="module")
def model(timed_models: Path) -> Model:
    return Model(timed_models / "tiny" / "v1", InferenceSettings("cpu", 1))


def arrival(turn: int = 1, tokens: float = math.nan, category: str = "", gaps: Gaps = NO_GAPS) -> Arrival:
    return Arrival(turn, tokens, category, MIDNIGHT, gaps)


def test_what_is_not_known_of_one_turn_changes_no_other(model: Model) -> None:
    batch = [arrival(), arrival(2, 100.0), arrival(3, category="agent"), arrival(4, gaps=Gaps(30.0, 2.0)), arrival(9, 0.0)]
    alone = [model.think_times([one])[0] for one in batch]
    assert model.think_times(batch) == alone
    assert all(found is not None and math.isfinite(found.log_mean) for found in alone)
    assert len({found.log_mean for found in alone if found is not None}) == len(batch)


def test_no_turns_have_no_think_times(model: Model) -> None:
    assert model.think_times([]) == []


@pytest.mark.parametrize("broken", [1e308, -1e308])
def test_a_think_time_that_is_not_finite_is_left_out_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, broken: float
) -> None:
    times = tiny_think_time()
    linear = np.where(times.parameters.linear != 0, broken, 0)
    monkeypatch.setattr(model, "think_time", replace(times, parameters=replace(times.parameters, linear=linear)))
    first, later = model.think_times([arrival(1), arrival(100_000)])
    assert first is not None and first.log_mean == 4
    assert later is None


def test_a_long_class_does_not_make_a_batch_large(model: Model) -> None:
    names = ["agent", "x" * 2**20, *[""] * 254]  # as NumPy text: 256 x 4 MiB
    import tracemalloc

    tracemalloc.start()
    found = model.think_times([arrival(category=name) for name in names])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] is not None and found[1] is not None and found[0].log_mean == found[1].log_mean + 1
    assert peak < 2**22
