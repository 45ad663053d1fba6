"""Output for people: the console for tables, and text that others have chosen.

Names of models and clients, messages of servers, file names and labels may contain escape sequences of terminals, line breaks
that forge a line, or characters that reverse the text behind them. They are shown as escapes.
"""

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

WIDTH: Final = 160
"""Columns if the output is not a terminal; wide enough for every table."""
LONGEST: Final = 2000
"""Characters of a text that are shown."""


def shown(text: object) -> str:
    """Return one line of printable characters; others are escaped as in Python, and the end of a long text is left out."""
    whole = str(text)
    line = whole[:LONGEST]
    if not line.isprintable():
        line = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
    return line if len(whole) <= LONGEST else f"{line}... ({len(whole):,} characters)"


def shown_lines(text: str, indent: str = "") -> str:
    """Return lines of printable characters. ``indent`` precedes all but the first, so that they cannot pass for others."""
    return f"\n{indent}".join(map(shown, text.split("\n")))


def console() -> "Console":
    """Return a console with the width of the terminal, or with WIDTH columns. It reads no markup in strings."""
    width = None if sys.stdout.isatty() else WIDTH
    return _console_class()(width=width, markup=False, emoji=False)


@cache
def _console_class() -> "type[Console]":
    from rich.console import Console  # here, because all commands import this module when they start
    from rich.text import Text

    class Terminal(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(shown_lines(text), **options)

    return Terminal
