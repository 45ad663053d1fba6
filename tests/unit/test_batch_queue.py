"""The batching decision, without gRPC and without a model."""

import asyncio
import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from predictor_service.batching.batch_queue import BatchQueue
from predictor_service.batching.budget import TokenBudget
from predictor_service.batching.job import Job
from predictor_service.errors import Overloaded


def job(tokens: int, *, model: str = "m", deadline: float = math.inf) -> Job:
    # The queue only compares the models of jobs.
    made = Job(model=cast("Model", model), deadline=deadline)
    made.features, made.future = ModelInput([0] * tokens, (1.0,)), asyncio.Future(loop=LOOP)
    return made


LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def _close_loop() -> object:
    yield
    LOOP.close()


def filled(lengths: list[int], *, items: int = 256, tokens: int = 512) -> tuple[BatchQueue, list[Job]]:
    queue = BatchQueue(10_000, items, TokenBudget(tokens))
    jobs = [job(length) for length in lengths]
    for waiting in jobs:
        queue.put(waiting, 0.0)
    return queue, jobs


lengths = st.lists(st.integers(1, 512), min_size=1, max_size=60)


@given(lengths=lengths)
def test_the_oldest_is_always_in_the_next_batch(lengths: list[int]) -> None:
    queue, jobs = filled(lengths)
    assert jobs[0] in queue.next_batch(0.0).jobs


@given(lengths=lengths, items=st.integers(1, 8), tokens=st.integers(512, 4096))
def test_a_batch_with_its_padding_stays_within_the_budget(lengths: list[int], items: int, tokens: int) -> None:
    queue, _ = filled(lengths, items=items, tokens=tokens)
    batch = queue.next_batch(0.0)
    sizes = [len(job.features.input_ids) for job in batch.jobs]
    assert len(sizes) <= items
    assert len(sizes) * max(sizes) == batch.tokens <= tokens
    assert sizes == sorted(sizes)


@given(lengths=lengths)
def test_every_job_is_in_exactly_one_batch(lengths: list[int]) -> None:
    queue, jobs = filled(lengths)
    seen: list[int] = []
    while len(queue):
        seen += [id(job) for job in queue.next_batch(0.0).jobs]
    assert sorted(seen) == sorted(map(id, jobs))


def test_cancelled_and_expired_jobs_are_not_run() -> None:
    queue = BatchQueue(10, 8, TokenBudget(512))
    gone, late, alive = job(5), job(5, deadline=1.0), job(5, deadline=3.0)
    for waiting in (gone, late, alive):
        queue.put(waiting, 0.0)
    gone.future.cancel()
    batch = queue.next_batch(2.0)
    assert (batch.jobs, batch.dropped) == ([alive], {"cancelled": [gone], "expired": [late]})
    assert not len(queue)


def test_permits_are_taken_all_or_none() -> None:
    queue = BatchQueue(3, 8, TokenBudget(512))
    queue.admit(2)
    with pytest.raises(Overloaded, match="2 conversations wait for the model, and at most 3 may"):
        queue.admit(2)
    queue.release()
    queue.admit(2)
    assert queue.depth == 3


def test_a_request_that_would_miss_its_deadline_is_refused_at_once() -> None:
    queue = BatchQueue(1000, 8, TokenBudget(512))
    queue.admit(100, 10.0)
    # 100 at a tenth of a second each are ten seconds of work.
    queue.observe_batch(10, 1.0)
    with pytest.raises(
        Overloaded, match=r"100 conversations wait for the model, 10.0 s of work, which is too much for a deadline"
    ):
        queue.admit(1, 19.0)
    queue.admit(1, 21.0)
    queue.admit(1)
    assert queue.depth == 102
