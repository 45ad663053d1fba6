"""What a scope did on each day, as whole numbers in Redis."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lpc.responses import layout
from lpc.responses.canonical import Scope
from lpc.wire.redis_reach import RedisReach


class Counters:
    """Counters of all scopes in one Redis."""

    def __init__(self, redis: RedisReach) -> None:
        self._redis = redis

    async def add(self, counts: Mapping[tuple[Scope, str], Mapping[str, int]]) -> list[tuple[tuple[Scope, str], str]]:
        """Add to the counters of (scope, day); return those that Redis did not take, with their fields. Raises RedisAway."""
        fields = [(place, field, amount) for place, changes in counts.items() for field, amount in changes.items()]
        if not fields:
            return []

        def add(pipe: Any) -> None:
            for place, field, amount in fields:
                pipe.hincrby(layout.key(place[0], "c", place[1]), field, amount)
            for scope, day in counts:
                pipe.expire(layout.key(scope, "c", day), layout.COUNTERS_S)

        answers = (await self._redis.ask_each(add))[: len(fields)]
        return [
            (place, field) for (place, field, _), answer in zip(fields, answers, strict=True) if isinstance(answer, Exception)
        ]

    async def day(self, scope: Scope, day: str) -> dict[str, int]:
        """Return the counters of a scope's day. Raises RedisFailed."""
        return await self._read(layout.key(scope, "c", day))

    async def _read(self, key: str) -> dict[str, int]:
        found: dict[bytes, bytes] = await self._redis.ask(lambda client: client.hgetall(key))
        return {field.decode(): int(value) for field, value in found.items() if value.lstrip(b"-").isdigit()}


def day_of(at: float, before: int = 0) -> str:
    """Return the day in UTC of a time, seconds since the epoch, or one so many days before it, as 2026-11-22."""
    return (datetime.fromtimestamp(at, UTC) - timedelta(days=before)).strftime("%Y-%m-%d")
