"""Numbers for the frequent values of a feature, without configuration: ends of replies, and tenants.

A tool call ends with its closing tag and returns in seconds, a user returns after reading. Tenants run different applications.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final

from eviction_client.policy.classes import IDLE_S

COUNTED: Final = 100
"""Requests per count."""
SHARE: Final = 0.1
"""Share of these requests that must have the same value for a number of its own."""


class Frequent:
    """Numbers the frequent values from 1; all others are 0. A value without a request for IDLE_S gives its number back.

    Args:
        numbers: how many numbers there are, 0 included.
    """

    def __init__(self, numbers: int) -> None:
        self._free = list(range(numbers - 1, 0, -1))
        self._numbers: dict[Hashable, int] = {}
        self._used: dict[Hashable, float] = {}
        self._counts: Counter[Hashable] = Counter()

    def number(self, value: Hashable, now: float) -> int:
        """Return the number of a value, and count it.

        Args:
            value: None if unknown.
            now: seconds.
        """
        if value is None:
            return 0
        known = self._numbers.get(value)
        if known is not None:
            self._used[value] = now
            return known
        self._counts[value] += 1
        if self._counts.total() >= COUNTED:
            self._count(now)
        return 0

    def _count(self, now: float) -> None:
        most, count = self._counts.most_common(1)[0]
        self._counts.clear()
        if not self._free:
            for value in [value for value, used in self._used.items() if now - used > IDLE_S]:
                del self._used[value]
                self._free.append(self._numbers.pop(value))
        if self._free and count >= SHARE * COUNTED:
            self._numbers[most] = self._free.pop()
            self._used[most] = now
