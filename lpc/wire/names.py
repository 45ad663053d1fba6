"""Names that callers send and others see: of served models, categories, conversations."""

from typing import Final

MAX_NAME: Final = 256
"""Largest number of characters of a name."""


def is_name(text: str) -> bool:
    """Return whether a text may be a name: at most MAX_NAME characters, all printable."""
    return len(text) <= MAX_NAME and text.isprintable()


def as_name(text: str, most: int = MAX_NAME) -> str:
    """Return a text with `?` for each character that is not printable, cut to ``most`` characters."""
    text = text[:most]
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)
