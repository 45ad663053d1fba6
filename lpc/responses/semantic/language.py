"""The language of a question by its script: entries of one language are never candidates for another's."""

from typing import Final, Literal, TypeAlias

Language: TypeAlias = Literal["zh", "en", "other"]

CHINESE: Final = 0.2
"""Share of Han characters among the letters from which a text counts as Chinese: product names in it are Latin."""
ENGLISH: Final = 0.97
"""Share of ASCII letters from which a text counts as English: other languages in Latin script use accents, English hardly.
Without any it counts as English: two languages in one partition are what an encoder for many languages is made for."""


def language_of(text: str) -> Language:
    """Return "zh", "en" or "other" by the script of a text's letters; "other" where it has none, and for Japanese."""
    han = ascii_letters = kana = letters = 0
    for character in text:
        if not character.isalpha():
            continue
        letters += 1
        if character.isascii():
            ascii_letters += 1
        elif "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf":
            han += 1
        elif "\u3040" <= character <= "\u30ff":
            kana += 1
    if not letters:
        return "other"
    if han >= CHINESE * letters and not kana:
        return "zh"
    return "en" if ascii_letters >= ENGLISH * letters else "other"
