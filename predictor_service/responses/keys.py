"""The keys of the response caches, read again when their file changes."""

import logging
from pathlib import Path

from lpc.responses.sealing import KeyFileError, Keyring, read_keys
from lpc.wire.watched import WatchedFiles

log = logging.getLogger(__name__)


class Keys:
    """The keys in force.

    Args:
        path: of the key file.

    Raises:
        KeyFileError: it cannot be used, or `cryptography` is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watched = WatchedFiles([path])
        self.ring: Keyring = read_keys(path)

    def refresh(self) -> bool:
        """Look at the file; return whether it was taken. A wrong one is reported, and the old keys stay."""
        if not self._watched.changed():
            return False
        try:
            ring = read_keys(self._path)
        except KeyFileError as error:
            log.error("the new key file of the response caches is not used: %s", error)
            return False
        if ring.names != self.ring.names:
            log.error("the key file of the response caches has another line `names`: that takes effect with a restart")
            return False
        self.ring = ring
        log.info("the key file of the response caches was read again")
        return True
