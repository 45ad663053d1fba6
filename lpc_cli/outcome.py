"""Results and errors of commands.

Exit codes:

- 0: success. A server that Ctrl-C or SIGTERM ended has drained.
- 1: failure. This includes an input that is missing, empty or unreadable, a place that cannot be written, a service that does
  not answer, and a check of `lpc doctor` that fails.
- 2: an option, an argument or a setting is invalid, alone or for this input. A settings file counts as settings.
- 3: `lpc why --fail-on` found causes, or with `--repair` rules that win as much.
- 130, 143: Ctrl-C or SIGTERM ended the command.
"""

import contextlib
import errno
import json
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from lpc.errors import LpcError, UsageError
from lpc.files import replaceable, writing_output
from lpc.wire.terminal import shown

FAILURE: Final = 1
USAGE: Final = 2
FINDINGS: Final = 3
FULL: Final = {
    errno.ENOSPC: "free space there, then run it again",
    errno.EDQUOT: "free space there, or raise the quota, then run it again",
    errno.EROFS: "mount it for writing, or name another place",
}
"""Remedies of write errors, which do not always name a file."""


def report(
    measure: Callable[[], dict[str, Any]], output: Path | None, *writes: Path | None, as_json: bool = False
) -> dict[str, Any]:
    """Run a measurement, which may take long, and return its figures.

    Args:
        measure: the measurement.
        output: file for the figures, as JSON; None: no file.
        writes: other files that it writes. All files are checked to be writable first.
        as_json: print the figures to standard output, and what the measurement prints to standard error.
    """
    for file in (output, *writes):
        if file is not None:
            writable(file)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        figures = measure()
    text = json.dumps(_finite(figures), indent=2, allow_nan=False)
    if output is not None:
        with writing_output(output) as written:
            written.write(text.encode() + b"\n")
    if as_json:
        typer.echo(text)
    return figures


def _finite(value: Any) -> Any:
    """Return figures in which null stands for numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def writable(file: Path) -> None:
    """Exit with one line if a file cannot be written. Its folder must exist: a new one may be a mistyped name."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        if (target := replaceable(file)) is None:
            if not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, "Permission denied")
            return
        if not target.parent.exists():
            fail(f"cannot write {file}: there is no folder {target.parent}: create it, or name another")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror or type(error).__name__}")


def end_with(error: Exception) -> NoReturn:
    """Exit with one line for an error. Raises a closed pipe again, which Typer handles."""
    if isinstance(error, LpcError):
        fail(str(error), USAGE if isinstance(error, UsageError) else FAILURE)
    if isinstance(error, OSError):
        if error.errno == errno.EPIPE:
            raise error
        if error.filename is not None or error.errno in FULL:
            reason = error.strerror or type(error).__name__
            remedy = f": {FULL[error.errno]}" if error.errno in FULL else ""
            fail(f"{error.filename}: {reason}{remedy}" if error.filename is not None else reason + remedy)
    last = traceback.extract_tb(error.__traceback__)[-1]
    fail(f"internal error: {type(error).__name__} at {last.filename}:{last.lineno}; `lpc --debug ...` shows the traceback")


def note(message: str) -> None:
    """Print a message to standard error, on one line. It may quote what a server sent."""
    typer.echo(f"lpc: {shown(message)}", err=True)


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Print a message to standard error and exit."""
    note(message)
    raise SystemExit(code)
