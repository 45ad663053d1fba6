"""Folders that a sidecar makes and trusts: who owns them is checked before they are used.

Their default places lie below the system's folder for temporary files, under a name that anyone can guess. A user who makes
such a folder first could put a socket or a tokenizer of their own there.
"""

import os
import stat
import tempfile
from pathlib import Path

from lpc.errors import LpcError


class ForeignFolder(LpcError):
    """Another user made a folder, or may write to it. The message says what to do."""


def make_own(folder: Path) -> None:
    """Make a folder where it is missing, and check that only this user or root can have made it.

    A folder of root's is trusted as it is, like those that a kubelet mounts.

    Raises:
        ForeignFolder: it, or a folder above it below the system's folder for temporary files, is another user's, or is this
            user's and open to all.
        OSError: it cannot be made.
    """
    for one in reversed([one for one in folder.parents if not one.exists()]):
        one.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    shared = Path(tempfile.gettempdir())
    above = [one for one in folder.parents if shared in one.parents]
    for one in (folder, *above):
        _check(one)


def _check(folder: Path) -> None:
    # The link itself as well: its owner can point it elsewhere.
    for found in (folder.lstat(), folder.stat()):
        if found.st_uid not in (os.geteuid(), 0):
            raise ForeignFolder(
                f"{folder} belongs to user {found.st_uid}, not to user {os.geteuid()}: remove it, or choose another folder"
            )
        if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() != 0 and found.st_mode & stat.S_IWOTH:
            raise ForeignFolder(f"every user may write to {folder}: run `chmod o-w {folder}`, or choose another folder")
