"""Files that are read again when they change: certificates, tokens and keys."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lpc.errors import LpcError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Watched(Generic[T]):
    """What files hold.

    Args:
        paths: of the files.
        read: returns what they hold; raises LpcError if they cannot be used.
        what: they are, for the log.

    Attributes:
        current: what was read last and could be used.

    Raises:
        LpcError: they cannot be used now.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], what: str) -> None:
        self._paths = paths
        self._read = read
        self._what = what
        self._seen: object = self._state()
        self.current = read()

    def refresh(self) -> bool:
        """Look at the files; return whether new ones were taken. Wrong ones are reported once per change, and the old stay."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            found = self._read()
        except LpcError as error:
            log.error("the new %s not used: %s", self._what, error)
            return False
        if self._state() != state:  # written while they were read: certificate and key may not be one pair
            self._seen = None
            return False
        self.current = found
        log.info("the new %s in use", self._what)
        return True

    def _state(self) -> object:
        states: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                states.append(None)
            else:
                states.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return states
