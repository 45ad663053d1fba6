"""Kinds of reply end: a tool call returns in seconds, a user only after reading."""

from collections import Counter
from collections.abc import Hashable
from typing import Final

from eviction_client.policy.features import REPLY_ENDS

COUNTED: Final = 100
"""Replies per count."""
SHARE: Final = 0.1
"""Share of these replies that must have the same end for a number of its own."""


class ReplyEnds:
    """Numbers the frequent ends of replies from 1, without configuration; all others are 0.

    An end is any value that is equal for replies that end alike, such as the last token before the end-of-sequence token: a
    tool call ends with its closing tag. An end keeps its number.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._counts: Counter[Hashable] = Counter()

    def number(self, end: Hashable) -> int:
        """Return the number of an end, in [0, REPLY_ENDS), and count it. ``end`` is None if unknown."""
        if end is None:
            return 0
        known = self._numbers.get(end)
        if known is None and len(self._numbers) < REPLY_ENDS - 1:
            self._counts[end] += 1
            if self._counts.total() >= COUNTED:
                most, count = self._counts.most_common(1)[0]
                if count >= SHARE * COUNTED:
                    self._numbers[most] = len(self._numbers) + 1
                self._counts.clear()
        return known or 0
