"""Vetoes: reasons in the words of two similar questions why they must not share an answer.

An encoder puts "turn it on" and "turn it off" at .98, "weather in Paris" and "in London" at .997. A veto adds safety to the
threshold and does not replace it, because it compares words and not meaning. These kinds stop a candidate:

    numbers         different numbers, in digits or words
    negation        different numbers of negators
    antonyms        a word and its opposite
    names           a capitalised or Latin word that the other question lacks
    word_order      the same words in another order
    substitution    all else equal, but different words in one position that are not known synonyms
    length          too long to be compared word by word

Two more are doubts, which lower a candidate's probability (`ranking.py`). On questions of banks and assistants, candidates with
a doubt are right as often as others.

    rewording       different words in several positions, or in one while less is equal
    addition        all else equal, but one question has additional content words
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final, Literal, TypeAlias, cast, get_args

from response_cache.semantic import words as lists

Doubt: TypeAlias = Literal["rewording", "addition"]
Veto: TypeAlias = Literal["numbers", "negation", "antonyms", "names", "word_order", "substitution", "length"]

Language: TypeAlias = Literal["zh", "en", "other"]

CHINESE: Final = 0.2
"""Share of Han characters among the letters from which a text counts as Chinese. Low, because product names are Latin."""
ENGLISH: Final = 0.97
"""Share of ASCII letters from which a text counts as English, since other languages in Latin script use accents. A text without
accents also counts as English: a multilingual encoder can handle two languages in one partition."""

LONGEST: Final = 400
"""Limit in tokens: the vector of a longer text hardly changes with a word, and the time to compare grows quadratically."""
FRAME: Final = 0.5
"""Share of equal tokens from which the differences are examined."""
SAME_FRAME: Final = 0.7
"""Share of equal tokens from which one difference is a substitution. Every pair of opposites in the tests has it."""

_TOKEN: Final = re.compile(
    r"[^\W\d_\u4e00-\u9fff]+(?:['\u2019][^\W\d_]+)?|\d+(?:[.,:]\d+)*|[\u4e00-\u9fff]|[+#%$€£¥]|[<>=!]=?|-(?=\d)"
)
_WORD: Final = re.compile(r"[^\W\d_\u4e00-\u9fff]+(?:['\u2019][^\W\d_]+)?")
_NUMBER: Final = re.compile(r"-?\d+(?:[.,:]\d+)*")
_NUMERAL_ZH: Final = re.compile(f"第?[{lists.NUMERALS_ZH}]+(?=[{lists.MEASURES_ZH}])|[{lists.NUMERALS_ZH}]{{2,}}")
_DIGITS_ZH: Final = str.maketrans("〇零一二两三四五六七八九", "001223456789")
_NEGATORS: Final = lists.NEGATORS | frozenset(lists.NEGATORS_ZH)
_WITHOUT_CONTENT: Final = (lists.FUNCTION | lists.FUNCTION_ZH) - _NEGATORS
"""Words whose position does not matter."""
_A_NOT_A: Final = re.compile(r"([\u4e00-\u9fff])[不没沒]\1")


def veto(question_a: str, question_b: str) -> Veto | None:
    """Return why these questions must not share an answer; None if no rule applies. Symmetric."""
    found = difference(question_a, question_b)
    return None if found in get_args(Doubt) else cast(Veto | None, found)


def difference(question_a: str, question_b: str) -> Veto | Doubt | None:
    """Return how two questions differ: a veto, a doubt, or None. Symmetric."""
    a, b = unicodedata.normalize("NFKC", question_a), unicodedata.normalize("NFKC", question_b)
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    if tokens_a == tokens_b:
        return None
    if max(len(tokens_a), len(tokens_b)) > LONGEST:
        return "length"
    if _numbers(a, tokens_a) != _numbers(b, tokens_b):
        return "numbers"
    negated_a, negated_b = _negated(a, tokens_a), _negated(b, tokens_b)
    if sum(map(_negates, negated_a)) != sum(map(_negates, negated_b)):
        return "negation"
    if _antonyms(a, tokens_a, b, tokens_b):
        return "antonyms"
    if _names(a, tokens_b) or _names(b, tokens_a):
        return "names"
    if _reordered(negated_a, negated_b):
        return "word_order"
    return _edited(tokens_a, tokens_b)


def language_of(text: str) -> Language:
    """Return "zh", "en" or "other" by the script of a text's letters; "other" if it has none, and for Japanese."""
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


