"""Atomic writes: readers see the old file or the whole new one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` at the end. Creates the folder if it is missing.

    The name is random because containers that share the folder over a network may have equal process ids.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, mode: int = 0o640) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` at the end, after fsync. ``mode`` sets its permissions."""
    with replacing(path) as partial, os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
