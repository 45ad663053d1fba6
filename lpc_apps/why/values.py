"""Texts as tokens that show what kind of value changes: a time, an id, a number, white space, or a word.

A difference of two texts is a list of edits. Only the tokens that differ belong to an edit, so the text behind a time stamp is
still common to both.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final, NamedTuple

from lpc_apps.why.dates import TIME, UNITS

_ID: Final = r"""
    (?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![a-z0-9:])
  | (?-i:(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])[A-Za-z0-9+/]{20,}={1,2}(?![\w=]))
  | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
  | (?-i:(?=[\w-]*[A-Z])(?=[\w-]*[a-z])(?=[\w-]*\d)[A-Za-z0-9_-]{21}(?![\w-]))
  | (?=[a-z0-9_-]*\d)(?=[a-z0-9_-]*[a-z])[a-z0-9]+(?:[_-][a-z0-9]+)*[_-][a-z0-9]{6,}
  | (?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}(?![a-z0-9])
  | (?=[a-z0-9]*\d)(?=[a-z0-9]*[a-z])[a-z0-9]{16,}
  | \d{17,}(?![a-z0-9])
"""
_CODE: Final = r"""
    (?=[a-z0-9]{5,}) (?:[a-z]+\d+[a-z]|\d+[a-z]+\d)[a-z0-9]*
  | (?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{5,}(?![a-z0-9])
  | (?<=[.=_:\#-])(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{3,4}(?![a-z0-9])
"""
"""Letters and digits in turn, or hexadecimal digits: an id if another one stands in its place, else a word with a number."""
_HAN: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without blanks between words: each character is a token."""
_TOKEN: Final = re.compile(
    rf"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)|(?P<time>(?<![a-z0-9_])(?<!\d\.)(?:{TIME}))|(?P<id>(?<![a-z0-9])(?:{_ID}))"
    rf"|(?P<code>(?<![a-z0-9])(?:{_CODE}))|(?P<number>\d+(?:[.,](?!(?=\d*[a-f])[0-9a-f]{{3,4}}(?![a-z0-9]))\d+)*)"
    rf"|(?P<space>\s+)|(?P<word>[^\W\d{_HAN}]+|.)",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_ALNUM: Final = re.compile(r"[A-Za-z0-9]+")
_CONNECTS: Final = frozenset("._-:=")
_WORDY: Final = re.compile(r"[A-Za-z]{4}")
_SPACES: Final = re.compile(r"\s+")
_APART: Final = r"""\s"'{}\[\](),;=<>\u3000-\u9fff\uf900-\ufaff\uff00-\uff65"""
_WITH_DIGIT: Final = re.compile(f"[^{_APART}\\d]*\\d[^{_APART}]*")
_DIGIT: Final = re.compile(r"\d")
_SHORT: Final = re.compile(r"(?<!9)99?(?!9)")
_NAME: Final = re.compile(rf"(?:[A-Za-z]*[^\x00-\x7f\s\d{UNITS}][^\x00-\x40\s\d]*|[A-Za-z]{{3,}})\.?")
UNICODE: Final = "Unicode form"
"""Pattern of a text whose characters are written in another form: all of it is replaced."""
_HALF: Final = re.compile(r"\b[AP]M\b", re.IGNORECASE)
"""Halves of a day: times before and after noon have one form."""
_NANOID: Final = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9_-]{21}")
_LONG: Final = 40
"""Characters of a pattern."""
_MOST_TOKENS: Final = 3_000
"""Tokens that differ in two texts, above which the difference is one."""
_LONGEST_VALUE: Final = 64
"""Characters of the longest time or id."""
_MOST_BRACES: Final = 8
_DECODER: Final = json.JSONDecoder()
ALIKE: Final = 0.5
"""Share of equal tokens from which on two lines are the same line with edits."""

Value = str
"""``time``, ``id``, ``number``, ``email``, ``space``, ``keys`` of JSON in another order, whole ``lines``, other ``text``."""


class Token(NamedTuple):
    """A piece of a text. ``value``: its kind, one of `Value`; ``word`` for a word or sign."""

    text: str
    value: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters [start, end) of a text that another text has not; there are ``other`` characters in their place.

    Attributes:
        value: kind of what changes.
        pattern: its form, without its text: ``9999-99-99``.
    """

    start: int
    end: int
    other: str
    value: Value
    pattern: str


@lru_cache(maxsize=64)  # a line is compared with several others in a row
def tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text; joined they are the text."""
    return tuple(Token(match[0], match.lastgroup or "word") for match in _TOKEN.finditer(text))


@lru_cache(maxsize=100_000)
def masked(text: str) -> str:
    """Return a text without words with digits and white space: equal for texts that differ in times, ids or numbers only."""
    return "".join(_WITH_DIGIT.sub("<>", unicodedata.normalize("NFC", text)).split())


def normal(text: str) -> str:
    """Return a text in Unicode's normal form C, with single spaces."""
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip()


def pattern_of(text: str, value: Value) -> str:
    """Return the form of a value: digits become 9, words of times `Name`, ids x, and other text is not shown."""
    if value == "time":
        shown = _HALF.sub("AM", _NAME.sub("Name", text))
        return _SHORT.sub("99", _DIGIT.sub("9", shown))[:_LONG]
    if value == "number":
        return "9"
    if value == "id":
        return "x" if _NANOID.fullmatch(text) or text.endswith("=") else re.sub(r"[0-9A-Za-z]+", "x", text)[:_LONG]
    return {"space": "white space", "email": "e-mail address"}.get(value, "text")


@lru_cache(maxsize=4096)
def edits(text: str, other: str) -> tuple[Edit, ...]:
    """Return what ``text`` has in other characters than ``other``, in order. Equal texts have no edits."""
    if text == other:
        return ()
    if unicodedata.normalize("NFC", text) == unicodedata.normalize("NFC", other):
        return (Edit(0, len(text), other, "space", UNICODE),)
    found: list[Edit] = []
    start = other_start = 0
    while (json_found := _other_keys(text, start, other, other_start)) is not None:
        at, end, other_at, other_end = json_found
        found += _moved(_line_edits(text[start:at], other[other_start:other_at]), start)
        found.append(Edit(at, end, other[other_at:other_end], "keys", "JSON"))
        start, other_start = end, other_end
    found += _moved(_line_edits(text[start:], other[other_start:]), start)
    return tuple(found)


def _moved(found: list[Edit], by: int) -> list[Edit]:
    return [replace(edit, start=edit.start + by, end=edit.end + by) for edit in found]


def _other_keys(text: str, start: int, other: str, other_start: int) -> tuple[int, int, int, int] | None:
    """Return where two texts have equal JSON with its keys in another order, around their first difference."""
    first = common(text[start:], other[other_start:])
    at = first + 1
    for _ in range(_MOST_BRACES):
        at = text.rfind("{", start, start + at) - start
        if at < 0:
            return None
        try:
            mine, end = _DECODER.raw_decode(text, start + at)
            theirs, other_end = _DECODER.raw_decode(other, other_start + at)
        except (ValueError, RecursionError):
            continue
        if mine == theirs and _SPACES.sub("", text[start + at : end]) != _SPACES.sub("", other[other_start + at : other_end]):
            return start + at, end, other_start + at, other_end
    return None


def common(a: str, b: str) -> int:
    """Return the characters of two texts up to the first difference."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _line_edits(text: str, other: str) -> list[Edit]:
    """Return edits of whole lines where lines do not correspond, and of tokens within those that do."""
    if text == other:
        return []
    if normal(text) == normal(other):
        return _token_edits(text, other)
    a, b = text.splitlines(keepends=True), other.splitlines(keepends=True)
    found: list[Edit] = []
    at, done = 0, 0
    # The last line has no end, so that ends are compared apart.
    kept, others = ([line.rstrip("\r\n") for line in lines] for lines in (a, b))
    for code, b1, b2, a1, a2 in SequenceMatcher(None, others, kept, autojunk=False).get_opcodes():
        at += sum(map(len, a[done:a1]))
        done = a1
        if code == "equal":
            place = at
            for one, two in zip(a[a1:a2], b[b1:b2], strict=True):
                found += _moved(_token_edits(one, two), place) if one != two else []
                place += len(one)
            continue
        own, theirs = "".join(a[a1:a2]), "".join(b[b1:b2])
        if normal(own) == normal(theirs) or (
            a2 - a1 == b2 - b1 and all(_alike(one, two) for one, two in zip(a[a1:a2], b[b1:b2], strict=True))
        ):
            found += _moved(_token_edits(own, theirs), at)
        else:
            found.append(Edit(at, at + len(own), theirs, "lines", "lines"))
    return list(_with_ends(found))


def _with_ends(found: list[Edit]) -> Iterator[Edit]:
    """Yield edits; the end of the line before other lines is one edit with them."""
    before: Edit | None = None
    for edit in found:
        if before is not None and before.value == "space" and edit.value == "lines" and before.end == edit.start:
            before = Edit(before.start, edit.end, before.other + edit.other, "lines", "lines")
            continue
        if before is not None:
            yield before
        before = edit
    if before is not None:
        yield before


def _alike(line: str, other: str) -> bool:
    if masked(line) == masked(other) or _shape(line) == _shape(other):
        return True
    a, b = tokens(line), tokens(other)
    # Equal ends count as they are: a matcher takes the square of their length.
    start = next((at for at, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b)))
    rest = min(len(a), len(b)) - start
    end = next((at for at in range(rest) if a[-1 - at] != b[-1 - at]), rest)
    between = SequenceMatcher(None, a[start : len(a) - end], b[start : len(b) - end], autojunk=False)
    equal = start + end + sum(block.size for block in between.get_matching_blocks())
    return 2 * equal >= ALIKE * (len(a) + len(b))


def _shape(line: str) -> list[str]:
    """Return the tokens of a line without its times and ids: a line may consist of a date alone."""
    return [token.value if token.value in ("time", "id") else token.text for token in tokens(line)]


def _token_edits(text: str, other: str) -> list[Edit]:
    start = _before(text, common(text, other))
    end = min(_common_end(text, other), len(text) - start, len(other) - start)
    end = len(text) - _after(text, len(text) - end)
    a, b = tokens(text[start : len(text) - end]), tokens(other[start : len(other) - end])
    if max(len(a), len(b)) > _MOST_TOKENS:
        return [Edit(start, len(text) - end, other[start : len(other) - end], "text", "text")]
    found: list[Edit] = []
    for code, a1, a2, b1, b2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if code != "equal":
            found += _edits(start + sum(len(token.text) for token in a[:a1]), a[a1:a2], b[b1:b2])
    return list(_joined(found, text))


def _before(text: str, at: int) -> int:
    """Return the start of a word so far before a place that no value reaches over it."""
    at = max(at - _LONGEST_VALUE, 0)
    return 0 if not at else text.rfind(" ", 0, at) + 1


def _after(text: str, at: int) -> int:
    found = text.find(" ", at + _LONGEST_VALUE)
    return len(text) if found < 0 else found


def _common_end(text: str, other: str) -> int:
    return common(text[::-1], other[::-1])


def _edits(start: int, own: Sequence[Token], other: Sequence[Token]) -> Iterator[Edit]:
    """Yield the edits of a span: one per token if the tokens correspond, else one."""
    if len(own) == len(other) and all(a.value == b.value != "word" for a, b in zip(own, other, strict=True)):
        for a, b in zip(own, other, strict=True):
            if a != b:
                value = _value_of_codes(a.text, b.text) if a.value == "code" else a.value
                yield Edit(start, start + len(a.text), b.text, value, pattern_of(a.text, value))
            start += len(a.text)
        return
    kinds = _kinds([*own, *other])
    shown = _kinds(own) - {"space"} or kinds - {"space"}
    text, rest = "".join(token.text for token in own), "".join(token.text for token in other)
    if kinds == {"space"}:
        value = "space"
    elif shown <= {"time", "number"} and "time" in shown and "word" not in kinds:
        value = "time"
    elif kinds & {"id"} and (kinds <= {"id", "number", "space"} or _same_form(text, rest)):
        value = "id"
    elif shown == {"number"} and kinds <= {"number", "space"}:
        value = "number"
    else:
        value = "text"
    yield Edit(start, start + len(text), rest, value, pattern_of(text, value))


def _kinds(span: Sequence[Token]) -> set[str]:
    """Return the kinds of tokens. The signs inside an id count with it."""
    found = {("word" if _WORDY.search(token.text) else "id") if token.value == "code" else token.value for token in span}
    words = {token.text for token in span if token.value == "word"}
    return found - {"word"} if "id" in found and words <= _CONNECTS else found


def _same_form(text: str, other: str) -> bool:
    return len(text) == len(other) and all(map(_ALNUM.fullmatch, (text, other)))


def _value_of_codes(text: str, other: str) -> Value:
    """Return the kind of letters and digits in the place of others: ``iphone15pro`` and ``iphone16pro`` differ in a number."""
    if _DIGIT.sub("", text) == _DIGIT.sub("", other):
        return "number"
    return "id" if len(text) == len(other) or not (_WORDY.search(text) or _WORDY.search(other)) else "text"


def _joined(found: list[Edit], text: str) -> Iterator[Edit]:
    """Yield edits; two of text that are apart by a few characters are one: changed words with an equal sign between them."""
    before: Edit | None = None
    for edit in found:
        if before is not None:
            between = text[before.end : edit.start]
            if before.value == edit.value == "text" and len(between) <= 3:
                before = Edit(before.start, edit.end, before.other + between + edit.other, "text", "text")
                continue
            yield before
        before = edit
    if before is not None:
        yield before
