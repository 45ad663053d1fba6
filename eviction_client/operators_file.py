"""The file by which an operator forces LRU in a running engine."""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)


class OperatorsFile:
    """A file that counts while it belongs to the engine's user or to root.

    Its default place is a folder in which every local user can make files, so the owner tells an operator from others. A
    symbolic link counts as the link: its owner chose the name. A file with several names may be a link to another user's.

    Attributes:
        forced: whether it counted at the last :meth:`look`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.forced = False
        self._ignored: tuple[int, int] | None = None
        """Device and inode of the file about which a warning was logged."""

    def look(self) -> None:
        """Look for the file, and log a change."""
        on = self.on()
        if on != self.forced:
            self.forced = on
            what = "exists: the order is LRU" if on else "is gone: the guard chooses the order again"
            logger.warning("learned prefix cache: the file %s %s", self._path, what)

    def on(self) -> bool:
        """Return whether the file exists and counts. Logs once that one does not count. Never raises."""
        try:
            found = os.lstat(self._path)
        except (OSError, ValueError):
            self._ignored = None
            return False
        linked = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
        if found.st_uid in (0, os.geteuid()) and not linked:
            self._ignored = None
            return True
        if self._ignored != (found.st_dev, found.st_ino):
            self._ignored = found.st_dev, found.st_ino
            why = "has several names (hard links)" if linked else f"belongs to user {found.st_uid}"
            logger.warning(
                "learned prefix cache: the file %s is ignored because it %s. Remove it, and create it as root or as the "
                "engine's user (%s)",
                *(self._path, why, os.geteuid()),
            )
        return False
