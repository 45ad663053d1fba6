"""Where work is done that the engine's scheduler must not wait for."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

GATHER_S: Final = 0.02
"""Pause in which work gathers; also the shortest time between two rounds."""
TICK_S: Final = 1.0
"""Longest time between two rounds."""


class Background(Protocol):
    """Runs rounds of work. Neither method blocks for long."""

    def wake(self) -> None:
        """Say that there is work."""

    def close(self) -> None:
        """Run no further round."""


StartBackground = Callable[[Callable[[], None]], Background]
"""Given one round of work, which never raises, starts what runs them."""


class BackgroundThread:
    """A thread that runs a round when woken, and every TICK_S anyway."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lpc-scorer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """See :class:`Background`."""
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """See :class:`Background`. Waits for the round that runs, at most a second."""
        self._closing = True
        self._wake.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(TICK_S)
            time.sleep(GATHER_S)
            self._wake.clear()
            self._work()


class AtOnce:
    """Runs a round when woken, in the thread that wakes it: for clocks that a thread could not keep pace with."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        """Run a round."""
        self._work()

    def close(self) -> None:
        """Nothing runs."""
