"""One PredictStream: requests are read as long as their answers are taken, and answered in any order."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lpc.errors import InvalidRequest
from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import Overloaded
from predictor_service.metrics import Metrics
from predictor_service.requests.served_models import ServedModels
from predictor_service.returns.curves import PublishedCurves
from predictor_service.rpc.answers import Answer, message_of
from predictor_service.rpc.callers import Caller
from predictor_service.rpc.large import SIZE
from predictor_service.rpc.offers import StreamOffer
from predictor_service.rpc.statuses import refusal

_CURVES: Final = pb.PredictStreamResponse()
"""Stands among the answers for the groups' curves as they will be when it is taken."""


class Predict(Protocol):
    """Answers a conversation until a deadline, on the event loop's clock."""

    def __call__(self, conversation: pb.Conversation, deadline: float, *, answers_unread: bool) -> Awaitable[Answer]:
        """``answers_unread``: token ids that cannot be read are answered all the same."""


@dataclass(frozen=True)
class StreamLimits:
    """What a stream may have and last.

    Attributes:
        in_flight: requests at a time.
        age_s: seconds after which no more requests are read, give or take a tenth; 0: any.
        grace_s: seconds that what is in flight gets then.
    """

    in_flight: int
    age_s: float = 0.0
    grace_s: float = 0.0

    def lasts_s(self) -> float | None:
        """Return how long a stream is read; None: for ever. Drawn, so that streams begun together do not end together."""
        return self.age_s * random.uniform(0.9, 1.1) or None


class PredictionStream:
    """Answers the requests of one stream. A bad request gets an error, and the stream goes on.

    The groups' curves are sent at its start, if there are any, and when they change.

    A caller that does not take its answers is not read from any more, so that they do not pile up here. At a certain age the
    stream ends as it does when the sidecar drains: what was read is answered, then it is over, without an error. What the
    caller has sent meanwhile was not read, and may be asked anew, of any sidecar.
    """

    def __init__(
        self,
        caller: Caller,
        predict: Predict,
        models: ServedModels,
        curves: PublishedCurves | None,
        limits: StreamLimits,
        metrics: Metrics,
    ) -> None:
        self._caller = caller
        self._predict = predict
        self._curves = curves
        self._curves_due = False
        self._limits = limits
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[pb.PredictStreamResponse | None] = asyncio.Queue()
        """None: the last one was taken."""
        self._taken = asyncio.Event()
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._offer = StreamOffer(models, caller.name, self._say, metrics)

    async def answers(
        self, requests: AsyncIterator[pb.PredictStreamRequest], draining: asyncio.Event
    ) -> AsyncGenerator[pb.PredictStreamResponse, None]:
        """Yield the answers as they come, until the caller has sent all its requests or the sidecar drains."""
        reader = self._loop.create_task(self._read_until(draining, requests))
        reader.add_done_callback(lambda _: self._answers.put_nowait(None))
        end_watch = self._watch_curves()
        try:
            while (response := await self._answers.get()) is not None:
                self._taken.set()
                yield self._newest_curves() if response is _CURVES else response
            await reader
        finally:
            end_watch()
            reader.cancel()
            self._offer.close()
            for task in list(self._in_flight.values()):
                task.cancel()

    async def _read_until(self, draining: asyncio.Event, requests: AsyncIterator[pb.PredictStreamRequest]) -> None:
        """Read until the last request, the stream's age, or until the sidecar drains; then wait for what is in flight."""
        reading = self._loop.create_task(self._read(requests))
        drained = self._loop.create_task(draining.wait())
        try:
            ended, _ = await asyncio.wait(
                (reading, drained), timeout=self._limits.lasts_s(), return_when=asyncio.FIRST_COMPLETED
            )
            reading.cancel()
            if self._in_flight:
                # Draining has a time-out of its own.
                await asyncio.wait(list(self._in_flight.values()), timeout=None if ended else self._limits.grace_s)
            if reading in ended:
                reading.result()
        finally:
            reading.cancel()
            drained.cancel()

    async def _read(self, requests: AsyncIterator[pb.PredictStreamRequest]) -> None:
        async for request in requests:
            while self._answers.qsize() >= self._limits.in_flight:
                self._taken.clear()
                await self._taken.wait()
            name = request.request_id
            action = request.WhichOneof("action")
            if action == "cancel":
                if name in self._in_flight:
                    self._in_flight[name].cancel()
                continue
            if action == "chunk":
                await self._offer.chunk(request.chunk.data)
                continue
            try:
                if action == "offer":
                    await self._offer.take(name, request.offer)
                    continue
                self._admit(name)
            except (InvalidRequest, Overloaded) as error:
                self._refuse(name, error)
                continue
            task = self._in_flight[name] = self._loop.create_task(self._answer(request))
            task.add_done_callback(lambda _, name=name: self._in_flight.pop(name))  # type: ignore[misc]

    def _admit(self, name: str) -> None:
        if name in self._in_flight:
            raise InvalidRequest("this request_id is still in flight on this stream: choose another")
        if len(self._in_flight) >= self._limits.in_flight:
            raise Overloaded(f"{len(self._in_flight)} requests are in flight on this stream: wait for answers")
        self._caller.admit(1)

    async def _answer(self, request: pb.PredictStreamRequest) -> None:
        deadline = self._loop.time() + request.timeout_ms / 1000 if request.timeout_ms else math.inf
        try:
            with self._caller.carry(SIZE.get()):
                answer = await self._predict(request.conversation, deadline, answers_unread=self._offer.made)
        except Exception as error:
            self._refuse(request.request_id, error)
            return
        if answer.unread:
            self._offer.unread()
        self._metrics.stream_answers.labels("OK").inc()
        self._answers.put_nowait(pb.PredictStreamResponse(request_id=request.request_id, prediction=message_of(answer)))

    def _watch_curves(self) -> Callable[[], None]:
        if self._curves is None:
            return lambda: None
        if self._curves.message.curves:
            self._curves_changed()
        return self._curves.watch(self._curves_changed)

    def _curves_changed(self) -> None:
        # One at a time waits on a stream whose caller takes nothing.
        if not self._curves_due:
            self._curves_due = True
            self._answers.put_nowait(_CURVES)

    def _newest_curves(self) -> pb.PredictStreamResponse:
        self._curves_due = False
        return pb.PredictStreamResponse(reuse_curves=None if self._curves is None else self._curves.message)

    def _say(self, name: str, status: pb.TokenizerStatus) -> None:
        self._answers.put_nowait(pb.PredictStreamResponse(request_id=name, tokenizer=status))

    def _refuse(self, name: str, error: Exception) -> None:
        status, message = refusal(error, "PredictStream")
        self._metrics.stream_answers.labels(status.name).inc()
        code = pb.PredictionError(code=status.value[0], message=message)
        self._answers.put_nowait(pb.PredictStreamResponse(request_id=name, error=code))
