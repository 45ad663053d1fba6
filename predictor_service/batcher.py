"""The loop between queue and model: tokenise, wait, run, answer.

Tokenisation runs in a small thread pool, so the event loop stays free, and that of the next batch overlaps inference of this
one. Inference runs in one thread: ONNX Runtime spreads over the cores by itself.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from predictor_service.conversation import UserTurns
from predictor_service.errors import Expired, Unavailable
from predictor_service.features import Features
from predictor_service.inference import Model
from predictor_service.metrics import Metrics
from predictor_service.queue import BatchQueue, Entry

TOKENIZER_THREADS: Final = {"cpu": 1, "cuda": 8}
"""One tokenises far faster than a CPU infers, and a second one only takes cores from it; a GPU wants more."""

CLOSING: Final = "the service is shutting down: connect to another sidecar"


@dataclass(frozen=True, slots=True)
class Answer:
    """A prediction and where its time went (microseconds)."""

    probability: float
    model_version: str
    turn_count: int
    queue_us: int
    tokenize_us: int
    infer_us: int


Result = tuple[float, int, int]  # probability, microseconds in the queue, microseconds of inference


class Batcher:
    """Answers conversations with the current model, in batches. Lives on one event loop."""

    def __init__(self, model: Model, queue: "BatchQueue[Model, Result]", metrics: Metrics) -> None:
        self.model = model
        self.queue = queue
        self._metrics = metrics
        self._tokenizers = ThreadPoolExecutor(TOKENIZER_THREADS[model.provider], "tokenize")
        self._model_thread = ThreadPoolExecutor(1, "infer")
        self._work = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        self._closed = False

    async def predict(self, parse: Callable[[], UserTurns], deadline: float, *, admitted: bool = False) -> Answer:
        """Return the prediction for a conversation.

        Args:
            parse: gives the user turns; called in a tokeniser thread.
            deadline: on the event loop's clock, seconds; infinite for none.
            admitted: the caller has taken this conversation's permit (`queue.admit`), and gives it back.

        Raises:
            Overloaded: the queue is full. Expired: the deadline passed first. Unavailable: the service is closing.
            ServiceError: what ``parse`` raises.
        """
        if not admitted:
            self.queue.admit()
        try:
            if self._closed:
                raise Unavailable(CLOSING)
            model = self.model
            prepared = await self._loop.run_in_executor(self._tokenizers, _prepare, parse, model)
            self._metrics.tokenize_seconds.observe(prepared.microseconds / 1e6)
            entry: Entry[Model, Result] = Entry(prepared.features, model, self._loop.create_future(), deadline)
            self.queue.put(entry, self._loop.time())
            self._work.set()
            # A caller that goes cancels this wait and with it the entry's answer: the queue then drops the entry.
            probability, queue_us, infer_us = await entry.answer
            version = model.manifest.version
            return Answer(probability, version, prepared.turn_count, queue_us, prepared.microseconds, infer_us)
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
                probabilities, infer_us = await self._loop.run_in_executor(
                    self._model_thread, _timed_run, batch.entries[0].model, [entry.features for entry in batch.entries]
                )
            except Exception as error:
                for entry in batch.entries:
                    if not entry.answer.done():
                        entry.answer.set_exception(error)
                continue
            self._metrics.observe_batch(len(batch.entries), batch.tokens, sum(len(e.features.input_ids) for e in batch.entries))
            self._metrics.infer_seconds.observe(infer_us / 1e6)
            for entry, probability in zip(batch.entries, probabilities, strict=True):
                if not entry.answer.done():
                    entry.answer.set_result((probability, int((started - entry.queued) * 1e6), infer_us))


@dataclass(frozen=True, slots=True)
class _Prepared:
    features: Features
    turn_count: int
    microseconds: int


def _prepare(parse: Callable[[], UserTurns], model: Model) -> _Prepared:
    start = time.perf_counter_ns()
    turns = parse()
    features = model.encode(turns)
    return _Prepared(features, turns.turn_count, (time.perf_counter_ns() - start) // 1000)


def _timed_run(model: Model, batch: Sequence[Features]) -> tuple[list[float], int]:
    start = time.perf_counter_ns()
    probabilities = model.run(batch)
    return probabilities, (time.perf_counter_ns() - start) // 1000
