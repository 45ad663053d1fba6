"""The vector of a question, by the sidecar's own model and batches."""

import asyncio
from collections import OrderedDict
from hashlib import sha256
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lpc.model.conversation import UserTurns
from lpc.model.features import Features
from lpc.model.inference import Model
from predictor_service.batching.batcher import Batcher
from predictor_service.errors import ServiceError

REMEMBERED: Final = 4096
"""Questions whose vectors are remembered between a lookup and the store that follows it."""
LONG: Final = 4096
"""Characters from which a text is tokenised in a thread."""
PATIENCE_S: Final = 0.25
"""Longest time that a lookup waits for a vector; without one it is a miss."""


class InService(Protocol):
    """Where the model in service is found."""

    @property
    def model(self) -> Model:
        """The model in service."""


class Embedder:
    """Gives vectors. Lives on one event loop."""

    def __init__(self, serving: InService, batcher: Batcher) -> None:
        self._serving = serving
        self._batcher = batcher
        self._known: OrderedDict[tuple[str, bytes], NDArray[np.float32]] = OrderedDict()

    def encoder(self) -> str:
        """Return what vectors that can be compared have in common: encoder and precision."""
        manifest = self._serving.model.manifest
        return sha256(f"{manifest.encoder_sha256}:{manifest.precision}".encode()).hexdigest()[:12]

    async def vector(self, question: str) -> NDArray[np.float32] | None:
        """Return a question's vector, of unit length; None where it has none: too long to be seen whole, or no time now."""
        model = self._serving.model
        key = (self.encoder(), sha256(question.encode()).digest())
        found = self._known.get(key)
        if found is not None:
            return found
        turns = UserTurns((question,), 1)
        features = model.encode(turns) if len(question) < LONG else await asyncio.to_thread(model.encode, turns)
        # Two long questions that differ in the middle alone would have the same vector.
        if len(features.input_ids) >= model.manifest.features.token_budget:
            return None
        data = await self._embedded(model, features)
        if data is None:
            return None
        vector = np.frombuffer(data, "<f2").astype(np.float32)
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm) or norm == 0:
            return None
        self._known[key] = vector = vector / np.float32(norm)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return vector

    async def _embedded(self, model: Model, features: Features) -> bytes | None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        try:
            with self._batcher.queue.permit(PATIENCE_S):
                async with asyncio.timeout(PATIENCE_S):
                    return await self._batcher.embed(model, features, deadline)
        except (ServiceError, TimeoutError):
            return None
