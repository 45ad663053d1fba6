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
    for span in spans:
        if found and found[-1].reuse_class == span.reuse_class:
            found[-1] = span
        elif span.end > (found[-1].end if found else 0):
            found.append(span)
    return found


def cut(spans: Sequence[ClassSpan], depth: int, length: int, reuse_class: int) -> list[ClassSpan]:
    """Return the spans of a chain of ``length`` blocks whose blocks from ``depth`` on get another class."""
    if depth >= length:
        return list(spans)
    kept = [ClassSpan(min(span.end, depth), span.reuse_class) for span in spans]
    return joined([*kept, ClassSpan(length, reuse_class)])
