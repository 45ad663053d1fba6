"""Whole numbers of a scope in Redis: evidence of its semantic tier, and what it did on each day."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lpc.responses import layout
from lpc.responses.canonical import Scope
from lpc.wire.redis_reach import RedisReach


class Counters:
    """Counters of all scopes in one Redis.

    ``encoder``: names what evidence hangs on, as does ``judged_by`` of the methods: who makes the labels, where that one errs.
    """

    def __init__(self, redis: RedisReach, encoder: Callable[[], str] = str) -> None:
        self._redis = redis
        self._encoder = encoder

    async def evidence(self, scope: Scope, judged_by: str = "") -> dict[str, int]:
        """Return a scope's evidence. Raises RedisAway."""
        return await self._read(self._key(scope, judged_by))

    async def add_evidence(self, scope: Scope, changes: Iterable[tuple[str, int]], judged_by: str = "") -> None:
        """Add to a scope's evidence. Raises RedisAway: what was added of it is not known."""
        await self._add({self._key(scope, judged_by): list(changes)}, layout.EVIDENCE_S)

    async def forget_fields(self, scope: Scope, fields: Sequence[str], judged_by: str = "") -> None:
        """Delete fields of a scope's evidence that its window has left behind. Raises RedisAway."""
        key = self._key(scope, judged_by)
        await self._redis.ask(lambda client: client.hdel(key, *fields))

    async def forget_evidence(self, scope: Scope, judged_by: str = "") -> None:
        """Delete a scope's evidence: it has turned. Raises RedisAway."""
        await self._redis.ask(lambda client: client.delete(self._key(scope, judged_by)))

    def _key(self, scope: Scope, judged_by: str) -> str:
        return layout.key(scope, "t", self._encoder(), *filter(None, (judged_by,)))

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
