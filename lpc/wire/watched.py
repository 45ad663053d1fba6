"""Files that are read again when they change: certificates, tokens and keys."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lpc.errors import LpcError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Watched(Generic[T]):
    """The latest valid contents of some files.

    Args:
        paths: the files.
        read: reads and returns the contents; raises LpcError if they are invalid.
        what: name and verb for the log: "certificates are".

    Attributes:
        current: the latest valid contents.

    Raises:
        LpcError: the files are invalid at the start.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], what: str) -> None:
        self._paths = paths
        self._read = read
        self._what = what
        self._seen: object = self._state()
        self.current = read()

    def refresh(self) -> bool:
        """Read the files if they have changed; return whether new contents are used. Invalid ones are logged and ignored."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            found = self._read()
        except LpcError as error:
            log.error("the new %s not used: %s", self._what, error)
            return False
        if self._state() != state:  # changed while being read: certificate and key may not match
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
