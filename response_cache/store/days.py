"""Counts by scope and day in Redis, which all processes add to: look-ups by result, and what the hits saved.

A process adds its counts every few seconds, at most once: if Redis fails while it adds, those of one scope and day are lost. A
hash expires after `KEPT_DAYS`, and a report reads known fields only. A program that writes to this Redis can change the
counts, which decide nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lpc.wire.redis_reach import RedisReach, RedisRefused
from response_cache.keys.canonical import REMEMBERED, Scope
from response_cache.store import layout

KEPT_DAYS: Final = 100
DAY_S: Final = 86_400
READ_S: Final = 2.0
"""Timeout of a report's read of one scope."""
MOST: Final = 2**53
"""Larger counts are damaged."""

_ADD: Final = f"""{layout.READ}
read('HLEN', KEYS[1])
for i = 2, #ARGV, 2 do
  local added = redis.pcall('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
  if type(added) == 'table' then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""
"""Adds to the counts of a day. A damaged count begins again."""


def day_of(now: float) -> str:
    """Return the day of a time in seconds since the epoch, in UTC: YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d", time.gmtime(now))


class Days:
    """The counts of all scopes in one Redis. Lives on one event loop.

    Args:
        wall: the wall clock, seconds since the epoch. If it was wrong at the start, the days are right once it is set.
    """

    def __init__(self, redis: RedisReach, wall: Callable[[], float]) -> None:
        self._redis = redis
        self._wall = wall
        self._pending: dict[tuple[Scope, str], Counter[str]] = {}

    def latest(self, days: int) -> list[str]:
        """Return this many days up to today."""
        now = self._wall()
        return [day_of(now - DAY_S * before) for before in reversed(range(days))]

    def count(self, scope: Scope, amounts: Mapping[str, int]) -> None:
        """Add amounts to the counts of a scope today. Nothing is counted while too many scopes wait for Redis."""
        place = scope, day_of(self._wall())
        if place in self._pending or len(self._pending) < REMEMBERED:
            self._pending.setdefault(place, Counter()).update(amounts)

    async def share(self) -> None:
        """Add the counts to those in Redis. Raises RedisAway."""
        while self._pending:
            (scope, day), amounts = self._pending.popitem()
            fields = [part for name, amount in amounts.items() if amount for part in (name, amount)]
            try:
                await self._redis.run(_ADD, [layout.key(scope, "d", day)], KEPT_DAYS * DAY_S, *fields)
            except RedisRefused:
                continue  # full: these counts are lost

    async def read(self, scope: Scope, days: Sequence[str], fields: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts above 0 of each day. Raises RedisAway."""
        found = await self._redis.ask_each(
            lambda pipe: [pipe.hmget(layout.key(scope, "d", day), list(fields)) for day in days], READ_S
        )
        return [  # an error in place of the values: the key has another type
            {name: int(value) for name, value in zip(fields, one, strict=True) if _is_count(value)}
            if isinstance(one, list)
            else {}
            for one in found
        ]


def _is_count(value: bytes | None) -> bool:
    return value is not None and value.isdigit() and len(value) <= len(str(MOST)) and 0 < int(value) <= MOST
