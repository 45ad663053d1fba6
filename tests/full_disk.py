"""A disk without space, see the fixture `small_disk`."""

import contextlib
from pathlib import Path


def fill(disk: Path) -> Path:
    """Write a file that takes the rest of a disk; return it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast
