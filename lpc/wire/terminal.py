"""The terminal that tables are printed to."""

import sys

from rich.console import Console

WIDTH = 160
"""Columns where the output is not a terminal: a file or a log has no edge at which a table must be cut."""


def console() -> Console:
    """Return a console as wide as the terminal, or wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)
