"""Finds statements of a changing value in a system prompt: ``Current time: 11:39``, ``x-request-id: 8f3e91aa``.

A statement is a line, or a sentence in a line, that begins with a known label and has a value behind it. Anything else stays:
a date in a rule of the prompt, a value inside JSON, code between fences.

All expressions take time in proportion to the text. They see `places.MOST_CHARS` characters, and of these at most `MOST_FOUND`
candidates with `WINDOW` characters on both sides.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from lpc.requests.repair.places import MOST_CHARS

MOST_FOUND: Final = 256
"""Candidates in one text. Further ones stay as they are."""
MOST_SIGNS: Final = 1024
"""Values behind one sign, and boxes, of which candidates are chosen."""
WINDOW: Final = 240
"""Characters on both sides of a value within which its statement begins and ends."""
_FENCE: Final = "```"


class Statement(NamedTuple):
    """Characters [start, end) of a text, with the line end or blanks that would be left over; ``value``: those of its value.

    ``text``: without these.
    """

    start: int
    end: int
    text: str
    value: tuple[int, int]


_TIMES: Final = tuple(
    re.compile(expression)
    for expression in (
        r":(?<=[0-9]:)[0-9]{2}(?::[0-9]{2})?",
        *(rf"{century}[0-9]{{2}}(?![0-9])(?:[-/.][0-9]{{1,2}}){{0,2}}" for century in ("19", "20")),
        *(rf"\{sign}(?<=[0-9]\{sign})[0-9]{{1,2}}\{sign}(?:[0-9]{{4}}|[0-9]{{2}})(?![0-9])" for sign in "-/."),
        r"1[4-9][0-9]{8}(?:[0-9]{3}|[0-9]{6})?(?![0-9])",  # seconds, milliseconds, microseconds of an epoch
    )
)
"""Parts of a time or date. An expression that begins with one character is found in a tenth of the time of any other."""
_LONGEST_TIME: Final = 24
"""Characters of a time before a part of it."""
_OF_TIME: Final = frozenset("0123456789-/.:T")
_BEHIND_TIME: Final = _OF_TIME | {"Z"}
_AT: Final = re.compile(r"@(?<=[\w.+-]@)[\w-]{1,64}(?:\.[\w-]{1,32}){1,4}")
_NAMES: Final = re.compile(r"(?:[nN]ame|[lL]ocale|[zZ]one)\s?[:=][ \t]{0,2}([^\s<][^\n<]{0,63})")
"""Values behind a label: a name, a locale, a time zone."""
_LONGEST_NAME: Final = 64
_VALUES: Final = tuple(
    re.compile(sign + r"[\"'`]?\s{0,2}[\"'`$]?(?=[^\s<]{0,80}[0-9])[0-9A-Za-z._+/:,-]{1,128}") for sign in ":=>#"
)
"""By the sign before a value."""
_IS: Final = re.compile(r"(?<=\b[iI][dD]) is (?=[^\s<]{0,80}[0-9])[0-9A-Za-z._+/:-]{1,128}")
_OPENING: Final = r"[\s>*#<\[(`_|-]{0,12}(?:(?:the|your|this|my|our|it\sis|it's)\s)?"
TIME_LABEL: Final = re.compile(
    _OPENING
    + r"""(?:
      (?:current(?:ly)?|present|local|server|system|request|session|today)(?:'s)?[\s_-]{1,2}(?:(?:local|utc|system|server|user)[\s_-])?
        (?:date|time|day|datetime|timestamp|clock)
    | today(?:\sis|'s)?\b | now\b | (?:as\sof\snow)\b | right\snow\b
    | date\s?(?:/|and|&)\s?time\b | (?:date|time|datetime|timestamp)\s?[:=>]
    | (?:generated|rendered|sent|received|requested)\s(?:at|on)\b
    | heute | aktuelle[rs]?\s(?:zeit|datum)\b | datum\s?: | uhrzeit | hoy | fecha | hora | date\sdu\sjour | aujourd'hui | oggi
    | 今天|今日|当前|當前|现在|現在|日期|时间|時間|日時|오늘|현재|сегодня|текущ
    )""",
    re.IGNORECASE | re.VERBOSE,
)
ID_LABEL: Final = re.compile(
    _OPENING
    + r"""(?:current[\s_-])?(?:x-)?
    (?:(?:request|session|trace|span|correlation|conversation|message|run|thread|task|chat|invocation|interaction|transaction
       |call|job|client|unique|opc|amzn)[\s_-]{1,2}){0,3}(?:id|uuid|guid|nonce|traceid|traceparent|nonce|salt)\b""",
    re.IGNORECASE | re.VERBOSE,
)
COUNTER_LABEL: Final = re.compile(
    _OPENING
    + r"""(?:current[\s_-])?(?:
      (?:turn|request|message|iteration|attempt|query|call|round)s?(?:[\s_-](?:number|count|counter|no\.?|index|so\sfar))?\s?(?=[:=#>])
    | (?:remaining|used)[\s_-](?:tokens?|context|budget|quota|credits?|calls|requests|turns)
    | (?:tokens?|context|budget|usage|quota|credits?)[\s_-](?:\w{1,12}[\s_-]){0,2}(?:used|left|remaining|consumed|so\sfar)
    | token[\s_-](?:usage|count|budget\sleft)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
USER_LABEL: Final = re.compile(
    _OPENING
    + r"""(?:
      (?:(?:current|end)[\s_-])?(?:user|customer|account|client|member|employee|caller|sender)?[\s_-]?e-?mail\b
    | (?:(?:current|end)[\s_-])?(?:user|customer|account|client|member|employee|caller|sender)\s?(?=[:=])
    | (?:(?:current|end)[\s_-])?(?:user|customer|account|client|member|employee|caller)(?:'s)?[\s_-]?name\b
    | (?:first|last|full)[\s_-]?name\b | (?:user[\s_-])?(?:locale|time[\s_-]?zone)\b
    | (?:logged[\s_-]in|signed[\s_-]in)[\s_-](?:as|user)\b
    | (?:you\sare\s)?(?:talking|speaking|chatting)\s(?:to|with)\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
DIGEST_LABEL: Final = re.compile(
    _OPENING
    + r"""(?:
      x-anthropic-billing-header\b
    | (?:x-)?(?:\w{1,16}[\s_-]){0,3}(?:cch|digest|checksum|hash|sha256|md5|etag|signature|fingerprint|build)\s?(?=[:=>])
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_NEAR_ID: Final = re.compile(r"id|nonce|salt|traceparent")
_NEAR_COUNTER: Final = re.compile(
    r"turn|request|message|iteration|attempt|query|call|round|token|context|budget|usage|quota|credit|used|remaining|left"
)
_NEAR_DIGEST: Final = re.compile(r"cch|digest|checksum|hash|sha256|md5|etag|signature|fingerprint|build|header")
_NEAR: Final = 24
"""Characters before a value in which a word of its label is."""
_NEAR_OF_ID: Final = 12
_BEFORE: Final = re.compile(r"(?<=[^\W\d_)\]\"'])[.!?][ \t]+")
_AFTER: Final = re.compile(r"[.!?\u3002\uff01\uff1f](?=\s+[A-Z<\"'(\[*`-]|\s*$|[^\x00-\x7f])", re.MULTILINE)
_PAIRS: Final = ("()", "[]", "{}")


def times(text: str) -> Iterator[Statement]:
    """Yield statements of the present time."""
    return _statements(text, _timed(text), TIME_LABEL, _any)


def ids(text: str) -> Iterator[Statement]:
    """Yield statements of an id: at least eight letters and digits with a digit, or nine digits."""
    return _statements(text, _valued(text, _NEAR_ID), ID_LABEL, _is_drawn)


def counters(text: str) -> Iterator[Statement]:
    """Yield statements of a counter."""
    return _statements(text, _valued(text, _NEAR_COUNTER), COUNTER_LABEL, _is_number)


def digests(text: str) -> Iterator[Statement]:
    """Yield statements of a digest, such as Claude Code's billing line."""
    return _statements(text, _valued(text, _NEAR_DIGEST), DIGEST_LABEL, _any)


def users(text: str) -> Iterator[Statement]:
    """Yield statements of who the user is: an e-mail address, a name, a locale, a time zone."""
    return _statements(text, _addresses(text), USER_LABEL, _is_address_or_next)


def _any(value: str, between: str) -> bool:
    del between
    return bool(value)


def _is_drawn(value: str, between: str) -> bool:
    del between
    return is_random(value)


def _is_number(value: str, between: str) -> bool:
    del between
    return value[:1].isdigit()


def _is_address_or_next(value: str, between: str) -> bool:
    """Return whether a value is an address, or stands right behind its label. ``between``: the text between both."""
    return "@" in value or not between.strip(" \t:=\"'`$")


def is_random(value: str) -> bool:
    """Return whether a value looks like one that was drawn, and not like a word, a version or a short number."""
    plain = [char for char in value if char.isalnum()]
    digits = sum(char.isdigit() for char in plain)
    return len(plain) >= 8 and digits >= 2 and (digits < len(plain) or digits >= 9)


def _timed(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of times and dates, in order."""
    found = sorted(match.span() for part in _TIMES for match in islice(part.finditer(text, 0, MOST_CHARS), MOST_SIGNS))
    for start, end in found:
        first = start
        while first > max(0, start - _LONGEST_TIME) and text[first - 1] in _OF_TIME:
            first -= 1
        last = end
        while last < min(len(text), end + _LONGEST_TIME) and text[last] in _BEHIND_TIME:
            last += 1
        yield first, last


def _addresses(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of e-mail addresses, and of values behind a name's label, in order."""
    found = [match.span() for match in islice(_AT.finditer(text, 0, MOST_CHARS), MOST_SIGNS)]
    if _NAMES.search(text, 0, MOST_CHARS):
        found += [match.span(1) for match in islice(_NAMES.finditer(text, 0, MOST_CHARS), MOST_SIGNS)]
    for start, end in sorted(found):
        first = start
        while first > max(0, start - _LONGEST_NAME) and (text[first - 1].isalnum() or text[first - 1] in "._+-"):
            first -= 1
        yield first, end


def _valued(text: str, near: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of values behind a sign, or behind "id is", with a word of a label near before them; in order."""
    lower = text[:MOST_CHARS].lower()
    if len(lower) != len(text[:MOST_CHARS]):  # a letter of another script has become two
        lower = text
    within = _NEAR_OF_ID if near is _NEAR_ID else _NEAR
    found = [match.span() for sign in _VALUES for match in islice(sign.finditer(text, 0, MOST_CHARS), MOST_SIGNS)]
    if near is _NEAR_ID and ("id is " in text or "ID is " in text):
        found += [match.span() for match in islice(_IS.finditer(text, 0, MOST_CHARS), MOST_SIGNS)]
    for start, end in sorted(found):
        if near.search(lower, max(0, start - within), start + 1):
            yield start, end


def _statements(
    text: str, found: Iterator[tuple[int, int]], label: re.Pattern[str], fits: Callable[[str, str], bool]
) -> Iterator[Statement]:
    done, fences = 0, None
    for number, (start, end) in enumerate(found):
        if number == MOST_FOUND:
            return
        if start < done:
            continue
        low = _begin(text, start)
        if low is None or not (labelled := label.match(text, low, end)) or labelled.end() > start + 2:
            continue
        value = _value(text, start, end)
        if not fits(text[slice(*value)], text[labelled.end() : value[0]]):
            continue
        if fences is None:
            fences = [fence.start() for fence in re.finditer(_FENCE, text[:MOST_CHARS])]
        if bisect(fences, low) % 2:
            continue
        high = _close(text, value[1])
        if high is None or not _is_balanced(text[low:high]):
            continue
        done = high
        yield _whole(text, low, high, value)


def _begin(text: str, start: int) -> int | None:
    """Return where the line of a place begins, or the sentence; None: too far before it."""
    first = max(0, start - WINDOW)
    line = text.rfind("\n", first, start)
    low = line + 1 if line >= 0 else 0 if first == 0 else None
    sentences = [match.end() for match in _BEFORE.finditer(text, first if low is None else low, start)]
    return sentences[-1] if sentences else low


def _close(text: str, end: int) -> int | None:
    """Return where the sentence of a place ends, or its line; None: too far behind it."""
    line = text.find("\n", end, end + WINDOW)
    high = line if line >= 0 else len(text) if end + WINDOW >= len(text) else None
    sentence = _AFTER.search(text, end, end + WINDOW if high is None else high)
    return sentence.end() if sentence else high


def _value(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of a value without the sign before it."""
    while start < end and not text[start].isalnum():
        start += 1
    if text.startswith("is ", start):
        start += 3
    while end > start and not text[end - 1].isalnum():
        end -= 1
    return start, end


def _is_balanced(text: str) -> bool:
    """Return whether a statement is whole: not a member of JSON, nor an opening tag without its end."""
    if any(text.count(opening) != text.count(closing) for opening, closing in _PAIRS):
        return False
    if text.count('"') % 2 or text.count("`") % 2 or text.lstrip()[:1] in ('"', "{"):
        return False
    return text.count("</") * 2 == text.count("<") == text.count(">") or "<" not in text


def _whole(text: str, low: int, high: int, value: tuple[int, int]) -> Statement:
    """Return a statement with what would be left over of it: the end of its line, or the blanks behind a sentence."""
    start, end = low, high
    begins_line = start == 0 or text[start - 1] == "\n"
    ends_line = end == len(text) or text[end] == "\n"
    if begins_line and ends_line:
        if end < len(text):
            end += 1
        elif start:
            start -= 1
    elif ends_line:
        while start > 0 and text[start - 1] in " \t":
            start -= 1
    else:
        while end < len(text) and text[end] in " \t":
            end += 1
    return Statement(start, end, text[low:high].strip(), value)


_TASK: Final = re.compile(r"[ \t]{0,16}(?:[-*+]|[0-9]{1,4}[.)])[ \t]{1,4}\[[ xX~>-]\][ \t]")
_TITLE: Final = re.compile(r"[ \t]{0,4}(?:#{1,6}[ \t].{0,120}|[^\n]{0,120}:|<[\w-]{1,40}>)[ \t]{0,8}", re.ASCII)
_TAG: Final = re.compile(r"[ \t]{0,4}</?[\w-]{1,40}>[ \t]{0,8}", re.ASCII)
_BOX: Final = re.compile(r"\[[ xX~>-]\]")


def tasks(text: str) -> Iterator[Statement]:
    """Yield lists of tasks with boxes (``- [x] done``), each with the title or the tags around it.

    At most `MOST_FOUND` lines are looked at.
    """
    text, done, lines = text[:MOST_CHARS], 0, 0
    for box in islice(_BOX.finditer(text), MOST_SIGNS):
        start = text.rfind("\n", max(0, box.start() - WINDOW), box.start()) + 1
        if start < done or (not start and box.start() > WINDOW):
            continue
        end = start
        while lines < MOST_FOUND and _TASK.match(text, end):
            lines += 1
            line = text.find("\n", end)
            end = line + 1 if line >= 0 else len(text)
        if end == start:
            lines += 1  # a box in other text counts as well
        elif text.count(_FENCE, 0, start) % 2 == 0:
            low, end = _with_title(text, start, end)
            yield Statement(low, end, text[low:end].strip("\n"), (low, end))
        done = max(end, box.end())
        if lines >= MOST_FOUND:
            return


def _with_title(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a list of tasks with the line before it, if that is a title, or with the tags around it."""
    before = text.rfind("\n", max(0, start - WINDOW), max(start - 1, 0)) + 1
    title = text[before : max(start - 1, 0)]
    if not start or (not before and start > WINDOW) or not _TITLE.fullmatch(title):
        return start, end
    if _TAG.fullmatch(title):
        line = text.find("\n", end, end + WINDOW)
        closing = text[end : line if line >= 0 else end + WINDOW]
        if not closing.lstrip().startswith("</") or not _TAG.fullmatch(closing):
            return start, end
        end = line + 1 if line >= 0 else len(text)
    return before, end
