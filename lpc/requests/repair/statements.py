"""Finds statements of a changing value in a system prompt: ``Current time: 11:39``, ``x-request-id: 8f3e91aa``.

A statement is a line, or a sentence in a line, that begins with a known label and has a value behind it. Anything else stays:
a date in a rule of the prompt, a value inside JSON, code between fences.

All labels are found at once (`openings`), and all other expressions see `WINDOW` characters behind a label. Google's RE2 finds
them in 60 kB in 0.07 ms, and in time in proportion to the text whatever it is; `re` takes 1.5 ms.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any, Final, NamedTuple

re2: Any = None
with suppress(ImportError):  # the gateway has it; other programs may use the rules without it
    re2 = import_module("re2")

MOST_CHARS: Final = 1 << 18
"""Characters at the beginning of a text in which rules look. The rest of a longer one stays as it is."""
MOST_OPENINGS: Final = 512
"""Labels in one text. Further ones stay as they are."""
MOST_FOUND: Final = 256
"""Statements of one rule in one text, and lines of tasks. Further ones stay as they are."""
WINDOW: Final = 240
"""Characters behind the beginning of a statement in which its value begins, and behind that in which it ends."""
_FENCE: Final = "```"


class Statement(NamedTuple):
    """Characters [start, end) of a text, with the line end or blanks that would be left over; ``value``: those of its value.

    ``text``: without these.
    """

    start: int
    end: int
    text: str
    value: tuple[int, int]


_TIME: Final = re.compile(
    r"(?<=[0-9]):[0-9]{2}(?::[0-9]{2})?"
    r"|(?:19|20)[0-9]{2}(?![0-9])(?:[-/.][0-9]{1,2}){0,2}"
    r"|(?<=[0-9])([-/.])[0-9]{1,2}\1(?:[0-9]{4}|[0-9]{2})(?![0-9])"
    r"|1[4-9][0-9]{8}(?:[0-9]{3}|[0-9]{6})?(?![0-9])"  # seconds, milliseconds, microseconds of an epoch
)
"""Parts of a time or date."""
_LONGEST_TIME: Final = 24
"""Characters of a time before a part of it."""
_OF_TIME: Final = frozenset("0123456789-/.:T")
_BEHIND_TIME: Final = _OF_TIME | {"Z"}
_AT: Final = re.compile(r"@(?<=[\w.+-]@)[\w-]{1,64}(?:\.[\w-]{1,32}){1,4}")
_NAMES: Final = re.compile(r"(?:[nN]ame|[lL]ocale|[zZ]one)\s?[:=][ \t]{0,2}([^\s<][^\n<]{0,63})")
"""Values behind a label: a name, a locale, a time zone."""
_LONGEST_NAME: Final = 64
_LONGEST_VALUE: Final = 192
"""Characters of a value, behind the place at which it may begin at the latest."""
_VALUE: Final = re.compile(r"[:=>#](?:[\"'`]?\s{0,2}[\"'`$]?(?=[^\s<]{0,80}[0-9])[0-9A-Za-z._+/:,-]{1,128})")
"""A value behind a sign."""
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
    | (?:tokens?|context|budget|usage|quota|credits?)[\s_-](?:[0-9a-z_]{1,12}[\s_-]){0,2}
        (?:used|left|remaining|consumed|so\sfar)
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
    | (?:x-)?(?:[0-9a-z_]{1,16}[\s_-]){0,3}(?:cch|digest|checksum|hash|sha256|md5|etag|signature|fingerprint|build)\s?(?=[:=>])
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


_TASK: Final = re.compile(r"[ \t]{0,16}(?:[-*+]|[0-9]{1,4}[.)])[ \t]{1,4}\[[ xX~>-]\][ \t]")
LABELS: Final = (TIME_LABEL, ID_LABEL, COUNTER_LABEL, USER_LABEL, DIGEST_LABEL)


def expressions() -> list[str]:
    """Return the expressions that find all labels at the beginning of a line or sentence, and lines of tasks.

    Each begins with one character, which RE2 finds by itself, and has no more than what `re` and RE2 have in common. So what a
    label looks ahead at is part of its match here.
    """
    label = "|".join("".join(one.pattern.split()).removeprefix(_OPENING).replace("(?=", "(?:") for one in LABELS)
    spaced = f"{_OPENING}(?:{label})".replace(r"[\s", r"[ \t").replace(r"\s", r"[ \t]")
    return [rf"\n(?i:{spaced}|{_TASK.pattern})", *(rf"{sign}[ \t]+(?i:{spaced})" for sign in (r"\.", "!", r"\?"))]


def _compiled(expression: str) -> Any:
    if re2 is None:
        return re.compile(expression)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    return re2.compile(expression.encode(), options)


OPENINGS: Final = tuple(_compiled(expression) for expression in expressions())


def openings(text: str) -> list[int]:
    """Return where lines and sentences begin that begin with a label of any rule, or are a task."""
    text = "\n" + text[:MOST_CHARS]
    # A surrogate without its other half becomes one character.
    data: Any = text if re2 is None else text.encode(errors="replace")
    found = sorted(match.start() for one in OPENINGS for match in islice(one.finditer(data), MOST_OPENINGS))
    return list(_lows(text, found if len(data) == len(text) else _in_chars(data, found)))


def _in_chars(data: bytes, places: Iterable[int]) -> Iterator[int]:
    """Yield the places of characters, by those of their bytes."""
    chars = done = 0
    for place in places:
        chars += len(data[done:place].decode())
        done = place
        yield chars


def _lows(text: str, places: Iterable[int]) -> Iterator[int]:
    """Yield where lines and sentences begin behind the sign before them. ``text`` has one character more at its beginning."""
    for place in islice(places, MOST_OPENINGS):
        if text[place] == "\n":
            yield place
        elif sentence := _BEFORE.match(text, place):
            yield sentence.end() - 1


def shifted(openings: Sequence[int], removed: Sequence[Statement]) -> list[int]:
    """Return the openings of a text from which statements have been removed. What follows one may be another one."""
    found, left, gone = list[int](), list(removed), 0
    for opening in openings:
        while left and left[0].end <= opening:
            found.append(left[0].start - gone)
            gone += left[0].end - left[0].start
            left.pop(0)
        if not left or opening < left[0].start:
            found.append(opening - gone)
    for one in left:
        found.append(one.start - gone)
        gone += one.end - one.start
    return sorted(set(found))


class Openings:
    """The openings of a body's texts, each text searched once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[str, list[int]]] = {}

    def of(self, text: str) -> list[int]:
        """Return the openings of a text."""
        known = self._found.get(id(text))
        if known is None:
            known = self._found[id(text)] = text, openings(text)
        return known[1]

    def remove(self, text: str, left: str, removed: Sequence[Statement]) -> None:
        """Derive the openings of what is left of a text without statements."""
        self._found[id(left)] = left, shifted(self.of(text), removed)


