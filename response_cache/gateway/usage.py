"""The tokens that an answer reports at its end, and their counters."""

import re
from typing import Final

from prometheus_client import Counter

TAIL: Final = 4096
"""Bytes at the end of an answer in which its usage is searched."""
MOST_TOKENS: Final = 10**8
_USAGE: Final = re.compile(
    rb'(?<!\\)"(prompt_tokens|input_tokens|cached_tokens|cache_read_input_tokens|cache_creation_input_tokens)"\s*:\s*(\d{1,9})\b'
)


def usage_of(tail: bytes) -> tuple[int | None, int | None]:
    """Return the tokens of the prompt and those of them that were cached, from the end of an answer; None: not reported.

    OpenAI's completions and responses, and Anthropic's messages, which count cached tokens apart. A name inside of the answer's
    text has a backslash before its quotation mark.
    """
    found = {name.decode(): int(number) for name, number in _USAGE.findall(tail)}
    read, written = found.get("cache_read_input_tokens"), found.get("cache_creation_input_tokens", 0)
    tokens = found.get("prompt_tokens", found.get("input_tokens"))
    cached = found.get("cached_tokens", read)
    if tokens is not None and read is not None:
        tokens += read + written
    if tokens is None or not 0 < tokens <= MOST_TOKENS:
        return None, None
    return tokens, None if cached is None else min(cached, tokens)


class Usage:
    """Reads the usage of one answer, from its bytes as they come."""

    def __init__(self) -> None:
        self._tail = b""

    def part(self, data: bytes) -> None:
        """Take the next bytes of the answer."""
        self._tail = (self._tail + data)[-TAIL:]

    def read(self) -> tuple[int | None, int | None]:
        """Return what the answer has reported until now, as of :func:`usage_of`."""
        return usage_of(self._tail)


class PromptTokens:
    """Counts prompt tokens of answers.

    Args:
        counter: its last label is ``cached``, ``computed`` or ``unreported``; ``labels``: the others.
    """

    def __init__(self, counter: Counter, *labels: str) -> None:
        self._cached, self._computed, self._unreported = (
            counter.labels(*labels, found) for found in ("cached", "computed", "unreported")
        )

    def count(self, tokens: int, cached: int | None) -> None:
        """Count the tokens of an answer. ``cached``: those of them that hit; None: not reported."""
        if cached is None:
            self._unreported.inc(tokens)
        else:
            self._cached.inc(cached)
            self._computed.inc(tokens - cached)
