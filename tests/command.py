"""Runs the `lpc` command in this process and returns its output as bytes and its exit code."""

import logging
from typing import NamedTuple

from typer.testing import CliRunner

from lpc_cli.cli import app


class Done(NamedTuple):
    """Output and exit code."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        """Standard output as text."""
        return self.stdout.decode()

    @property
    def err(self) -> str:
        """Standard error as text."""
        return self.stderr.decode()


def lpc(*words: str, stdin: bytes = b"", **env: str | None) -> Done:
    """Run it with these variables (None: unset). Restore the log's handlers and LPC_CONFIG afterwards.

    Raises all exceptions except SystemExit.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        result = CliRunner().invoke(app, words, input=stdin, env={"LPC_CONFIG": None, **env})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)
