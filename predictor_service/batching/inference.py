"""The thread in which models run: the served one, then the return model. One, since ONNX Runtime spreads over the cores."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lpc.model.arrivals import Arrival
from lpc.model.features import Features
from lpc.model.inference import LogNormal, Model
from lpc.model.probability import logit
from lpc.model.returns.memory import Arrived
from predictor_service.returns.learning import ReturnLearning


class Inferred(NamedTuple):
    """What a model says of one conversation.

    Attributes:
        probability: that it goes on.
        think_time: until its next turn; None where not known.
        embedding: of its text, little-endian fp16; None where nobody keeps it.
        credit_s: its credit table; empty where returns are not learnt.
    """

    probability: float
    think_time: LogNormal | None
    embedding: bytes | None
    credit_s: Sequence[float] = ()


class Inference:
    """Runs batches one after the other.

    ``embeddings``: what the encoder made of each conversation is kept. ``returns``: gives credits; None where nothing does.
    """

    def __init__(self, *, embeddings: bool = False, returns: ReturnLearning | None = None) -> None:
        self._embeddings = embeddings
        self._returns = returns
        self._thread = ThreadPoolExecutor(1, "infer")

    async def run(
        self,
        model: Model,
        features: Sequence[Features],
        arrivals: Sequence[Arrival | None],
        asked: Sequence[Arrived],
    ) -> tuple[list[Inferred], int]:
        """Return what a model says of each of n conversations, and how many microseconds it took.

        Args:
            features: n inputs.
            arrivals: n inputs of the think-time model; all None where the model has none.
            asked: n inputs of the return model, but the log-odds.

        Raises:
            ArtifactError: the model gave something that is not a probability.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, model, features, arrivals, asked)

    def close(self) -> None:
        """Wait for the batch that runs, and run no other."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        model: Model,
        features: Sequence[Features],
        arrivals: Sequence[Arrival | None],
        asked: Sequence[Arrived],
    ) -> tuple[list[Inferred], int]:
        """In the thread."""
        start = time.perf_counter_ns()
        vectors: Sequence[bytes | None] = [None] * len(features)
        if self._embeddings:
            probabilities, vectors = model.run_with_embeddings(features)
        else:
            probabilities = model.run(features)
        # A model has learnt think times or not, so either all of its conversations have an arrival or none has.
        known = [arrival for arrival in arrivals if arrival is not None]
        think_times = model.think_times(known) if known else [None] * len(features)
        tables: Sequence[Sequence[float]] = [()] * len(features)
        if self._returns is not None:
            turns = zip(asked, probabilities, strict=True)
            tables = self._returns.credits_of([turn._replace(log_odds=logit(probability)) for turn, probability in turns])
        inferred = [Inferred(*row) for row in zip(probabilities, think_times, vectors, tables, strict=True)]
        return inferred, (time.perf_counter_ns() - start) // 1000
