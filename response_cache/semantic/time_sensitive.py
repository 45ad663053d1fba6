"""Questions whose answers change with time: "latest", "today", "current price", 最新, 现在, relative dates.

The words are in `time_words.json`. Code and quotations do not count, because they are what a question is about. A word that is
part of an identifier, such as `NOW()` or `nginx:latest`, does not count either. The rule errs towards "time-sensitive", which
costs hits and never an outdated answer. A question can be outdated without such a word: "Who is the mayor?".
"""

import json
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "time_words.json"
ENDS: Final = 500
"""Characters at the beginning and at the end of a text that are read. Between them lies what a user has pasted."""
_QUOTED: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]{1,400}\"|(?<!\w)'[^'\n]{1,400}'(?!\w)"
    r"|\u201c[^\u201d\n]{1,400}\u201d|\u2018[^\u2019\n]{1,400}\u2019|「[^」\n]{1,400}」|『[^』\n]{1,400}』|《[^》\n]{1,100}》|https?://\S+",
    re.DOTALL,
)


def time_sensitive(text: str) -> bool:
    """Return whether the answer to a question changes within days."""
    text = _ends(unicodedata.normalize("NFKC", _ends(text)))
    asked = _QUOTED.sub(" ", text)
    if not any(map(str.isalnum, asked)):
        asked = text  # all of it is quoted
    words, others = _patterns()
    return words.search(others.sub(" ", asked.replace("\u2019", "'"))) is not None


def _ends(text: str) -> str:
    return text if len(text) <= 2 * ENDS else f"{text[:ENDS]}\n{text[-ENDS:]}"


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the words, and what contains one of them and means something else."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    english = rf"(?<![\w.$@#/\\:=-])(?:{'|'.join(found['english'])})(?![\w(=/\\]|\.\w|-\w|\s*\(\))"
    return (
        re.compile("|".join([english, *found["chinese"]]), re.IGNORECASE),
        re.compile("|".join(found["not"]), re.IGNORECASE),
    )
