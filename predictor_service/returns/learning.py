"""The return model in service: it answers in the thread that infers, and learns in another one."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lpc.files import writing
from lpc.model.returns.memory import Arrived
from lpc.model.returns.model import ReturnModel
from lpc.wire.bugs import log_bug
from predictor_service.labels.memory import Turn, TurnObserver
from predictor_service.metrics import Metrics
from predictor_service.returns.curves import PublishedCurves

log = logging.getLogger(__name__)

State: TypeAlias = dict[str, NDArray[Any]]
"""What is kept across restarts: NumPy arrays, numbers and digests only."""
KEEP_INTERVAL_S: Final = 300.0
"""Seconds between two writings of the state: what a process that is killed forgets."""


class ReturnLearning(TurnObserver):
    """What is learnt of returns. Whatever goes wrong here, predictions are answered, in group 0.

    Attributes:
        curves: of the groups that turns are answered with, as they are sent to engines.
    """

    def __init__(
        self, model: ReturnModel, metrics: Metrics, *, refit_s: float, kept: Path | None, clock: Callable[[], float]
    ) -> None:
        """Start with nothing learnt.

        Args:
            refit_s: seconds between two refits.
            kept: the file of the state; None for none.
            clock: seconds since the Unix epoch, by which turns arrive.
        """
        self._model = model
        self._metrics = metrics
        self._refit_s = refit_s
        self._kept = kept
        self._clock = clock
        self.curves = PublishedCurves(model.group_curves)
        self._unwritten = False
        self._keep_at = time.monotonic() + KEEP_INTERVAL_S
        metrics.returns_learnt.labels("turns").set_function(lambda: model.quality.turns)
        metrics.returns_learnt.labels("returns").set_function(lambda: model.quality.returns)
        metrics.return_model_head_share.set_function(lambda: model.quality.head_share)
        metrics.return_model_nats.set_function(lambda: model.quality.nats)

    def answer(self, turns: Sequence[Arrived]) -> list[int]:
        """Take turns in that are about to be answered; return the group of each; 0: nothing is known."""
        try:
            groups: list[int] = self._model.answer(turns).tolist()
        except Exception as error:  # a fault of ours must not cost the prediction
            self._failed("the return model", error)
            return [0] * len(turns)
        return groups

    def returned(self, turn: Turn) -> None:
        """Learn that a turn's next one has arrived, here or at another sidecar."""
        try:
            self._model.follow(turn)
        except Exception as error:
            self._failed("learning of a return", error)

    def forgotten(self, turn: Turn) -> None:
        """Learn that a turn's next one will not be recognised."""
        self._model.leave(turn)

    def restore(self) -> None:
        """Take what was kept, if it can be."""
        if self._kept is None:
            return
        try:
            found = _read(self._kept)
            if found is not None:
                self._model.restore(found, self._clock())
        except Exception as error:  # a damaged archive raises whatever its reader does
            # The type alone: nothing that stands in the file gets into the log.
            log.warning(
                "what was learnt of returns, %s, cannot be used (%s): starting with nothing learnt",
                self._kept,
                type(error).__name__,
            )
            return
        if found is not None:
            log.info("%d returns learnt before are known again", self._model.quality.returns)
            self.curves.look()

    async def learn(self) -> None:
        """Refit, in a thread, publish the curves if they have changed, and keep what was learnt now and then."""
        if time.monotonic() >= self._keep_at:
            self._keep_at = time.monotonic() + KEEP_INTERVAL_S
            await asyncio.to_thread(self.keep)
        await asyncio.to_thread(self._refit)
        await self.curves.renew()

    def keep(self) -> None:
        """Write what was learnt into its file, if there is one."""
        if self._kept is None:
            return
        try:
            _write(self._kept, self._model.state(self._clock()))
        except OSError as error:
            self._metrics.task_failures.labels("returns").inc()
            if not self._unwritten:
                log.error("what was learnt of returns could not be written (%s)", type(error).__name__)
            self._unwritten = True
        except Exception as error:
            self._failed("keeping what was learnt of returns", error)
        else:
            self._unwritten = False

    def _refit(self) -> None:
        start = time.perf_counter()
        self._model.refit(self._clock())  # where that fails, the curves stay
        self._metrics.return_refit_seconds.observe(time.perf_counter() - start)

    def _failed(self, where: str, error: Exception) -> None:
        self._metrics.task_failures.labels("returns").inc()
        log_bug(log, where, error)


def _write(path: Path, state: State) -> None:
    """Write a state, whole or not at all; its folder is made if need be. Raises OSError."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with writing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **state)


def _read(path: Path) -> State | None:
    """Return a kept state; None if there is no file. Raises OSError, ValueError and whatever a damaged archive makes."""
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, Mapping):
                raise ValueError("not an archive of arrays")
            return dict(arrays)
    except FileNotFoundError:
        return None
