"""The loop between queue and model: wait for work, take the next batch, run it, deliver the results."""

import asyncio
import logging
from collections.abc import Sequence

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.wire.bugs import log_bug
from predictor_service.batching.batch_queue import Batch, BatchQueue, Lane
from predictor_service.batching.inference import Inference
from predictor_service.batching.job import Job
from predictor_service.errors import BROKEN, CLOSING, Expired, Overloaded, Unavailable
from predictor_service.metrics import Metrics

log = logging.getLogger(__name__)


class Batcher:
    """Runs the queued conversations in batches, one at a time of each lane. Use it from one event loop only.

    Args:
        embeddings: whether predictions include embeddings.
    """

    def __init__(
        self,
        queue: BatchQueue,
        inference: Inference,
        metrics: Metrics,
        *,
        embeddings: bool = False,
        lanes: Sequence[Lane | None] = (None,),
    ) -> None:
        self.queue = queue
        self._embeddings = embeddings
        self._inference = inference
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._work = [asyncio.Event() for _ in lanes]
        self._tasks = [self._loop.create_task(self._run(*lane)) for lane in zip(lanes, self._work, strict=True)]
        self._running = 0
        """Batches that the model runs."""
        self._closed: Unavailable | None = None
        self._failed: Model | None = None
        """Model of the last batch if that failed; else None."""

    async def predict(self, job: Job) -> None:
        """Run a prepared conversation whose permit the caller holds (`BatchQueue.admit`); the job then has all attributes.

        Raises:
            Expired: the deadline passed first. Unavailable: the service is shutting down or has failed.
        """
        job.embeds = self._embeddings
        await self._queue_up(job)

    async def embed(self, model: Model, features: ModelInput, deadline: float) -> bytes:
        """Return the embedding of the model's features, little-endian fp16. Deadline as in `Job`, errors as :meth:`predict`."""
        job = Job(model=model, deadline=deadline)
        job.features, job.embeds = features, True
        await self._queue_up(job)
        assert job.embedding is not None
        return job.embedding

    async def _queue_up(self, job: Job) -> None:
        if self._closed is not None:
            raise self._closed
        job.future = self._loop.create_future()
        self.queue.put(job, self._loop.time())
        for work in self._work:
            work.set()
        # If the caller cancels, the future is cancelled as well, and the queue drops the job.
        await job.future

    async def close(self) -> None:
        """Stop; new requests and those in the queue fail with Unavailable."""
        for task in self._tasks:
            task.cancel()
        self._refuse(Unavailable(CLOSING), [])
        self._inference.close()

    async def check(self) -> bool:
        """Return whether predictions work: the loop runs, and after a failed batch the model accepts a known input.

        So a conversation that fails in every model does not make the sidecar unhealthy, and a model can recover.
        """
        if any(task.done() for task in self._tasks):
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

    async def _run(self, lane: Lane | None, work: asyncio.Event) -> None:
        batch = Batch([])
        try:
            while True:
                await work.wait()
                batch = self.queue.next_batch(self._loop.time(), lane)
                self._drop(batch)
                if batch.jobs:
                    self._running += 1
                    try:
                        await self._infer(batch)
                    finally:
                        self._running -= 1
                else:
                    work.clear()
        except Exception as error:
            if self._closed is None:
                log_bug(log, "the batcher, which makes no more predictions", error)
                self._metrics.task_failures.labels("batcher").inc()
            self._refuse(Unavailable(BROKEN), batch.jobs)

    def _refuse(self, error: Unavailable, taken: list[Job]) -> None:
        """Fail new work, the jobs of the current batch (``taken``) and those in the queue."""
        self._closed = error
        _fail([*taken, *self.queue.take_all()], error)

    def _drop(self, batch: Batch) -> None:
        for reason, jobs in batch.dropped.items():
            self._metrics.dropped.labels(reason).inc(len(jobs))
            _fail(jobs, Expired("the deadline passed while the conversation waited for the model"))

    async def _infer(self, batch: Batch) -> None:
        jobs, started = batch.jobs, self._loop.time()
        try:
            infer_us = await self._inference.run(jobs)
        except MemoryError as error:
            self._too_large(batch, error)
            return
        except Exception as error:
            log_bug(log, "inference", error)
            self._failed = jobs[0].model
            _fail(jobs, error)
            return
        self._metrics.observe_batch(len(jobs), batch.tokens, sum(job.tokens for job in jobs))
        self._metrics.infer_seconds.observe(infer_us / 1e6)
        # Batches that run at the same time share the model.
        self.queue.observe_batch(len(jobs), (self._loop.time() - started) / self._running)
        for job in jobs:
            job.queue_us, job.infer_us = int((started - job.queued_at) * 1e6), infer_us
            if not job.future.done():
                job.future.set_result(None)

    def _too_large(self, batch: Batch, error: MemoryError) -> None:
        """Retry in smaller batches, or fail a conversation that does not fit into memory alone."""
        budget = self.queue.budget
        if len(batch.jobs) > 1:
            budget.shrink(batch.tokens)
            log.warning("a batch did not fit into memory: batches now have at most %d tokens (%s)", budget.tokens, error)
            self.queue.put_back([job for job in batch.jobs if not job.future.done()])
            return
        log.error("a single conversation does not fit into memory: raise the memory limit (%s)", error)
        _fail(batch.jobs, Overloaded("a conversation of this length does not fit into this sidecar's memory"))


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    """Answer the jobs that still wait with an error."""
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)
