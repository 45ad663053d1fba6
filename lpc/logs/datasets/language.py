"""The language of a text, by `py3langid` (chosen: no model download, numpy only, about 0.2 ms a text)."""

from functools import cache
from typing import Any, Final

from py3langid.langid import MODEL_FILE, LanguageIdentifier

CHARACTERS: Final = 1000
"""Looked at: enough to tell."""
CONFIDENT: Final = 0.9
UNDETERMINED: Final = "und"
"""ISO 639-2's code for a language that is not determined."""


def language_of(text: str) -> str:
    """Return the ISO 639-1 code of the text's language, or `und` where its probability is below 0.9."""
    language, probability = _identifier().classify(text[:CHARACTERS])
    return str(language) if probability >= CONFIDENT else UNDETERMINED


@cache
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
