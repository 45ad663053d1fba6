"""The threads that run the served model, then the return model. One per lane is enough because ONNX Runtime uses all cores."""

import asyncio
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.probability import logit
from lpc.model.returns.memory import Arrived
from predictor_service.returns.learning import ReturnLearning


class Inferred(NamedTuple):
    """The models' output for one conversation.

    Attributes:
        probability: probability that the conversation continues.
        embedding: embedding of its text, little-endian fp16; None if it is not needed.
        reuse_group: group of its predicted return curve; 0: unknown.
    """

    probability: float
    embedding: bytes | None
    reuse_group: int = 0


Forward: TypeAlias = tuple[float, bytes | None]
"""The served model's output for one conversation: probability, and embedding if requested."""


class Inference:
    """Runs batches, ``threads`` of them at the same time.

    Args:
        embeddings: whether predictions include embeddings; requests of the response caches always do.
        returns: predicts the groups; None: no groups.
        remembered: number of inputs whose output is cached. The response caches embed a first turn just before the engine
            requests its prediction, and one forward pass serves both.
        threads: number of batches at the same time.
    """

    def __init__(
        self, *, embeddings: bool = False, returns: ReturnLearning | None = None, remembered: int = 0, threads: int = 1
    ) -> None:
        self._embeddings = embeddings
        self._returns = returns
        self._remembered = remembered
        self._forwards: OrderedDict[bytes, Forward] = OrderedDict()
        self._cached_model: Model | None = None
        self._lock = threading.Lock()
        """Guards the cached outputs."""
        self._threads = ThreadPoolExecutor(threads, "infer")

    async def run(
        self,
        model: Model,
        features: Sequence[Features],
        turns: Sequence[Arrived | None],
    ) -> tuple[list[Inferred], int]:
        """Return the output for each of n conversations, and the time, microseconds.

        Args:
            features: n inputs.
            turns: n turns for the return model; None: no group is needed.

        Raises:
            ArtifactError: the model returned a value that is not a probability.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, model, features, turns)

    async def check(self, model: Model) -> None:
        """Run a model on an input that every model accepts. Raises the model's error."""
        known = Features([0], (1.0,) * len(model.manifest.features.scalars))
        await asyncio.get_running_loop().run_in_executor(self._threads, model.run, [known])

    def close(self) -> None:
        """Wait for the current batches, and cancel the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        model: Model,
        features: Sequence[Features],
        turns: Sequence[Arrived | None],
    ) -> tuple[list[Inferred], int]:
        start = time.perf_counter_ns()
        forwards = self._forward_cached(model, features) if self._remembered else self._forward(model, features)
        probabilities = [probability for probability, _ in forwards]
        vectors = [vector for _, vector in forwards]
        groups = [0] * len(features)
        if self._returns is not None and any(turn is not None for turn in turns):
            known = [(n, turn) for n, turn in enumerate(turns) if turn is not None]
            for n, turn in known:
                turn.facts = turn.facts._replace(log_odds=logit(probabilities[n]))
            for (n, _), group in zip(known, self._returns.answer([turn for _, turn in known]), strict=True):
                groups[n] = group
        if not self._embeddings:
            vectors = [vector if turn is None else None for vector, turn in zip(vectors, turns, strict=True)]
        inferred = [Inferred(*row) for row in zip(probabilities, vectors, groups, strict=True)]
        return inferred, (time.perf_counter_ns() - start) // 1000

    def _forward(self, model: Model, features: Sequence[Features]) -> list[Forward]:
        if self._embeddings or self._remembered:
            return list(zip(*model.run_with_embeddings(features), strict=True))
        return [(probability, None) for probability in model.run(features)]

    def _forward_cached(self, model: Model, features: Sequence[Features]) -> list[Forward]:
        inputs = {_digest(one): one for one in features}
        with self._lock:
            if self._cached_model is not model:
                self._forwards.clear()
                self._cached_model = model
            found = {digest: self._forwards[digest] for digest in inputs if digest in self._forwards}
        new = {digest: one for digest, one in inputs.items() if digest not in found}
        if new:
            forwards = dict(zip(new, self._forward(model, list(new.values())), strict=True))
            found |= forwards
            with self._lock:
                if self._cached_model is model:
                    self._forwards.update(forwards)
                while len(self._forwards) > self._remembered:
                    self._forwards.popitem(last=False)
        return [found[_digest(one)] for one in features]


def _digest(features: Features) -> bytes:
    ids = array("q", features.input_ids).tobytes()
    return blake2b(ids + array("d", features.scalars).tobytes(), digest_size=16).digest()
