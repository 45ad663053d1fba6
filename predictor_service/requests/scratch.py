"""The sidecar's folder for files of tokenizers: uploads, and what the loading processes return.

A sidecar that is killed cannot delete its folder. So each holds a lock on its own, and deletes those without a lock when it
starts.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PREFIX: Final = "lpc-tokenizers-"


class Scratch:
    """A folder below the system's folder for temporary files, made when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._folder: Path | None = None
        self._held = -1
        self._closed = False
        _sweep(Path(tempfile.gettempdir()))

    def folder(self) -> Path:
        """Return the folder. Raises OSError: it cannot be made, or the sidecar is stopping."""
        with self._guard:
            if self._closed:
                raise OSError("the sidecar is stopping")
            while self._folder is None or not self._folder.is_dir():
                self._release()
                folder = Path(tempfile.mkdtemp(prefix=PREFIX))
                held = _lock(folder)
                if held is not None:
                    self._folder, self._held = folder, held
            return self._folder

    def close(self) -> None:
        """Delete the folder. Later calls of :meth:`folder` raise."""
        with self._guard:
            self._closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        if self._held >= 0:
            os.close(self._held)
        self._folder, self._held = None, -1


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder of this user; None: it is held, gone, or another user's."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(held)
        if found.st_uid != os.geteuid():
            raise PermissionError
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(held).st_nlink:  # deleted before it was locked
            raise FileNotFoundError
    except OSError:
        os.close(held)
        return None
    return held


def _sweep(parent: Path) -> None:
    """Delete the folders of this user's sidecars that do not run."""
    for folder in parent.glob(f"{PREFIX}*"):
        held = _lock(folder)
        if held is None:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
        log.info("deleted %s, which a killed sidecar has left", folder)
