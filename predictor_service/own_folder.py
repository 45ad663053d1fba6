"""Creates folders that a sidecar trusts, and checks their owner.

Their default paths are below the system's folder for temporary files and can be guessed. Another user who creates such a folder
first could put a socket or a tokenizer there.
"""

import os
import stat
import tempfile
from pathlib import Path

from lpc.errors import LpcError


class ForeignFolder(LpcError):
    """Another user owns a folder or can write to it. The message contains the remedy."""


def make_own(folder: Path) -> None:
    """Create a folder if it is missing, and check that it belongs to this user or root.

    The mode of a folder of root, like those that a kubelet mounts, is not checked.

    Raises:
        ForeignFolder: another user owns the folder, or a parent of it below the system's folder for temporary files; or this
            user owns it and everyone can write to it.
        OSError: it cannot be created.
    """
    for one in reversed([one for one in folder.parents if not one.exists()]):
        one.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    shared = Path(tempfile.gettempdir())
    above = [one for one in folder.parents if shared in one.parents]
    for one in (folder, *above):
        _check(one)


def _check(folder: Path) -> None:
    # The owner of a symbolic link can change its target, so the link is checked as well.
    for found in (folder.lstat(), folder.stat()):
        if found.st_uid not in (os.geteuid(), 0):
            raise ForeignFolder(
                f"{folder} belongs to user {found.st_uid}, not to user {os.geteuid()}: remove it, or choose another folder"
            )
        if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() != 0 and found.st_mode & stat.S_IWOTH:
            raise ForeignFolder(f"every user can write to {folder}: run `chmod o-w {folder}`, or choose another folder")
