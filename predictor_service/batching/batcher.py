"""The loop between queue and model: wait for work, take the next batch, run it, hand out what came."""

import asyncio
import logging

from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.wire.bugs import log_bug
from predictor_service.batching.inference import Inference
from predictor_service.batching.prepare import Prepared
from predictor_service.batching.queue import Batch, BatchQueue, Entry, Outcome
from predictor_service.errors import BROKEN, CLOSING, Expired, Overloaded, Unavailable
from predictor_service.metrics import Metrics

log = logging.getLogger(__name__)


class Batcher:
    """Runs what is in the queue, in batches. Lives on one event loop."""

    def __init__(self, queue: BatchQueue, inference: Inference, metrics: Metrics) -> None:
        self.queue = queue
        self._inference = inference
        self._metrics = metrics
        self._work = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        self._closed: Unavailable | None = None
        self._failed: Model | None = None
        """The model of the last batch, if it failed."""

    async def predict(self, prepared: Prepared, deadline: float) -> Outcome:
        """Return what the model says of a conversation whose permit the caller holds (`BatchQueue.admit`).

        Args:
            prepared: the conversation.
            deadline: on the event loop's clock, seconds; infinite for none.

        Raises:
            Expired: the deadline passed first. Unavailable: the service is closing.
        """
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        entry = Entry(prepared.features, prepared.model, prepared.turn, outcome, deadline)
        return await self._wait_for(entry)

    async def embed(self, model: Model, features: Features, deadline: float) -> bytes:
        """Return an embedding, little-endian fp16, of features of this model. As :meth:`predict` otherwise."""
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        inferred = (await self._wait_for(Entry(features, model, None, outcome, deadline))).inferred
        assert inferred.embedding is not None, "Inference was made without embeddings"
        return inferred.embedding

    async def _wait_for(self, entry: Entry) -> Outcome:
        if self._closed is not None:
            raise self._closed
        self.queue.put(entry, self._loop.time())
        self._work.set()
        # A caller that goes cancels this wait and with it the entry's outcome: the queue then drops the entry.
        return await entry.outcome

    async def close(self) -> None:
        """Refuse new work and stop; requests that still wait are answered Unavailable."""
        self._task.cancel()
        self._refuse(Unavailable(CLOSING), [])
        self._inference.close()

    async def check(self) -> bool:
        """Say whether predictions can be had: the loop runs, and if the last batch failed, the model takes another input.

        So a conversation that no model takes shuts nobody out, and a model that has recovered is found to have.
        """
        if self._task.done():
            return False
        model = self._failed
        if model is None:
            return True
        try:
            await self._inference.check(model)
        except Exception as error:
            log_bug(log, "inference", error)
            return False
        self._failed = None
        return True

    async def _run(self) -> None:
        batch = Batch([])
        try:
            while True:
                await self._work.wait()
                batch = self.queue.next_batch(self._loop.time())
                self._drop(batch)
                if batch.entries:
                    await self._infer(batch)
                elif not len(self.queue):
                    self._work.clear()
        except Exception as error:
            log_bug(log, "the batcher: no prediction can be had any more", error)
            self._metrics.task_failures.labels("batcher").inc()
            self._refuse(Unavailable(BROKEN), batch.entries)

    def _refuse(self, why: Unavailable, taken: list[Entry]) -> None:
        """Refuse new work, and answer what waits or was taken out."""
        self._closed = why
        for entry in [*taken, *self.queue.take_all()]:
            if not entry.outcome.done():
                entry.outcome.set_exception(why)

    def _drop(self, batch: Batch) -> None:
        for reason, entries in batch.dropped.items():
            self._metrics.dropped.labels(reason).inc(len(entries))
            for entry in entries:
                if not entry.outcome.done():
                    entry.outcome.set_exception(Expired("the deadline passed while the conversation waited for the model"))

    async def _infer(self, batch: Batch) -> None:
        started = self._loop.time()
        features = [entry.features for entry in batch.entries]
        turns = [entry.turn for entry in batch.entries]
        try:
            inferred, infer_us = await self._inference.run(batch.entries[0].model, features, turns)
        except MemoryError as error:
            self._too_large(batch, error)
            return
        except Exception as error:
            log_bug(log, "inference", error)
            self._failed = batch.entries[0].model
            for entry in batch.entries:
                if not entry.outcome.done():
                    entry.outcome.set_exception(error)
            return
        self._metrics.observe_batch(len(batch.entries), batch.tokens, sum(len(one.input_ids) for one in features))
        self._metrics.infer_seconds.observe(infer_us / 1e6)
        self.queue.served(len(batch.entries), self._loop.time() - started)
        for entry, one in zip(batch.entries, inferred, strict=True):
            if not entry.outcome.done():
                entry.outcome.set_result(Outcome(one, int((started - entry.queued) * 1e6), infer_us))

    def _too_large(self, batch: Batch, error: MemoryError) -> None:
        """Try again in smaller batches; what does not fit alone is refused."""
        budget = self.queue.budget
        if len(batch.entries) > 1:
            budget.shrink(batch.tokens)
            log.warning("memory did not hold a batch: from now on at most %d tokens (%s)", budget.tokens, error)
            self.queue.put_back([entry for entry in batch.entries if not entry.outcome.done()])
            return
        log.error("memory does not hold a single conversation: raise the memory limit (%s)", error)
        for entry in batch.entries:
            if not entry.outcome.done():
                entry.outcome.set_exception(Overloaded("this sidecar's memory does not hold a conversation of this length"))
