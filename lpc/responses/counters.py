"""What a scope did on each day, as whole numbers in Redis."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lpc.responses import layout
from lpc.responses.canonical import Scope
from lpc.wire.redis_reach import RedisReach


class Counters:
    """Counters of all scopes in one Redis."""

    def __init__(self, redis: RedisReach) -> None:
        self._redis = redis

    async def add(self, counts: Mapping[tuple[Scope, str], Mapping[str, int]]) -> None:
        """Add to the counters of (scope, day). Raises RedisAway."""
        keys = {layout.key(scope, "c", day): list(fields.items()) for (scope, day), fields in counts.items()}
        await self._add(keys, layout.COUNTERS_S)

    async def day(self, scope: Scope, day: str) -> dict[str, int]:
        """Return the counters of a scope's day. Raises RedisAway."""
        return await self._read(layout.key(scope, "c", day))

    async def _add(self, keys: Mapping[str, Sequence[tuple[str, int]]], life_s: int) -> None:
        async def add(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for key, changes in keys.items():
                for field, amount in changes:
                    pipe.hincrby(key, field, amount)
                pipe.expire(key, life_s)
            await pipe.execute()

        if any(keys.values()):
            await self._redis.ask(add)

    async def _read(self, key: str) -> dict[str, int]:
        found: dict[bytes, bytes] = await self._redis.ask(lambda client: client.hgetall(key))
        return {field.decode(): int(value) for field, value in found.items() if value.lstrip(b"-").isdigit()}


def day_of(at: float, before: int = 0) -> str:
    """Return the day in UTC of a time, seconds since the epoch, or one so many days before it, as 2026-11-22."""
    return (datetime.fromtimestamp(at, UTC) - timedelta(days=before)).strftime("%Y-%m-%d")
