"""The sidecar of benchmark `engine --trace`: the real one, but for its clock, which is the engine's, and its text model.

A trace has no text, so what stands for it says nothing about a conversation: the text model is not run, and answers 0.5. All
that is known of a conversation is what the return model learns of its turns: names, numbers, lengths, times.
"""

import asyncio
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.virtual_clock import VirtualClock
from lpc.model.conversation import UserTurns
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.memory import Arrived
from predictor_service import server
from predictor_service.constants import Constants
from predictor_service.returns.learning import ReturnLearning
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


class PunctualLearning(ReturnLearning):
    """Learning that is due by the virtual clock, which outruns the sidecar's own minutes."""

    _refit_at = -math.inf

    def answer(self, turns: Sequence[Arrived]) -> list[int]:
        """As its parent; first refitted, and the curves published, where that is due."""
        now = self._clock()
        if now >= self._refit_at:
            # Of a silence only the last minute is done: it would learn the same turns over and over.
            self._refit()
            self.curves.look()
            self._refit_at = now + REFIT_S
        return super().answer(turns)


def serve_virtual(clock_file: Path) -> None:
    """Serve until told to stop, by the virtual clock in a file."""
    logging.basicConfig(level="INFO", stream=sys.stderr)
    clock = VirtualClock(clock_file)
    # The virtual clock says when what was learnt is refitted and published, so the sidecar itself never does it.
    never = Constants(refit_s=86_400.0)
    parts = server.Parts(clock=clock, load=UnreadModel, learning=PunctualLearning, constants=never)
    asyncio.run(server.serve(ServiceSettings(), parts))


if __name__ == "__main__":
    serve_virtual(Path(sys.argv[1]))
