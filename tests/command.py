"""The `lpc` command, called in this process: its output as bytes and its exit code."""

import logging
from typing import NamedTuple

from typer.testing import CliRunner

from lpc.commands.cli import app


class Done(NamedTuple):
    """How it ended."""

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
    """Run it with these variables (None: without), and leave nothing of it in this process: its log's handlers, LPC_CONFIG.

    Raises whatever is not an exit.
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
