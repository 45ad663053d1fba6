"""A clock that one process sets and others read: time passes in a benchmark's engine, and its sidecar sees the same."""

import mmap
from pathlib import Path
from typing import Final

EPOCH_S: Final = 1.8e9
"""Seconds since the Unix epoch at which it starts, so that times have the digits that they have in production."""


class VirtualClock:
    """Seconds since the epoch, in a file of eight bytes that all processes map.

    Args:
        file: made, and set to EPOCH_S, where it does not exist.
    """

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            # A view of doubles writes all eight bytes at once: nobody reads half of a time.
            self._seconds = memoryview(mmap.mmap(opened.fileno(), 8)).cast("d")
        if self._seconds[0] == 0.0:
            self._seconds[0] = EPOCH_S

    def __call__(self) -> float:
        """Return the time."""
        return self._seconds[0]

    def set(self, seconds: float) -> None:
        """Set it."""
        self._seconds[0] = seconds
