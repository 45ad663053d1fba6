"""Language detection by `py3langid`, which needs only numpy and no model download, and takes about 0.2 ms per text."""

from functools import cache
from typing import Any, Final

from py3langid.langid import MODEL_FILE, LanguageIdentifier

CHARACTERS: Final = 1000
"""Number of characters to classify."""
CONFIDENT: Final = 0.9
UNDETERMINED: Final = "und"
"""ISO 639-2's code for an undetermined language."""


def language_of(text: str) -> str:
    """Return the ISO 639-1 code of the text's language, or `und` if its probability is below 0.9."""
    language, probability = _identifier().classify(text[:CHARACTERS])
    return str(language) if probability >= CONFIDENT else UNDETERMINED


@cache
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
