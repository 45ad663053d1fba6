"""How a command ends: its figures in a file, or one line on standard error and exit code 2."""

import errno
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import typer

from lpc.errors import LpcError

Result = TypeVar("Result")

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of writing that name no file."""


def or_fail(action: Callable[[], Result]) -> Result:
    """Return what an action returns; what a user can mend is said in one line."""
    try:
        return action()
    except LpcError as error:
        fail(str(error))


def report(measure: Callable[[], dict[str, Any]], json_file: Path | None, *writes: Path | None) -> dict[str, Any]:
    """Return the figures of a measurement; write them to a file, if one is named.

    Args:
        measure: takes its time.
        json_file: for the figures.
        writes: other files that it writes. Whether all of them can be written is found out before it begins.
    """
    for file in (json_file, *writes):
        if file is not None:
            _writable(file)
    figures = or_fail(measure)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def _writable(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror or type(error).__name__}")


def file_trouble(error: OSError) -> str | None:
    """Return what is wrong with a file or its disk, for a user; None where the error is not of that kind."""
    if error.filename is None and error.errno not in FULL:
        return None
    said = error.strerror or type(error).__name__
    return f"{error.filename}: {said}" if error.filename is not None else said


def fail(message: str) -> NoReturn:
    """Say why on standard error and end with exit code 2."""
    typer.echo(f"lpc: {message}", err=True)
    raise SystemExit(2)
