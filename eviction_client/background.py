"""Runs work that the engine's scheduler must not wait for."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from eviction_client.pace import gives_way

GATHER_S: Final = 0.02
"""Pause before a round, in which work gathers."""
TICK_S: Final = 1.0
"""Longest wait for a wake-up."""


class Background(Protocol):
    """Runs rounds of work. Neither method blocks for long."""

    def wake(self) -> None:
        """Schedule a round."""

    def close(self) -> None:
        """Run no further round."""


StartBackground = Callable[[Callable[[], None]], Background]
"""Takes the function that does one round of work and never raises. Returns the started background."""


class BackgroundThread:
    """A thread that runs a round when woken, and at least about every TICK_S."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lpc-background", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """See :class:`Background`."""
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """See :class:`Background`. Waits at most a second for a running round."""
        self._closing = True
        self._wake.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        gives_way()
        while not self._closing:
            self._wake.wait(TICK_S)
            time.sleep(GATHER_S)
            self._wake.clear()
            self._work()


class AtOnce:
    """Runs each round in the thread that wakes it: for simulated clocks, which a thread cannot follow."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        """Run a round."""
        self._work()

    def close(self) -> None:
        """Do nothing: no round is running."""