def _tokens(text: str) -> list[str]:
    """Return words in lower case, numbers, and Chinese characters one by one."""
    return [_plain(token) for token in _TOKEN.findall(text)]


def _plain(token: str) -> str:
    return token.replace(",", "") if token[0].isdigit() else token.casefold().replace("\u2019", "'")


def _numbers(text: str, tokens: Sequence[str]) -> Counter[str]:
    found = Counter(number.replace(",", "") for number in _NUMBER.findall(text))
    found.update(lists.NUMBER_WORDS[token] for token in tokens if token in lists.NUMBER_WORDS)
    for numeral in _NUMERAL_ZH.findall(text):
        figures = numeral.lstrip("第").translate(_DIGITS_ZH)
        found[{"十": "10", "半": "0.5"}.get(figures, figures)] += 1
    return found


def _antonyms(a: str, tokens_a: Sequence[str], b: str, tokens_b: Sequence[str]) -> bool:
    only_a, only_b = Counter(tokens_a) - Counter(tokens_b), Counter(tokens_b) - Counter(tokens_a)
    if any(lists.opposite(x, y) for x in only_a for y in only_b):
        return True
    if a.isascii() or b.isascii():
        return False
    return any(len(x) > 1 and x in a and y in b and x not in b and y not in a for x, y in lists.OPPOSITES_ZH)


def _names(text: str, others: Sequence[str]) -> bool:
    """Return whether a text has a name that the other lacks: a word capitalised within a sentence, or Latin in Chinese."""
    latin = list(_WORD.finditer(text))
    if not latin:
        return False
    chinese = any("\u4e00" <= character <= "\u9fff" for character in text)
    raised = [match for match in latin if match[0][0].isupper()]
    if not chinese and len(raised) > max(2, 0.6 * len(latin)):
        return False  # a heading or all capitals
    candidates = latin if chinese else raised
    known = set(others) | {lists.stem(word) for word in others} if candidates else set()
    for match in candidates:
        word = match[0].casefold().replace("\u2019", "'")
        begins = not re.search(r"[^\s.?!:;\"'“(\[-]\s*$", text[: match.start()])
        if (begins and not chinese) or word.partition("'")[0] in ("i", "ok") or (not chinese and word in lists.FUNCTION):
            continue
        if word not in known and lists.stem(word) not in known:
            return True
    return False


def _reordered(tokens_a: Sequence[str], tokens_b: Sequence[str]) -> bool:
    """Return whether both have the same content words in another order. The position of a negation counts."""
    a, b = ([token for token in tokens if token not in _WITHOUT_CONTENT] for tokens in (tokens_a, tokens_b))
    if len(a) != len(b):
        return False
    a, b = (["not" if _negates(token) else token for token in tokens] for tokens in (a, b))
    return a != b and Counter(a) == Counter(b)


def _negates(token: str) -> bool:
    if "'" in token:
        return token.endswith("n't") or token.replace("'", "") in _NEGATORS
    return token in _NEGATORS


def _negated(text: str, tokens: Sequence[str]) -> Sequence[str]:
    """Return the tokens of a text without Chinese words that contain a negator but do not negate."""
    if not any(negator in text for negator in lists.NEGATORS_ZH):
        return tokens
    for neutral in lists.NEUTRAL_ZH:
        text = text.replace(neutral, "")
    return _tokens(_A_NOT_A.sub("", text))


def _edited(tokens_a: Sequence[str], tokens_b: Sequence[str]) -> Veto | Doubt | None:
    tokens_a, tokens_b = sorted((list(tokens_a), list(tokens_b)))  # the matcher is not symmetric
    matcher = SequenceMatcher(None, tokens_a, tokens_b, autojunk=False)
    equal = matcher.ratio()
    if equal < FRAME:
        return None
    substituted = added = 0
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        here, there = _content(tokens_a[a0:a1]), _content(tokens_b[b0:b1])
        if kind == "equal" or not (here or there):
            continue
        if not (here and there):
            added += 1
        elif not lists.same_group(here, there):
            substituted += 1
    if substituted == 1 and not added and equal >= SAME_FRAME:
        return "substitution"
    return "rewording" if substituted else "addition" if added else None


def _content(tokens: Sequence[str]) -> list[str]:
    """Return the content words of a run; Chinese characters as one word, because there is no space between words."""
    kept = [token for token in tokens if token.replace("'", "") not in lists.FUNCTION]
    if kept and all("\u4e00" <= token <= "\u9fff" for token in kept):
        joined = "".join(kept)
        return [] if all(character in lists.FUNCTION_ZH for character in joined) else [joined]
    return kept
