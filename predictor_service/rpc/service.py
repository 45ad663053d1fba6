"""The methods of `lpc.v1.ContinuationPredictor`: thin, between the wire and the batcher."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from lpc.errors import InvalidRequest
from lpc.model.arrivals import Arrival, GapMemory
from lpc.model.conversation import UserTurns
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.batching.batcher import Answer, Batcher
from predictor_service.errors import Overloaded
from predictor_service.labels.memory import WINDOW, Asked, Labels, Prediction
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import CALLER
from predictor_service.rpc.requests import RequestParser
from predictor_service.rpc.statuses import refusal
from predictor_service.rpc.tracing import Tracing

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PredictorService(rpc.ContinuationPredictorServicer):
    """Answers from the batcher's current model. ``clock``: seconds since the Unix epoch."""

    def __init__(
        self,
        batcher: Batcher,
        parser: RequestParser,
        limits: pb.Limits,
        metrics: Metrics,
        gaps: GapMemory,
        labels: Labels,
        clock: Callable[[], float],
        tracing: Tracing,
    ) -> None:
        self._batcher = batcher
        self._parser = parser
        self._limits = limits
        self._metrics = metrics
        self._gaps = gaps
        self._labels = labels
        self._clock = clock
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End open streams once what is in flight on them is answered: an engine would hold its stream open for ever."""
        self._draining.set()

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:  # noqa: N802
        """Answer one conversation within the call's deadline."""
        CALLER.get().admit(1)
        answer = await self._predict(request.conversation, self._deadline(context))
        return pb.PredictResponse(prediction=_message(answer))

    async def PredictBatch(self, request: pb.PredictBatchRequest, context: Context) -> pb.PredictBatchResponse:  # noqa: N802
        """Answer each conversation, with a prediction or an error of its own.

        The call as a whole is refused when it is empty, larger than a model batch, or does not fit into the queue.
        """
        count = len(request.conversations)
        if not 1 <= count <= self._limits.max_batch_items:
            raise InvalidRequest(f"a batch has 1 to {self._limits.max_batch_items} conversations, this one {count}: split it")
        CALLER.get().admit(count)
        deadline = self._deadline(context)
        self._batcher.queue.admit(count, deadline - self._loop.time())
        tasks = [
            self._loop.create_task(self._predict(conversation, deadline, admitted=True))
            for conversation in request.conversations
        ]
        for task in tasks:
            task.add_done_callback(lambda _: self._batcher.queue.release())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return pb.PredictBatchResponse(results=[_result(result) for result in results])

    async def PredictStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PredictStreamRequest], context: Context
    ) -> AsyncIterator[pb.PredictStreamResponse]:
        """Answer requests as their predictions come, in any order; a bad request gets an error, the stream goes on.

        A caller that does not take its answers is not read from any more, so that they do not pile up here.
        """
        del context
        answers: asyncio.Queue[pb.PredictStreamResponse | None] = asyncio.Queue()
        taken = asyncio.Event()
        in_flight: dict[str, asyncio.Task[None]] = {}

        async def answer(request: pb.PredictStreamRequest) -> None:
            deadline = self._loop.time() + request.timeout_ms / 1000 if request.timeout_ms else math.inf
            try:
                prediction = await self._predict(request.conversation, deadline)
                response = pb.PredictStreamResponse(request_id=request.request_id, prediction=_message(prediction))
                self._metrics.stream_answers.labels("OK").inc()
            except Exception as error:
                response = pb.PredictStreamResponse(request_id=request.request_id, error=self._stream_error(error))
            answers.put_nowait(response)

        async def read() -> None:
            async for request in request_iterator:
                while answers.qsize() >= self._limits.max_stream_in_flight:
                    taken.clear()
                    await taken.wait()
                name = request.request_id
                if request.WhichOneof("action") == "cancel":
                    if name in in_flight:
                        in_flight[name].cancel()
                    continue
                try:
                    if name in in_flight:
                        raise InvalidRequest("this request_id is still in flight on this stream: choose another")
                    if len(in_flight) >= self._limits.max_stream_in_flight:
                        raise Overloaded(f"{len(in_flight)} requests are in flight on this stream: wait for answers")
                    CALLER.get().admit(1)
                except (InvalidRequest, Overloaded) as error:
                    answers.put_nowait(pb.PredictStreamResponse(request_id=name, error=self._stream_error(error)))
                    continue
                task = in_flight[name] = self._loop.create_task(answer(request))
                task.add_done_callback(lambda _, name=name: in_flight.pop(name))  # type: ignore[misc]

        async def read_until_drain() -> None:
            reading = self._loop.create_task(read())
            draining = self._loop.create_task(self._draining.wait())
            try:
                await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*in_flight.values(), return_exceptions=True)
                if reading.done():
                    reading.result()
            finally:
                reading.cancel()
                draining.cancel()

        reader = self._loop.create_task(read_until_drain())
        reader.add_done_callback(lambda _: answers.put_nowait(None))
        try:
            while (response := await answers.get()) is not None:
                taken.set()
                yield response
            await reader
        finally:
            reader.cancel()
            for task in list(in_flight.values()):
                task.cancel()

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:  # noqa: N802
        """Name the model in service and every limit."""
        del request, context
        model = self._batcher.model
        manifest, think_time = model.manifest, model.think_time
        return pb.GetModelInfoResponse(
            model_name=manifest.name,
            model_version=manifest.version,
            model_sha256=manifest.files["model.onnx"],
            precision=manifest.precision,
            execution_provider=model.provider,
            prompt_window=manifest.features.prompt_window,
            token_budget=manifest.features.token_budget,
            scalars=manifest.features.scalars,
            served_models=self._parser.served_models.names,
            limits=self._limits,
            serves_think_times=think_time is not None,
            think_time_categories=think_time.categories if think_time is not None else (),
        )

    async def _predict(self, conversation: pb.Conversation, deadline: float, *, admitted: bool = False) -> Answer:
        with self._tracing.prediction(conversation.WhichOneof("input")) as answered:
            self._parser.check(conversation)
            at = self._clock()
            asked = Asked(self._labels, conversation.conversation_id, at)
            parse = partial(self._parse, conversation, self._batcher.model.manifest.features.prompt_window, asked)
            arrive = partial(self._arrive, conversation, at)
            answer = await self._batcher.predict(parse, arrive, deadline, admitted=admitted)
            answered(answer)
        asked.answered(Prediction(answer.probability, answer.embedding, answer.tokens, answer.manifest))
        return answer

    def _parse(self, conversation: pb.Conversation, window: int, asked: Asked) -> UserTurns:
        """Read a conversation and note its turn. In a tokeniser thread."""
        turns = self._parser.parse(conversation, max(window, WINDOW))
        asked.arrived(turns)
        return turns

    def _arrive(self, conversation: pb.Conversation, at: float, turns: UserTurns) -> Arrival:
        """Note the arrival of a turn. In a tokeniser thread."""
        by_tokens = conversation.WhichOneof("input") == "tokens"
        return Arrival(
            turns.turn_count,
            len(conversation.tokens.ids) if by_tokens else math.nan,
            conversation.category,
            at,
            self._gaps.arrive(conversation.conversation_id, at),
        )

    def _deadline(self, context: Context) -> float:
        remaining = context.time_remaining()
        return math.inf if remaining is None else self._loop.time() + remaining

    def _stream_error(self, error: BaseException) -> pb.PredictionError:
        status, message = refusal(error, "PredictStream")
        self._metrics.stream_answers.labels(status.name).inc()
        return pb.PredictionError(code=status.value[0], message=message)


def _result(result: Answer | BaseException) -> pb.PredictionResult:
    if isinstance(result, Answer):
        return pb.PredictionResult(prediction=_message(result))
    status, message = refusal(result, "PredictBatch")
    return pb.PredictionResult(error=pb.PredictionError(code=status.value[0], message=message))


def _message(answer: Answer) -> pb.Prediction:
    expected = answer.think_time
    return pb.Prediction(
        probability=answer.probability,
        model_version=answer.model_version,
        think_time=pb.ThinkTime(log_mean=expected.log_mean, log_sigma=expected.log_sigma) if expected is not None else None,
        turn_count=answer.turn_count,
        timing=pb.Timing(queue_us=answer.queue_us, tokenize_us=answer.tokenize_us, infer_us=answer.infer_us),
    )
