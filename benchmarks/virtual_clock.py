"""A virtual clock shared by processes: a benchmark's engine sets it, and its sidecar reads it."""

import mmap
from pathlib import Path
from typing import Final

EPOCH_S: Final = 1.8e9
"""Start of the clock, seconds since the Unix epoch. Times have as many digits as in production."""


class VirtualClock:
    """Seconds since the epoch, in a file of eight bytes that all processes map.

    Args:
        file: created with EPOCH_S if it does not exist.
    """

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            # A view of doubles writes all eight bytes at once, so readers never see a partial value.
            self._seconds = memoryview(mmap.mmap(opened.fileno(), 8)).cast("d")
        if self._seconds[0] == 0.0:
            self._seconds[0] = EPOCH_S

    def __call__(self) -> float:
        """Return the time."""
        return self._seconds[0]

    def set(self, seconds: float) -> None:
        """Set it."""
        self._seconds[0] = seconds
