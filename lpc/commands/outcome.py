"""How a command ends: its figures in a file, or one line on standard error.

Exit codes: 0, it did what was asked; 1, it failed; 2, an option, an argument or a setting cannot be used as given.
"""

import contextlib
import errno
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from lpc.errors import LpcError, UsageError

FAILURE: Final = 1
USAGE: Final = 2
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of writing that name no file."""


def report(
    measure: Callable[[], dict[str, Any]], output: Path | None, *writes: Path | None, as_json: bool = False
) -> dict[str, Any]:
    """Return the figures of a measurement; write them to a file, if one is named.

    Args:
        measure: takes its time.
        output: file for the figures.
        writes: other files that it writes. Whether all of them can be written is found out before it begins.
        as_json: print the figures to standard output; what the measurement prints goes to standard error.
    """
    for file in (output, *writes):
        if file is not None:
            _writable(file)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        figures = measure()
    text = json.dumps(figures, indent=2)
    if output is not None:
        output.write_text(text + "\n")
    if as_json:
        typer.echo(text)
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


def end_with(error: Exception) -> NoReturn:
    """End with an error's line and exit code. Raises the error again if its writer must handle it: a closed pipe."""
    if isinstance(error, LpcError):
        fail(str(error), USAGE if isinstance(error, UsageError) else FAILURE)
    if isinstance(error, OSError):
        if error.errno == errno.EPIPE:
            raise error
        if error.filename is not None or error.errno in FULL:
            reason = error.strerror or type(error).__name__
            fail(f"{error.filename}: {reason}" if error.filename is not None else reason)
    last = traceback.extract_tb(error.__traceback__)[-1]
    fail(f"internal error: {type(error).__name__} at {last.filename}:{last.lineno}; `lpc --debug ...` shows the traceback")


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Print why on standard error and end."""
    typer.echo(f"lpc: {message}", err=True)
    raise SystemExit(code)
