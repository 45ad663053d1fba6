"""The loop between queue and model: tokenise, wait, run, answer.

Tokenisation runs in a small thread pool, so the event loop stays free, and that of the next batch overlaps inference of this
one. Inference runs in one thread: ONNX Runtime spreads over the cores by itself.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from lpc.model.arrivals import Arrival
from lpc.model.artifact import Manifest
from lpc.model.conversation import UserTurns
from lpc.model.features import Features
from lpc.model.inference import LogNormal, Model
from predictor_service.batching.queue import BatchQueue, Entry
from predictor_service.errors import Expired, Unavailable
from predictor_service.metrics import Metrics

TOKENIZER_THREADS: Final = {"cpu": 1, "cuda": 8}
"""One tokenises far faster than a CPU infers, and a second one only takes cores from it; a GPU wants more."""

CLOSING: Final = "the service is shutting down: connect to another sidecar"


@dataclass(frozen=True, slots=True)
class Answer:
    """A prediction and where its time went (microseconds).

    ``think_time``: until the next turn; None where not known. ``manifest``: of the model. ``tokens``: that it was given.
    ``embedding``: little-endian fp16; None where the batcher keeps none.
    """

    probability: float
    think_time: LogNormal | None
    manifest: Manifest
    turn_count: int
    tokens: int
    queue_us: int
    tokenize_us: int
    infer_us: int
    embedding: bytes | None

    @property
    def model_version(self) -> str:
        """The version that answered."""
        return self.manifest.version


class Result(NamedTuple):
    """What the model gave for one entry, and its time in the queue and in the model (microseconds)."""

    probability: float
    think_time: LogNormal | None
    embedding: bytes | None
    queue_us: int
    infer_us: int


class Batcher:
    """Answers conversations with the current model, in batches. Lives on one event loop.

    ``embeddings``: answers hold what the encoder made of the conversation.
    """

    def __init__(self, model: Model, queue: "BatchQueue[Model, Result]", metrics: Metrics, *, embeddings: bool = False) -> None:
        self.model = model
        self.queue = queue
        self._metrics = metrics
        self._embeddings = embeddings
        self._tokenizers = ThreadPoolExecutor(TOKENIZER_THREADS[model.provider], "tokenize")
        self._model_thread = ThreadPoolExecutor(1, "infer")
        self._work = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        self._closed = False

    async def predict(
        self,
        parse: Callable[[], UserTurns],
        arrive: Callable[[UserTurns], Arrival],
        deadline: float,
        *,
        admitted: bool = False,
    ) -> Answer:
        """Return the prediction for a conversation.

        Args:
            parse: gives the user turns; called in a tokeniser thread.
            arrive: notes that they arrived; called in the same thread, only if the model has learnt think times.
            deadline: on the event loop's clock, seconds; infinite for none.
            admitted: the caller has taken this conversation's permit (`queue.admit`), and gives it back.

        Raises:
            Overloaded: the queue is full, or too long for the deadline. Expired: the deadline passed first.
            Unavailable: the service is closing.
            ServiceError: what ``parse`` raises.
        """
        if not admitted:
            self.queue.admit(patience=deadline - self._loop.time())
        try:
            if self._closed:
                raise Unavailable(CLOSING)
            model = self.model
            prepared = await self._loop.run_in_executor(self._tokenizers, _prepare, parse, arrive, model)
            self._metrics.tokenize_seconds.observe(prepared.microseconds / 1e6)
            answer: asyncio.Future[Result] = self._loop.create_future()
            entry = Entry(prepared.features, model, answer, deadline, prepared.arrival)
            self.queue.put(entry, self._loop.time())
            self._work.set()
            # A caller that goes cancels this wait and with it the entry's answer: the queue then drops the entry.
            result = await answer
            return Answer(
                result.probability,
                result.think_time,
                model.manifest,
                prepared.turn_count,
                len(prepared.features.input_ids),
                result.queue_us,
                prepared.microseconds,
                result.infer_us,
                result.embedding,
            )
        finally:
            if not admitted:
                self.queue.release()

    async def close(self) -> None:
        """Refuse new work and stop; requests that still wait are answered Unavailable."""
        self._closed = True
        self._task.cancel()
        for entry in self.queue.take_all():
            entry.answer.set_exception(Unavailable(CLOSING))
        self._model_thread.shutdown(wait=True, cancel_futures=True)
        self._tokenizers.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            batch = self.queue.next_batch(self._loop.time())
            for reason, entries in batch.dropped.items():
                self._metrics.dropped.labels(reason).inc(len(entries))
                for entry in entries:
                    if not entry.answer.done():
                        entry.answer.set_exception(Expired("the deadline passed while the conversation waited for the model"))
            if not batch.entries:
                if not len(self.queue):
                    self._work.clear()
                continue
            started = self._loop.time()
            try:
                predictions, infer_us = await self._loop.run_in_executor(
                    self._model_thread, _timed_run, batch.entries, self._embeddings
                )
            except Exception as error:
                for entry in batch.entries:
                    if not entry.answer.done():
                        entry.answer.set_exception(error)
                continue
            self._metrics.observe_batch(len(batch.entries), batch.tokens, sum(len(e.features.input_ids) for e in batch.entries))
            self._metrics.infer_seconds.observe(infer_us / 1e6)
            self.queue.served(len(batch.entries), self._loop.time() - started)
            for entry, (probability, think_time, embedding) in zip(batch.entries, predictions, strict=True):
                if not entry.answer.done():
                    queue_us = int((started - entry.queued) * 1e6)
                    entry.answer.set_result(Result(probability, think_time, embedding, queue_us, infer_us))


@dataclass(frozen=True, slots=True)
class _Prepared:
    features: Features
    arrival: Arrival | None
    turn_count: int
    microseconds: int


def _prepare(parse: Callable[[], UserTurns], arrive: Callable[[UserTurns], Arrival], model: Model) -> _Prepared:
    start = time.perf_counter_ns()
    turns = parse()
    arrival = arrive(turns) if model.think_time is not None else None
    features = model.encode(turns)
    return _Prepared(features, arrival, turns.turn_count, (time.perf_counter_ns() - start) // 1000)


def _timed_run(
    batch: Sequence[Entry[Model, Result]], embeddings: bool
) -> tuple[list[tuple[float, LogNormal | None, bytes | None]], int]:
    """Run entries of one model; return probability, think time and embedding of each, and microseconds."""
    start = time.perf_counter_ns()
    model = batch[0].model
    features = [entry.features for entry in batch]
    vectors: Sequence[bytes | None] = [None] * len(batch)
    if embeddings:
        probabilities, vectors = model.run_with_embeddings(features)
    else:
        probabilities = model.run(features)
    # A model has learnt think times or not, so either all of its entries have an arrival or none has.
    arrivals = [entry.arrival for entry in batch if entry.arrival is not None]
    think_times = model.think_times(arrivals) if arrivals else [None] * len(batch)
    return list(zip(probabilities, think_times, vectors, strict=True)), (time.perf_counter_ns() - start) // 1000
