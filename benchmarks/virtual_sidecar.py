"""The sidecar of benchmark `engine --trace`: the real one, but for its clock, which is the engine's, and its text model.

A trace has no text, so what stands for it says nothing about a conversation: the text model is not run, and answers 0.5. All
that is known of a conversation is what the return model learns of its turns: names, numbers, lengths, times.
"""

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.virtual_clock import VirtualClock
from lpc.model.conversation import UserTurns
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.memory import Arrived
from lpc.model.returns.model import ReturnModel
from predictor_service import server
from predictor_service.constants import Constants
from predictor_service.settings import ServiceSettings

REFIT_S: Final = 60.0
"""Virtual seconds between two refits, as many as the real ones of a sidecar."""


class UnreadModel(Model):
    """A model that reads nothing."""

    def encode(self, turns: UserTurns) -> Features:
        """Return the input of an empty text."""
        return super().encode(UserTurns(("-",), turns.turn_count))

    def run(self, batch: Sequence[Features]) -> list[float]:
        """Return a half for each."""
        return [0.5] * len(batch)


class PunctualReturnModel(ReturnModel):
    """A return model that is refitted by the virtual clock, which outruns the sidecar's own minutes."""

    def __init__(self, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity)
        self._now = clock
        self._refit_at = clock() + REFIT_S

    def answer(self, turns: Sequence[Arrived]) -> NDArray[np.int64]:
        """As its parent; first refitted, where that is due."""
        now = self._now()
        if now >= self._refit_at:
            # Of a silence only the first minute's is done: it would learn the same turns over and over.
            self.refit(self._refit_at)
            self._refit_at += math.floor((now - self._refit_at) / REFIT_S + 1.0) * REFIT_S
        return super().answer(turns)


def serve_virtual(clock_file: Path) -> None:
    """Serve until told to stop, by the virtual clock in a file."""
    logging.basicConfig(level="INFO", stream=sys.stderr)
    clock = VirtualClock(clock_file)
    # The virtual clock says when the return model is refitted, so the sidecar itself never does.
    never = Constants(refit_s=86_400.0)
    parts = server.Parts(
        clock=clock, load=UnreadModel, returns=lambda capacity: PunctualReturnModel(capacity, clock), constants=never
    )
    asyncio.run(server.serve(ServiceSettings(), parts))


if __name__ == "__main__":
    serve_virtual(Path(sys.argv[1]))
