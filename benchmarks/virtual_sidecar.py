"""The sidecar of benchmark `engine --trace`: the real one on the engine's clock, without its text model.

A trace has no text, so the text model does not run and predicts 0.5. The return model learns from names, numbers, lengths and
times of turns.
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
from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import WatchedTurn
from predictor_service import server
from predictor_service.constants import Constants
from predictor_service.returns.learning import ReturnLearning
from predictor_service.settings import ServiceSettings

REFIT_S: Final = 60.0
"""Virtual seconds between two refits, as in a real sidecar."""


class UnreadModel(Model):
    """A model that ignores the text."""

    def encode(self, turns: UserTurns) -> ModelInput:
        """Return the input of an empty text."""
        return super().encode(UserTurns(("-",), turns.turn_count))

    def run(self, batch: Sequence[ModelInput]) -> list[float]:
        """Return 0.5 for each input."""
        return [0.5] * len(batch)


class PunctualLearning(ReturnLearning):
    """Learns by the virtual clock, which is faster than real time."""

    _refit_at = -math.inf

    def answer(self, turns: Sequence[WatchedTurn], facts: Sequence[Facts]) -> list[int]:
        """Like the parent's method, after refitting and publishing the curves if that is due."""
        now = self._clock()
        if now >= self._refit_at:
            # After a pause refit only once: earlier refits would learn the same turns.
            self._refit()
            self.curves.update()
            self._refit_at = now + REFIT_S
        return super().answer(turns, facts)


def serve_virtual(clock_file: Path) -> None:
    """Serve on the virtual clock in a file until terminated."""
    logging.basicConfig(level="INFO", stream=sys.stderr)
    clock = VirtualClock(clock_file)
    # The virtual clock decides when to refit and publish, so disable the sidecar's own schedule.
    never = Constants(refit_s=86_400.0)
    parts = server.Parts(clock=clock, load=UnreadModel, learning=PunctualLearning, constants=never)
    asyncio.run(server.serve(ServiceSettings(), parts))


if __name__ == "__main__":
    serve_virtual(Path(sys.argv[1]))
