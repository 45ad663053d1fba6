"""The groups' curves as a sidecar sends them: when they have changed, and only the newest to a caller that takes its time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from lpc.model.returns.groups import GroupCurves
from lpc.model.returns.hazards import INTERVALS
from lpc.v1 import predictor_pb2 as pb
from predictor_service.metrics import Metrics
from predictor_service.returns.curves import LEAST, SHARE, PublishedCurves
from predictor_service.rpc.stream import PredictionStream, StreamLimits


class Learning:
    """Groups that are set by hand."""

    def __init__(self) -> None:
        self.groups = GroupCurves("e", np.zeros((0, INTERVALS)))

    def __call__(self) -> GroupCurves:
        return self.groups

    def have(self, *hazards: float, epoch: str = "e") -> None:
        self.groups = GroupCurves(epoch, np.repeat(np.array(hazards)[:, None], INTERVALS, axis=1))


class NoTokenizers:
    """A sidecar's tokenizers to a stream that offers none."""

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        del watcher
        return lambda: None


async def nothing() -> AsyncIterator[pb.PredictStreamRequest]:
    await asyncio.Event().wait()
    yield pb.PredictStreamRequest()


def stream_of(curves: PublishedCurves | None) -> Any:
    """Return the answers of a stream on which nothing is asked, and what ends it."""
    draining = asyncio.Event()
    caller: Any = SimpleNamespace(name="anonymous")
    models: Any = NoTokenizers()
    stream = PredictionStream(caller, NotImplemented, models, curves, StreamLimits(8), Metrics())
    return stream.answers(nothing(), draining), draining


async def rest_of(answers: AsyncIterator[pb.PredictStreamResponse], draining: asyncio.Event) -> list[pb.ReuseCurves]:
    draining.set()
    return [response.reuse_curves async for response in answers]


async def test_a_change_is_published_when_it_is_more_than_trembling() -> None:
    learning, told = Learning(), []
    curves = PublishedCurves(learning)
    end = curves.watch(lambda: told.append(curves.message))
    assert curves.message == pb.ReuseCurves(epoch="e")
    for hazards, changed in [
        ((0.1,), True),
        ((0.1,), False),
        ((0.1 * (1 + SHARE / 2),), False),
        ((0.1 + LEAST / 2,), False),
        ((0.2,), True),
        ((0.2, 0.3), True),
    ]:
        learning.have(*hazards)
        before = len(told)
        await curves.renew()
        assert len(told) - before == changed, hazards
    assert [(curve.group, len(curve.hazards)) for curve in curves.message.curves] == [(1, INTERVALS), (2, INTERVALS)]
    learning.have(0.2, 0.3, epoch="f")
    await curves.renew()
    assert told[-1].epoch == "f"
    end()
    learning.have(0.9)
    await curves.renew()
    assert told[-1].epoch == "f" and curves.message.epoch == "e"


async def test_small_changes_add_up() -> None:
    learning = Learning()
    learning.have(0.1)
    curves = PublishedCurves(learning)
    first = curves.message
    for step in range(20):
        learning.have(0.1 + 0.001 * step)
        await curves.renew()
    assert curves.message != first


async def test_a_stream_begins_with_the_curves_if_there_are_any() -> None:
    learning = Learning()
    assert await rest_of(*stream_of(PublishedCurves(learning))) == []
    learning.have(0.5)
    curves = PublishedCurves(learning)
    answers, draining = stream_of(curves)
    assert (await anext(answers)).reuse_curves == curves.message
    assert await rest_of(answers, draining) == []
    assert await rest_of(*stream_of(None)) == []


async def test_a_caller_that_takes_nothing_has_only_the_newest_curves_waiting() -> None:
    learning = Learning()
    learning.have(0.1)
    curves = PublishedCurves(learning)
    answers, draining = stream_of(curves)
    await anext(answers)
    for step in range(2, 9):
        learning.have(0.1 * step)
        await curves.renew()
    assert await rest_of(answers, draining) == [curves.message]
    assert curves.message.curves[0].hazards[0] == np.float32(0.8)


async def test_a_stream_that_is_over_is_not_told() -> None:
    learning = Learning()
    curves = PublishedCurves(learning)
    answers, draining = stream_of(curves)
    learning.have(0.1)
    pending = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    await curves.renew()
    assert (await pending).reuse_curves == curves.message
    assert await rest_of(answers, draining) == []
    assert not curves._watchers
