"""Spans of a chain of blocks: from the previous span's end up to, without, depth ``end``."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ClassSpan(NamedTuple):
    """Consecutive blocks of a chain with one reuse class."""

    end: int
    reuse_class: int


def joined(spans: Iterable[ClassSpan]) -> list[ClassSpan]:
    """Return the spans with equal neighbours joined and empty ones left out."""
    found: list[ClassSpan] = []
    last, latest = 0, None
    for span in spans:
        end, reuse_class = span
        if reuse_class == latest:
            found[-1], last = span, end
        elif end > last:
            found.append(span)
            last, latest = end, reuse_class
    return found


def shortened(spans: Sequence[ClassSpan], length: int) -> Sequence[ClassSpan]:
    """Return the spans of a chain's first ``length`` blocks; some may be empty."""
    if not spans or spans[-1].end <= length:
        return spans
    return [ClassSpan(min(end, length), reuse_class) for end, reuse_class in spans]


def cut(spans: Sequence[ClassSpan], depth: int, length: int, reuse_class: int) -> list[ClassSpan]:
    """Return the spans of a chain of ``length`` blocks whose blocks from ``depth`` on get another class."""
    if depth >= length:
        return list(spans)
    kept = [ClassSpan(min(span.end, depth), span.reuse_class) for span in spans]
    return joined([*kept, ClassSpan(length, reuse_class)])
