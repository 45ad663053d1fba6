"""The methods of `lpc.v1.ContinuationPredictor`. All conversations go through `_predict`."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from lpc.errors import InvalidRequest
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.batching.batcher import Batcher
from predictor_service.batching.job import Job
from predictor_service.batching.prepare import Preparation
from predictor_service.errors import TokenizerLoading, UnreadPrompt
from predictor_service.labels.tracker import TurnTracker
from predictor_service.labels.turn import Forecast
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestParser
from predictor_service.returns.learning import ReturnLearning
from predictor_service.rpc.callers import CALLER
from predictor_service.rpc.offers import TokenizerOffers
from predictor_service.rpc.offers import message_of as known_tokenizer
from predictor_service.rpc.statuses import refusal
from predictor_service.serving import Serving

log = logging.getLogger(__name__)

MAX_LOGGED: Final = 100
"""Largest number of pairs of served model and reason that are logged, of prompts that cannot be read."""
MAX_KNOWN_CURVES: Final = 64
"""Largest number of versions in PredictRequest.known_curves, which are searched one by one."""
MAX_NAMED: Final = 100
"""Largest number of tokenizers in an answer of GetModelInfo."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PredictorService(rpc.ContinuationPredictorServicer):
    """Answers calls with the served model."""

    def __init__(
        self,
        serving: Serving,
        parser: RequestParser,
        preparation: Preparation,
        batcher: Batcher,
        tracker: TurnTracker,
        returns: ReturnLearning,
        limits: pb.Limits,
        metrics: Metrics,
    ) -> None:
        self._serving = serving
        self._parser = parser
        self._preparation = preparation
        self._batcher = batcher
        self._tracker = tracker
        self._returns = returns
        self._limits = limits
        self._metrics = metrics
        self._unread_logged: set[tuple[str, str]] = set()
        self._offers = TokenizerOffers(parser.served_models, metrics, accepted=limits.max_tokenizer_bytes > 0)
        self._loop = asyncio.get_running_loop()

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:  # noqa: N802
        """Answer one conversation within the call's deadline."""
        if not 0.0 <= request.evicted_age_s < math.inf:
            raise InvalidRequest("evicted_age_s must be 0 or more: send the mean age, in seconds, of what your cache evicts")
        if len(request.known_curves) > MAX_KNOWN_CURVES:
            count = len(request.known_curves)
            raise InvalidRequest(f"known_curves has {count} versions, at most {MAX_KNOWN_CURVES} are accepted: send the latest")
        CALLER.get().admit(1)
        prediction = await self._predict(request.conversation, self._deadline(context), answers_unread=request.accept_unread)
        if request.evicted_age_s:
            retain_s = self._returns.curves.retain_s(prediction.reuse_group, request.evicted_age_s)
            if retain_s is not None:
                prediction.retain_s = retain_s
        response = pb.PredictResponse(prediction=prediction)
        self._returns.curves.add_to(response, request.known_curves)
        return response

    async def PredictBatch(self, request: pb.PredictBatchRequest, context: Context) -> pb.PredictBatchResponse:  # noqa: N802
        """Answer each conversation, with a prediction or an error of its own.

        The whole call fails if it is empty, larger than a model batch, or does not fit into the queue.
        """
        count = len(request.conversations)
        if not 1 <= count <= self._limits.max_batch_items:
            raise InvalidRequest(f"a batch has 1 to {self._limits.max_batch_items} conversations, this one {count}: split it")
        CALLER.get().admit(count)
        deadline = self._deadline(context)
        queue = self._batcher.queue
        queue.admit(count, deadline - self._loop.time())
        tasks = [
            self._loop.create_task(self._predict(conversation, deadline, admitted=True))
            for conversation in request.conversations
        ]
        for task in tasks:
            # Not inside the task: if it is cancelled before it begins, it would keep its permit.
            task.add_done_callback(lambda _: queue.release())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return pb.PredictBatchResponse(results=[_result(result) for result in results])

    async def OfferTokenizer(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.OfferTokenizerRequest], context: Context
    ) -> pb.OfferTokenizerResponse:
        """Receive an engine's tokenizer if it is not known, and return its state."""
        del context
        return pb.OfferTokenizerResponse(status=await self._offers.answer(request_iterator, CALLER.get()))

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:  # noqa: N802
        """Return the served model and all limits."""
        del request, context
        caller = CALLER.get()
        caller.ask()
        model = self._serving.model
        manifest = model.manifest
        limits = pb.Limits(max_batch_tokens=self._batcher.queue.budget.tokens)
        limits.MergeFrom(self._limits)
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
            limits=limits,
            reuse_curves=self._returns.curves.message,
            tokenizers=map(known_tokenizer, self._parser.served_models.known(caller.who)[:MAX_NAMED]),
        )

    async def _predict(
        self, conversation: pb.Conversation, deadline: float, *, admitted: bool = False, answers_unread: bool = False
    ) -> pb.Prediction:
        """Answer a conversation: check, take a permit, prepare, queue, run.

        Args:
            conversation: the request's conversation.
            deadline: seconds on the event loop's clock; infinite: no deadline.
            admitted: whether the caller holds the conversation's permit.
            answers_unread: whether to return a group if the token ids cannot be read.

        Raises:
            InvalidRequest, UnreadPrompt: the conversation cannot be read.
            Overloaded: the queue is full, or too long for the deadline. Expired: the deadline passed first.
            Unavailable: the service is shutting down or has failed.
        """
        self._parser.check(conversation)
        patience = deadline - self._loop.time()
        # The permit comes before any work, because conversations that are being tokenised also wait for the model.
        with contextlib.nullcontext() if admitted else self._batcher.queue.permit(patience):
            model = self._serving.model
            job = Job(model=model, deadline=deadline, conversation=conversation, client=CALLER.get().name)
            try:
                turn = await self._preparation.prepare(job)
            except UnreadPrompt as error:
                self._note_unread(conversation.tokens.served_model[:100], error)
                if not answers_unread:
                    raise
                return await self._answer_unread(job)
            await self._batcher.predict(job)
        if job.has_text:
            forecast = Forecast(job.probability, job.embedding, job.tokens, model.manifest, job.model_log_odds)
            self._tracker.answered(turn, forecast)
        return pb.Prediction(
            probability=job.probability,
            model_version=model.manifest.version,
            reuse_group=job.reuse_group,
            turn_count=turn.sent.turn_count,
            timing=pb.Timing(queue_us=job.queue_us, tokenize_us=job.tokenize_us, infer_us=job.infer_us),
        )

    async def _answer_unread(self, job: Job) -> pb.Prediction:
        """Predict the group without text: from length, times of turns and the conversation's start."""
        turn = await self._preparation.note_unread(job)
        (reuse_group,) = await asyncio.to_thread(self._returns.answer, [turn], [turn.arrival.facts])
        version = self._serving.model.manifest.version
        return pb.Prediction(
            model_version=version, reuse_group=reuse_group, turn_count=turn.sent.turn_count, unread=True, timing=pb.Timing()
        )

    def _note_unread(self, name: str, error: UnreadPrompt) -> None:
        """Count a prompt whose token ids cannot be read, and log each pair of served model and reason once."""
        self._metrics.unread_prompts.labels(error.reason).inc()
        logged = self._unread_logged
        if isinstance(error, TokenizerLoading) or (name, error.reason) in logged or len(logged) >= MAX_LOGGED:
            return
        logged.add((name, error.reason))
        whose = f"of served model {name}" if name else "without a served model"
        log.warning("cannot read prompts %s: %s (counted in lpc_unread_prompts_total)", whose, error)

    def _deadline(self, context: Context) -> float:
        remaining = context.time_remaining()
        return math.inf if remaining is None else self._loop.time() + remaining


def _result(result: pb.Prediction | BaseException) -> pb.PredictionResult:
    if isinstance(result, pb.Prediction):
        return pb.PredictionResult(prediction=result)
    status, message = refusal(result, "PredictBatch")
    return pb.PredictionResult(error=pb.PredictionError(code=status.value[0], message=message))
