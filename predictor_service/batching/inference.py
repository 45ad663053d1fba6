"""The threads that run the served model, then the return model. One per lane is enough because ONNX Runtime uses all cores."""

import asyncio
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NamedTuple

from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.probability import logit
from lpc.model.recalibration import Platt
from lpc.model.returns.memory import Asked, WatchedTurn
from predictor_service.returns.learning import ReturnLearning


class Input(NamedTuple):
    """One conversation of a batch.

    Attributes:
        features: input of the served model.
        turn: the turn whose reuse group is needed; None: no group is needed.
        embedding: whether the embedding of its text is needed.
    """

    features: Features
    turn: WatchedTurn | None = None
    embedding: bool = False


class Inferred(NamedTuple):
    """The models' output for one conversation.

    Attributes:
        probability: probability that the conversation continues, recalibrated to this deployment.
        embedding: embedding of its text, little-endian fp16; None if it is not needed.
        log_odds: of the model's own probability.
        reuse_group: group of its predicted return curve; 0: unknown, or not needed.
    """

    probability: float
    embedding: bytes | None
    log_odds: float
    reuse_group: int = 0


class Forward(NamedTuple):
    """The served model's output for one conversation: probability, and embedding if any input of the batch needs it."""

    probability: float
    embedding: bytes | None


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
        self._forwards: OrderedDict[bytes, Forward] = OrderedDict()
        self._cached_model: Model | None = None
        self._lock = threading.Lock()
        """Guards the cached outputs."""
        self._threads = ThreadPoolExecutor(threads, "infer")

    async def run(self, model: Model, inputs: Sequence[Input]) -> tuple[list[Inferred], int]:
        """Return the output for each of n conversations, and the time, microseconds.

        Raises:
            ArtifactError: the model returned a value that is not a probability.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, model, inputs)

    async def check(self, model: Model) -> None:
        """Run a model on an input that every model accepts. Raises the model's error."""
        known = Features([0], (1.0,) * len(model.manifest.features.scalars))
        await asyncio.get_running_loop().run_in_executor(self._threads, model.run, [known])

    def close(self) -> None:
        """Wait for the current batches, and cancel the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, model: Model, inputs: Sequence[Input]) -> tuple[list[Inferred], int]:
        start = time.perf_counter_ns()
        forwards = self._forward_cached(model, inputs) if self._remembered else self._forward(model, inputs)
        log_odds = [logit(forward.probability) for forward in forwards]
        groups = self._groups(inputs, log_odds)
        correction = Platt() if self._returns is None else self._returns.recalibration.of(model.manifest.version)
        inferred = [
            Inferred(correction.probability(odds), forward.embedding if one.embedding else None, odds, group)
            for one, forward, odds, group in zip(inputs, forwards, log_odds, groups, strict=True)
        ]
        return inferred, (time.perf_counter_ns() - start) // 1000

    def _groups(self, inputs: Sequence[Input], log_odds: Sequence[float]) -> list[int]:
        """Return the reuse group of each input, by the model's own log-odds; 0 for those that need none."""
        if self._returns is None:
            return [0] * len(inputs)
        asked = [
            Asked(one.turn, one.turn.arrival.facts._replace(log_odds=odds))
            for one, odds in zip(inputs, log_odds, strict=True)
            if one.turn is not None
        ]
        groups = iter(self._returns.answer(asked) if asked else ())
        return [0 if one.turn is None else next(groups) for one in inputs]

    def _forward(self, model: Model, inputs: Sequence[Input]) -> list[Forward]:
        features = [one.features for one in inputs]
        # The cached outputs also serve later requests for embeddings.
        if self._remembered or any(one.embedding for one in inputs):
            return [Forward(*row) for row in zip(*model.run_with_embeddings(features), strict=True)]
        return [Forward(probability, None) for probability in model.run(features)]

    def _forward_cached(self, model: Model, inputs: Sequence[Input]) -> list[Forward]:
        """Return the outputs; run the model once for each text that is not cached."""
        digests = [_digest(one.features) for one in inputs]
        with self._lock:
            if self._cached_model is not model:
                self._forwards.clear()
                self._cached_model = model
            found = {digest: self._forwards[digest] for digest in digests if digest in self._forwards}
        new = {digest: one for digest, one in zip(digests, inputs, strict=True) if digest not in found}
        if new:
            forwards = dict(zip(new, self._forward(model, list(new.values())), strict=True))
            found |= forwards
            with self._lock:
                if self._cached_model is model:
                    self._forwards.update(forwards)
                while len(self._forwards) > self._remembered:
                    self._forwards.popitem(last=False)
        return [found[digest] for digest in digests]


def _digest(features: Features) -> bytes:
    ids = array("q", features.input_ids).tobytes()
    return blake2b(ids + array("d", features.scalars).tobytes(), digest_size=16).digest()
