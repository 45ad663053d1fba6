"""The return model in service: predicts in the inference thread, and refits in another thread."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lpc.files import writing
from lpc.model.recalibration import Recalibration
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import WatchedTurn
from lpc.model.returns.model import ReturnModel
from lpc.wire.bugs import log_bug
from predictor_service.labels.turn import Label, Turn, TurnObserver
from predictor_service.metrics import Metrics
from predictor_service.returns.curves import PublishedCurves

log = logging.getLogger(__name__)

State: TypeAlias = dict[str, NDArray[Any]]
"""State saved across restarts: NumPy arrays of numbers and digests only."""
SAVE_INTERVAL_S: Final = 300.0
"""Interval at which the state is saved; a killed process loses at most this much."""


class ReturnLearning(TurnObserver):
    """Uses and trains the return model, and recalibrates probabilities. If it fails, predictions are answered with group 0.

    Attributes:
        curves: the published curves of the groups.
        recalibration: correction of the served model's probabilities to the labels of this deployment.
    """

    def __init__(
        self, model: ReturnModel, metrics: Metrics, *, refit_s: float, state_file: Path | None, clock: Callable[[], float]
    ) -> None:
        """Register the model's metrics.

        Args:
            refit_s: interval of refits, seconds.
            state_file: file of the saved state; None: it is not saved.
            clock: time of arrival of turns, seconds since the Unix epoch.
        """
        self._model = model
        self._metrics = metrics
        self._refit_s = refit_s
        self._state_file = state_file
        self._clock = clock
        self.curves = PublishedCurves(model.group_curves)
        self.recalibration = Recalibration()
        self._unwritten = False
        self._resets = model.resets
        self._save_at = time.monotonic() + SAVE_INTERVAL_S
        metrics.returns_learnt.labels("turns").set_function(lambda: model.quality.turns)
        metrics.returns_learnt.labels("returns").set_function(lambda: model.quality.returns)
        metrics.return_model_head_share.set_function(lambda: model.quality.head_share)
        metrics.return_model_nats.set_function(lambda: model.quality.nats)

    def answer(self, turns: Sequence[WatchedTurn], facts: Sequence[Facts]) -> list[int]:
        """Return the predicted group of each turn, and store the turns; 0: unknown. ``facts``: as in `ReturnModel.answer`."""
        try:
            groups: list[int] = self._model.answer(turns, facts).tolist()
        except Exception as error:  # a bug here must not fail the prediction
            self._failed("the return model", error)
            return [0] * len(turns)
        return groups

    def returned(self, turn: Turn) -> None:
        """Learn from the arrival of a turn's next turn, here or at another sidecar."""
        try:
            self._model.record_return(turn)
        except Exception as error:
            self._failed("learning of a return", error)

    def labelled(self, label: Label) -> None:
        """Learn the outcome of a prediction."""
        forecast = label.forecast
        self.recalibration.learn(forecast.manifest.version, forecast.model_log_odds, label.continues)

    def forgotten(self, turn: Turn) -> None:
        """Drop a turn whose next turn will not be recognised."""
        self._model.leave(turn)

    def restore(self) -> None:
        """Load the saved state; log a warning if it is damaged."""
        if self._state_file is None:
            return
        try:
            found = read_state(self._state_file)
            if found is not None:
                self._model.restore(found, self._clock())
                self.recalibration.restore(found)
        except Exception as error:  # a damaged archive can raise anything
            # Only the type is logged: messages could quote the file.
            log.warning(
                "the saved return model %s cannot be loaded (%s): starting with an empty one",
                self._state_file,
                type(error).__name__,
            )
            return
        if found is not None:
            log.info("loaded the return model, with %d returns", self._model.quality.returns)
            self.curves.update()

    async def learn(self) -> None:
        """Refit the model in a thread, publish its curves, and save its state every SAVE_INTERVAL_S."""
        if time.monotonic() >= self._save_at:
            self._save_at = time.monotonic() + SAVE_INTERVAL_S
            await asyncio.to_thread(self.save)
        await asyncio.to_thread(self._refit)
        await asyncio.to_thread(self.curves.update)

    def save(self) -> None:
        """Save the model's state, if a file is configured."""
        if self._state_file is None:
            return
        try:
            write_state(self._state_file, {**self._model.state(self._clock()), **self.recalibration.state()})
        except OSError as error:
            self._metrics.task_failures.labels("returns").inc()
            if not self._unwritten:
                log.error(
                    "the return model cannot be saved in %s (%s): check LPC_STATE; it is tried again",
                    self._state_file,
                    error.strerror or type(error).__name__,
                )
            self._unwritten = True
        except Exception as error:
            self._failed("saving the return model", error)
        else:
            self._unwritten = False

    def _refit(self) -> None:
        start = time.perf_counter()
        self.recalibration.refit()
        self._model.refit(self._clock())  # if it raises, the curves stay
        self._metrics.return_refit_seconds.observe(time.perf_counter() - start)
        before, self._resets = self._resets, self._model.resets
        self._metrics.invalid_values.labels("model").inc(self._resets - before)

    def _failed(self, where: str, error: Exception) -> None:
        self._metrics.task_failures.labels("returns").inc()
        log_bug(log, where, error)


def write_state(path: Path, state: State) -> None:
    """Write a state atomically; create its folder if needed. Raises OSError."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with writing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **state)


def read_state(path: Path) -> State | None:
    """Return a saved state; None: there is no file. Raises OSError, ValueError and any error of a damaged archive."""
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, Mapping):
                raise ValueError("not an archive of arrays")
            return dict(arrays)
    except FileNotFoundError:
        return None
