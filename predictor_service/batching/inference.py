"""The threads that run the served model, then the return model. One per lane is enough because ONNX Runtime uses all cores."""

import asyncio
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TypeAlias

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.probability import logit
from lpc.model.recalibration import Platt
from predictor_service.batching.job import Job
from predictor_service.returns.learning import ReturnLearning

_Output: TypeAlias = tuple[float, bytes | None]
"""The served model's output for one input: probability, and embedding if any input of the batch needs it."""


class Inference:
    """Runs batches, ``threads`` of them at the same time.

    Args:
        returns: predicts the groups; None: no groups.
        remembered: number of inputs whose output is cached. Another service of the sidecar may embed a first turn just before
            the engine requests its prediction, and one forward pass serves both.
        threads: number of batches at the same time.
    """

    def __init__(self, *, returns: ReturnLearning | None = None, remembered: int = 0, threads: int = 1) -> None:
        self._returns = returns
        self._remembered = remembered
        self._forwards: OrderedDict[bytes, _Output] = OrderedDict()
        self._cached_model: Model | None = None
        self._lock = threading.Lock()
        """Guards the cached outputs."""
        self._threads = ThreadPoolExecutor(threads, "infer")

    async def run(self, jobs: Sequence[Job]) -> int:
        """Set the outputs of jobs of one model; return the time of the models, microseconds.

        Raises:
            ArtifactError: the model returned a value that is not a probability.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, jobs)

    async def check(self, model: Model) -> None:
        """Run a model on an input that every model accepts. Raises the model's error."""
        known = ModelInput([0], (1.0,) * len(model.manifest.features.scalars))
        await asyncio.get_running_loop().run_in_executor(self._threads, model.run, [known])

    def close(self) -> None:
        """Wait for the current batches, and cancel the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, jobs: Sequence[Job]) -> int:
        start = time.perf_counter_ns()
        model = jobs[0].model
        forwards = self._forward_cached(model, jobs) if self._remembered else self._forward(model, jobs)
        for job, (probability, embedding) in zip(jobs, forwards, strict=True):
            job.model_log_odds = logit(probability)
            job.embedding = embedding if job.embeds else None
        self._set_groups(jobs)
        correction = Platt() if self._returns is None else self._returns.recalibration.of(model.manifest.version)
        for job in jobs:
            job.probability = correction.probability(job.model_log_odds)
        return (time.perf_counter_ns() - start) // 1000

    def _set_groups(self, jobs: Sequence[Job]) -> None:
        """Set the reuse groups of the jobs that need one, by the model's own log-odds."""
        needing = [(job, job.turn) for job in jobs if job.turn is not None]
        if self._returns is None or not needing:
            return
        facts = [turn.arrival.facts._replace(model_log_odds=job.model_log_odds) for job, turn in needing]
        groups = self._returns.answer([turn for _, turn in needing], facts)
        for (job, _), group in zip(needing, groups, strict=True):
            job.reuse_group = group

    def _forward(self, model: Model, jobs: Sequence[Job]) -> list[_Output]:
        features = [job.features for job in jobs]
        # The cached outputs also serve later requests for embeddings.
        if self._remembered or any(job.embeds for job in jobs):
            return list(zip(*model.run_with_embeddings(features), strict=True))
        return [(probability, None) for probability in model.run(features)]

    def _forward_cached(self, model: Model, jobs: Sequence[Job]) -> list[_Output]:
        """Return the outputs; run the model once for each text that is not cached."""
        digests = [_digest(job.features) for job in jobs]
        with self._lock:
            if self._cached_model is not model:
                self._forwards.clear()
                self._cached_model = model
            found = {digest: self._forwards[digest] for digest in digests if digest in self._forwards}
        new = {digest: job for digest, job in zip(digests, jobs, strict=True) if digest not in found}
        if new:
            forwards = dict(zip(new, self._forward(model, list(new.values())), strict=True))
            found |= forwards
            with self._lock:
                if self._cached_model is model:
                    self._forwards.update(forwards)
                while len(self._forwards) > self._remembered:
                    self._forwards.popitem(last=False)
        return [found[digest] for digest in digests]


def _digest(features: ModelInput) -> bytes:
    ids = array("q", features.input_ids).tobytes()
    return blake2b(ids + array("d", features.scalars).tobytes(), digest_size=16).digest()
