"""Files that readers see whole or not at all, also after a crash, and that several processes may change."""

import contextlib
import fcntl
import fnmatch
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from lpc.errors import LpcError

STALE_S: Final = 600.0
"""Age from which a temporary file counts as left by a killed process, compared with one that was written just now."""
LOCK_S: Final = 10.0
"""Longest wait for another process that changes the same file."""
_RETRY_S: Final = 0.01
_STREAMS: Final = ("/dev/std", "/dev/fd/", "/proc/")
"""Names of streams that are open already, where others may write as well."""
MOUNTS: Final = Path("/proc/self/mountinfo")
_PARTIAL: Final = re.compile(r"\.(.+)\.[0-9a-f]{16}")


class LockedError(LpcError):
    """Another process holds the lock of a file."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` at the end, after fsync. Creates the folder if it is missing.

    The name is random because containers that share the folder over a network may have equal process ids. Temporary files that
    killed processes have left for the same path are removed first, because they may be what fills the disk.

    Raises:
        OSError: with ``path`` as its file. A file that exists is then unchanged.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with naming(path, instead_of=partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        try:
            yield partial
            sync(partial)
            partial.replace(path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Name ``path`` in each OSError that names no file, as of a full disk, or the temporary file or folder ``instead_of``."""
    try:
        yield
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is None or (instead_of is not None and (named == instead_of or instead_of in named.parents)):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def writing(path: Path, mode: int = 0o640) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` at the end, after fsync. ``mode`` sets its permissions."""
    with replacing(path) as partial, os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        yield file


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file's text. Raises OSError."""
    with writing(path, mode) as file:
        file.write(text.encode())


def replaceable(path: Path) -> Path | None:
    """Return the file that takes a command's output: ``path``, or the one that its symbolic links lead to.

    None: no file can replace it, because it is a pipe, a device, an open stream such as /dev/stdout, or a file that is mounted
    into a container. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if str(path.absolute()).startswith(_STREAMS) or (path.exists() and not path.is_file()) or _is_mounted(target):
        return None
    return target


def _is_mounted(path: Path) -> bool:
    with contextlib.suppress(OSError):
        escaped = str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
        return any(line.split(" ")[4] == escaped for line in MOUNTS.read_text(errors="surrogateescape").splitlines())
    return False


@contextmanager
def writing_output(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for the output of a command; a file that exists is replaced at the end, and keeps its permissions.

    Raises:
        OSError: with ``path`` as its file. A file that exists is then unchanged.
    """
    with naming(path):
        target = replaceable(path)
        if target is None:
            with path.open("wb") as file:
                yield file
            return
    with naming(path, instead_of=target), replacing(target) as partial:
        with partial.open("xb") as file:
            yield file
        with contextlib.suppress(FileNotFoundError):
            partial.chmod(stat.S_IMODE(target.stat().st_mode))


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, names: str, *, older_s: float = STALE_S) -> None:
    """Remove temporary files that killed writers have left. Raises OSError.

    A file from the future was written before the clock was set back, and is removed as well.

    Args:
        names: name of the files that were to be replaced, or a pattern.
        older_s: age from which a file counts as left, in seconds; negative if there can be no other writer: all of them.
    """
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if _is_partial(entry.name, names)]
    if not found:
        return
    probe = folder / f".{secrets.token_hex(8)}"  # its time is the file server's, whose clock may differ
    try:
        probe.touch(exist_ok=False)
        now = probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
    for path in found:
        with contextlib.suppress(FileNotFoundError):  # another writer has removed it
            if abs(now - path.stat().st_mtime) > older_s:
                path.unlink()


def _is_partial(name: str, names: str) -> bool:
    found = _PARTIAL.fullmatch(name)
    return found is not None and (found[1] == names or fnmatch.fnmatchcase(found[1], names))


@contextmanager
def locked(path: Path, wait_s: float = LOCK_S) -> Iterator[None]:
    """Hold the lock of a file within the block: nobody else changes it between a read and a write.

    The lock is an empty file in the same folder, ``.<name>.lock``. The system releases the lock if the process dies.

    Raises:
        LockedError: another process holds the lock for longer than ``wait_s``.
        OSError: the lock cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        _lock(file.fileno(), f"another process changes {path}: wait for it, or end it", wait_s)
        yield


@contextmanager
def owned(folder: Path, wait_s: float = LOCK_S) -> Iterator[None]:
    """Hold the lock of a folder within the block: no other process owns it. Files in it have locks of their own.

    Raises:
        LockedError: another process owns the folder for longer than ``wait_s``.
        OSError: the folder cannot be created or locked.
    """
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, f"another process uses the folder {folder}", wait_s)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, message: str, wait_s: float) -> None:
    """Lock an open file or folder; the system releases it if the process dies. Raises LockedError and OSError."""
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise LockedError(message) from None
            time.sleep(_RETRY_S)
        else:
            return
