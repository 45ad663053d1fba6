"""Names that callers send and others see: of served models, categories, conversations."""

from typing import Final

from lpc.wire.terminal import shown

MAX_NAME: Final = 256
"""Largest number of characters of a name."""


def is_name(text: str) -> bool:
    """Return whether a text may be a name: at most MAX_NAME characters, all printable."""
    return len(text) <= MAX_NAME and text.isprintable()


def as_name(text: str) -> str:
    """Return a name for a text: what is not printable is escaped, and the end of a long text is left out."""
    return shown(text[:MAX_NAME])[:MAX_NAME]
