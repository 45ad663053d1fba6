"""Vectors of questions, by the sidecar's model and batches."""

import asyncio
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from predictor_service.errors import ServiceError

if TYPE_CHECKING:
    from lpc.model.features import ModelInput
    from lpc.model.inference import Model
    from predictor_service.batching.batcher import Batcher

REMEMBERED: Final = 4096
"""Vectors cached between a lookup and the store that follows it."""
LONG: Final = 4096
"""Length in characters from which a text is tokenised in a thread."""
PATIENCE_S: Final = 0.25
"""Longest time that a lookup waits for a vector, in seconds; after that it is a miss."""


class InService(Protocol):
    """Provides the model in service."""

    @property
    def model(self) -> "Model":
        """The model in service."""


class Embedder:
    """Computes no vectors, so that only the exact tier serves."""

    def encoder(self) -> str:
        """Return the id of encoder and precision; only vectors with the same id are comparable."""
        return ""

    async def vector(self, question: str, patience_s: float = PATIENCE_S) -> NDArray[np.float32] | None:
        """Return a question's vector of unit length; None if it is too long for the encoder or the model is busy."""
        try:
            return await self.vector_in_time(question, patience_s)
        except TimeoutError:
            return None

    async def vector_in_time(self, text: str, patience_s: float) -> NDArray[np.float32] | None:
        """Return a text's vector of unit length; None if it is too long for the encoder.

        Raises:
            TimeoutError: the model is busy.
        """
        del text, patience_s
        return None


class ModelEmbedder(Embedder):
    """Computes vectors by the model in service. Lives on one event loop."""

    def __init__(self, serving: InService, batcher: "Batcher") -> None:
        self._serving = serving
        self._batcher = batcher
        self._known: OrderedDict[tuple[str, bytes], NDArray[np.float32]] = OrderedDict()

    def encoder(self) -> str:
        """Return the id of encoder and precision."""
        return self._serving.model.manifest.vectors_id()

    async def vector_in_time(self, text: str, patience_s: float) -> NDArray[np.float32] | None:
        """See :meth:`Embedder.vector_in_time`."""
        from lpc.model.conversation import UserTurns  # here, so that the exact tier needs no tokenizer

        model = self._serving.model
        key = (self.encoder(), sha256(text.encode()).digest())
        found = self._known.get(key)
        if found is not None:
            return found
        turns = UserTurns((text,), 1)
        features = model.encode(turns) if len(text) < LONG else await asyncio.to_thread(model.encode, turns)
        # The middle of a long text is cut, so different texts would have the same vector.
        if len(features.input_ids) >= model.manifest.features.token_budget:
            return None
        vector = np.frombuffer(await self._embedded(model, features, patience_s), "<f2").astype(np.float32)
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm) or norm == 0:
            return None
        self._known[key] = vector = vector / np.float32(norm)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return vector

    async def _embedded(self, model: "Model", features: "ModelInput", patience_s: float) -> bytes:
        deadline = asyncio.get_running_loop().time() + patience_s
        try:
            with self._batcher.queue.permit(patience_s):
                async with asyncio.timeout(patience_s):
                    return await self._batcher.embed(model, features, deadline)
        except ServiceError as error:
            raise TimeoutError from error
