"""Files that are seen whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the place of a new file in the folder of ``path``, which replaces ``path`` at the end. Makes the folder.

    The name is random, because several jobs may share the folder over a network, where all have the same process id.
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
    """Yield a new file that replaces ``path`` at the end, when it is on the disk. ``mode``: who may read it."""
    with replacing(path) as partial, os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
