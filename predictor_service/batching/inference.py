"""The thread in which models run: the served one, then the return model. One, since ONNX Runtime spreads over the cores."""

import asyncio
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
    """What a model says of one conversation.

    Attributes:
        probability: that it goes on.
        embedding: of its text, little-endian fp16; None where nobody keeps it.
        reuse_group: of its predicted return curve; 0: nothing is known.
    """

    probability: float
    embedding: bytes | None
    reuse_group: int = 0


Forward: TypeAlias = tuple[float, bytes | None]
"""What one run of the model gives of one conversation: its probability, and its embedding where it is asked for."""


class Inference:
    """Runs batches one after the other.

    Args:
        embeddings: what the encoder made of each conversation is handed out, not to the response caches alone.
        returns: gives groups; None where nothing does.
        remembered: inputs of which the model's output is remembered, by their digest. The response caches embed a first turn
            a moment before the engine asks for its probability, and one forward serves both.
    """

    def __init__(self, *, embeddings: bool = False, returns: ReturnLearning | None = None, remembered: int = 0) -> None:
        self._embeddings = embeddings
        self._returns = returns
        self._remembered = remembered
        self._forwards: OrderedDict[bytes, Forward] = OrderedDict()
        self._of: Model | None = None
        self._thread = ThreadPoolExecutor(1, "infer")

    async def run(
        self,
        model: Model,
        features: Sequence[Features],
        turns: Sequence[Arrived | None],
    ) -> tuple[list[Inferred], int]:
        """Return what a model says of each of n conversations, and how many microseconds it took.

        Args:
            features: n inputs.
            turns: n turns for the return model; None where it is not asked.

        Raises:
            ArtifactError: the model gave something that is not a probability.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, model, features, turns)

    async def check(self, model: Model) -> None:
        """Run a model on an input that every model takes. Raises what the model raises."""
        features = model.manifest.features
        known = Features([0], (1.0,) * len(features.scalars))
        await asyncio.get_running_loop().run_in_executor(self._thread, model.run, [known])

    def close(self) -> None:
        """Wait for the batch that runs, and run no other."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        model: Model,
        features: Sequence[Features],
        turns: Sequence[Arrived | None],
    ) -> tuple[list[Inferred], int]:
        """In the thread."""
        start = time.perf_counter_ns()
        forwards = self._remembering(model, features) if self._remembered else self._forward(model, features)
        probabilities = [probability for probability, _ in forwards]
        vectors = [vector for _, vector in forwards]
        groups = [0] * len(features)
        if self._returns is not None and any(turn is not None for turn in turns):
            asked = [(n, turn) for n, turn in enumerate(turns) if turn is not None]
            for n, turn in asked:
                turn.facts = turn.facts._replace(log_odds=logit(probabilities[n]))
            for (n, _), given in zip(asked, self._returns.answer([turn for _, turn in asked]), strict=True):
                groups[n] = given
        if not self._embeddings:
            vectors = [vector if turn is None else None for vector, turn in zip(vectors, turns, strict=True)]
        inferred = [Inferred(*row) for row in zip(probabilities, vectors, groups, strict=True)]
        return inferred, (time.perf_counter_ns() - start) // 1000

    def _forward(self, model: Model, features: Sequence[Features]) -> list[Forward]:
        if self._embeddings or self._remembered:
            return list(zip(*model.run_with_embeddings(features), strict=True))
        return [(probability, None) for probability in model.run(features)]

    def _remembering(self, model: Model, features: Sequence[Features]) -> list[Forward]:
        """Run the model for what it has not run lately."""
        if self._of is not model:
            self._forwards.clear()
            self._of = model
        digests = [_digest(one) for one in features]
        new = {digest: one for digest, one in zip(digests, features, strict=True) if digest not in self._forwards}
        if new:
            self._forwards.update(zip(new, self._forward(model, list(new.values())), strict=True))
        found = [self._forwards[digest] for digest in digests]
        while len(self._forwards) > self._remembered:
            self._forwards.popitem(last=False)
        return found


def _digest(features: Features) -> bytes:
    ids = array("q", features.input_ids).tobytes()
    return blake2b(ids + array("d", features.scalars).tobytes(), digest_size=16).digest()
