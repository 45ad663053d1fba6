"""What the models' thread returns for each conversation of a batch. The model and the return model are doubles."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.probability import logit
from lpc.model.recalibration import Recalibration
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrival, WatchedTurn
from predictor_service.batching.inference import Inference
from predictor_service.batching.job import Job
from predictor_service.returns.learning import ReturnLearning

VERSION = "v1"


class Runs:
    """A model whose probability is the first token id in percent, and whose embedding is that id; ``lengths``: of its runs."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.manifest = SimpleNamespace(version=VERSION)

    def run(self, batch: Sequence[ModelInput]) -> list[float]:
        self.lengths.append(len(batch))
        return [one.input_ids[0] / 100 for one in batch]

    def run_with_embeddings(self, batch: Sequence[ModelInput]) -> tuple[list[float], list[bytes]]:
        return self.run(batch), [bytes([one.input_ids[0]]) for one in batch]


class Groups:
    """A return model whose group of a turn is its number."""

    def __init__(self) -> None:
        self.turns: list[WatchedTurn] = []
        self.facts: list[Facts] = []
        self.recalibration = Recalibration()

    def answer(self, turns: Sequence[WatchedTurn], facts: Sequence[Facts]) -> list[int]:
        self.turns += turns
        self.facts += facts
        return [int(one.turn_count) for one in facts]


def turn(number: int) -> WatchedTurn:
    return WatchedTurn(arrival=Arrival(b"c", 1.0, Facts(number)))


def job(model: Runs, token: int, turn: WatchedTurn | None = None, *, embeds: bool = False) -> Job:
    made = Job(model=cast("Model", model), deadline=math.inf)
    made.features, made.turn, made.embeds = ModelInput([token], (1.0,)), turn, embeds
    return made


Found = tuple[float, bytes | None, float, int]


async def run(groups: Groups, *jobs: Job, remembered: int = 0) -> list[Found]:
    """Return probability, embedding, own log-odds and group of each job."""

    async def outputs() -> list[Found]:
        await inference.run(jobs)
        return [(job.probability, job.embedding, job.model_log_odds, job.reuse_group) for job in jobs]

    inference = Inference(returns=cast("ReturnLearning", groups), remembered=remembered)
    try:
        found, again = await outputs(), await outputs()
    finally:
        inference.close()
    assert again == found
    return found


@pytest.mark.parametrize("remembered", [0, 100])
async def test_each_conversation_gets_what_it_needs(remembered: int) -> None:
    model, groups = Runs(), Groups()
    jobs = [
        job(model, 10, turn(4)),
        job(model, 20, embeds=True),
        job(model, 30, turn(5), embeds=True),
        job(model, 20, turn(6)),
    ]
    expected = [(0.1, None, 4), (0.2, b"\x14", 0), (0.3, b"\x1e", 5), (0.2, None, 6)]
    assert await run(groups, *jobs, remembered=remembered) == [
        (pytest.approx(p), embedding, logit(p), group) for p, embedding, group in expected
    ]
    assert model.lengths == ([3] if remembered else [4, 4])


async def test_the_return_model_gets_the_log_odds_and_the_turn_stays_as_it_arrived() -> None:
    model, groups, one = Runs(), Groups(), turn(3)
    arrival = one.arrival
    await run(groups, job(model, 40), job(model, 90, one))
    assert groups.turns == [one, one]
    assert groups.facts[0].model_log_odds == logit(0.9)
    assert one.arrival is arrival and math.isnan(arrival.facts.model_log_odds)


async def test_labels_correct_the_probability_but_not_what_the_return_model_gets() -> None:
    model, groups, one = Runs(), Groups(), turn(3)
    groups.recalibration.of(VERSION)
    for number in range(400):
        groups.recalibration.learn(VERSION, logit(0.9), continues=number % 5 == 0)
    groups.recalibration.refit()
    ((probability, _, model_log_odds, _),) = await run(groups, job(model, 90, one))
    assert probability == pytest.approx(0.2, abs=0.03)
    assert model_log_odds == groups.facts[0].model_log_odds == logit(0.9)
