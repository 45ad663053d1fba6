"""The console for tables."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 160
"""Columns if the output is not a terminal; wide enough for every table."""


def console() -> "Console":
    """Return a console with the width of the terminal, or with WIDTH columns."""
    from rich.console import Console  # here, because all commands import this module when they start

    return Console() if sys.stdout.isatty() else Console(width=WIDTH)
