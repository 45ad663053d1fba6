"""The file in which a sidecar keeps what it has learnt of returns: NumPy arrays, numbers and digests only."""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = dict[str, NDArray[Any]]


def write(path: Path, state: State) -> None:
    """Write a state, whole or not at all; its folder is made if need be. Raises OSError."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **state)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def read(path: Path) -> State | None:
    """Return a kept state; None where there is no file. Raises OSError, ValueError and whatever a damaged archive makes."""
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, Mapping):
                raise ValueError("not an archive of arrays")
            return dict(arrays)
    except FileNotFoundError:
        return None