Seen = Sequence[int] | None
"""Openings of a text, if they are known."""


def times(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield statements of the present time."""
    return _statements(text, seen, TIME_LABEL, _timed, _any)


def ids(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield statements of an id: at least eight letters and digits with a digit, or nine digits."""
    return _statements(text, seen, ID_LABEL, _identified, _is_drawn)


def counters(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield statements of a counter."""
    return _statements(text, seen, COUNTER_LABEL, _counted, _is_number)


def digests(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield statements of a digest, such as Claude Code's billing line."""
    return _statements(text, seen, DIGEST_LABEL, _digested, _any)


def users(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield statements of who the user is: an e-mail address, a name, a locale, a time zone."""
    return _statements(text, seen, USER_LABEL, _addresses, _is_address_or_next)


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


def _spans(parts: Sequence[re.Pattern[str]], text: str, low: int, high: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield where expressions match that begin between two places."""
    for part in parts:
        for match in part.finditer(text, low, high + longest):
            if match.start() >= high:
                break
            yield match.span()


def _timed(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the places of times and dates that begin between two places, in order."""
    for start, end in sorted(_spans((_TIME,), text, low, high, _LONGEST_TIME)):
        first = start
        while first > max(low, start - _LONGEST_TIME) and text[first - 1] in _OF_TIME:
            first -= 1
        last = end
        while last < min(len(text), end + _LONGEST_TIME) and text[last] in _BEHIND_TIME:
            last += 1
        yield first, last


def _addresses(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the places of e-mail addresses, and of values behind a name's label, in order."""
    found = [match.span() for match in _AT.finditer(text, low, high + _LONGEST_VALUE)]
    found += [match.span(1) for match in _NAMES.finditer(text, low, high + _LONGEST_VALUE)]
    for start, end in sorted(found):
        first = start
        while first > max(low, start - _LONGEST_NAME) and (text[first - 1].isalnum() or text[first - 1] in "._+-"):
            first -= 1
        yield first, end


def _valued(near: re.Pattern[str], within: int, others: tuple[re.Pattern[str], ...] = ()) -> "Values":
    """Return what yields the places of values behind a sign, with a word of a label near before them; in order."""

    def valued(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for start, end in sorted(_spans((_VALUE, *others), text, low, high, _LONGEST_VALUE)):
            if near.search(text[max(0, start - within) : start + 1].lower()):
                yield start, end

    return valued


Values = Callable[[str, int, int], Iterator[tuple[int, int]]]
_identified: Final = _valued(_NEAR_ID, _NEAR_OF_ID, (_IS,))
_counted: Final = _valued(_NEAR_COUNTER, _NEAR)
_digested: Final = _valued(_NEAR_DIGEST, _NEAR)


def _statements(
    text: str, seen: Seen, label: re.Pattern[str], values: Values, fits: Callable[[str, str], bool]
) -> Iterator[Statement]:
    done = counted = fences = found = 0
    for low in openings(text) if seen is None else seen:
        if low < done or not (labelled := label.match(text, low, low + WINDOW)):
            continue
        for start, end in values(text, low, _stop(text, low)):
            if start + 2 < labelled.end() or start >= low + WINDOW:
                continue
            value = _value(text, start, end)
            if not fits(text[slice(*value)], text[labelled.end() : value[0]]):
                continue
            fences += text.count(_FENCE, counted, low)
            counted = low
            high = _close(text, value[1])
            if fences % 2 or high is None or not _is_balanced(text[low:high]):
                continue
            done = high
            yield _whole(text, low, high, value)
            found += 1
            break
        if found == MOST_FOUND:
            return


def _stop(text: str, low: int) -> int:
    """Return where the values of a statement end to begin: at the end of its line or sentence, or of its window."""
    line = text.find("\n", low, low + WINDOW)
    high = line if line >= 0 else min(low + WINDOW, len(text))
    sentence = _BEFORE.search(text, low, high)
    return sentence.start() + 1 if sentence else high


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


_TITLE: Final = re.compile(r"[ \t]{0,4}(?:#{1,6}[ \t].{0,120}|[^\n]{0,120}:|<[\w-]{1,40}>)[ \t]{0,8}", re.ASCII)
_TAG: Final = re.compile(r"[ \t]{0,4}</?[\w-]{1,40}>[ \t]{0,8}", re.ASCII)


def tasks(text: str, seen: Seen = None) -> Iterator[Statement]:
    """Yield lists of tasks with boxes (``- [x] done``), each with the title or the tags around it.

    At most `MOST_FOUND` lines are looked at.
    """
    done = lines = fences = counted = 0
    for start in openings(text) if seen is None else seen:
        end = start
        while end >= done and lines < MOST_FOUND and _TASK.match(text, end):
            lines += 1
            line = text.find("\n", end)
            end = line + 1 if line >= 0 else len(text)
        if end == start:
            continue
        done = end
        fences += text.count(_FENCE, counted, start)
        counted = start
        if fences % 2 == 0:
            low, high = _with_title(text, start, end)
            yield Statement(low, high, text[low:high].strip("\n"), (low, high))
            done = max(done, high)


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
