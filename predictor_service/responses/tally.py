"""What each scope did on each day, counted here and added up in Redis once a second: a lookup does not wait for it."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

from lpc.responses import layout
from lpc.responses.answers import Refusal
from lpc.responses.canonical import Scope
from lpc.wire.redis_reach import RedisFailed, RedisReach
from predictor_service.responses.outcomes import Hit, Miss, Source

INTERVAL_S: Final = 1.0
MOST: Final = 100_000
"""Scopes and days that wait for Redis; counts of more are lost while it is away."""
_HITS: Final = {source: f"hit:{source}" for source in get_args(Source)}


class Tally:
    """Counts until Redis takes them."""

    def __init__(self, redis: RedisReach) -> None:
        self._redis = redis
        self._waiting: dict[tuple[Scope, str], defaultdict[str, int]] = {}
        """By scope and day."""

    def looked_up(self, scope: Scope, outcome: Hit | Miss, now: float) -> None:
        """Count a lookup."""
        if isinstance(outcome, Miss):
            self._add(scope, now, f"miss:{outcome.reason}")
            return
        waiting, answer = self._of(scope, now), outcome.answer
        if waiting is not None:
            waiting[_HITS[outcome.source]] += 1
            waiting["prompt_tokens"] += answer.prompt_tokens
            waiting["completion_tokens"] += answer.completion_tokens
            waiting["engine_ms"] += round(1000 * max(0.0, answer.engine_s))

    def stored(self, scope: Scope, refusal: Refusal | None, now: float) -> None:
        """Count an answer that was handed in."""
        self._add(scope, now, "stored" if refusal is None else f"refused:{refusal}")

    def feedback(self, scope: Scope, word: str, now: float) -> None:
        """Count what a caller said."""
        self._add(scope, now, f"feedback:{word}")

    async def flush(self) -> None:
        """Hand over what was counted; what Redis does not take is counted further."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        counts = [(place, name, amount) for place, names in waiting.items() for name, amount in names.items()]

        def add(pipe: Any) -> None:
            for (scope, day), name, amount in counts:
                pipe.hincrby(layout.key(scope, "c", day), name, amount)
            for scope, day in waiting:
                pipe.expire(layout.key(scope, "c", day), layout.COUNTERS_S)

        try:
            answers = await self._redis.ask_each(add)
        except RedisFailed as error:
            answers = [error] * len(counts)
        for (place, name, amount), answer in zip(counts, answers, strict=False):
            if isinstance(answer, Exception):
                self._waiting.setdefault(place, defaultdict(int))[name] += amount

    async def day(self, scope: Scope, day: str) -> dict[str, int]:
        """Return the counters of a scope's day. Raises RedisFailed."""
        key = layout.key(scope, "c", day)
        found: dict[bytes, bytes] = await self._redis.ask(lambda client: client.hgetall(key))
        return {name.decode(): int(value) for name, value in found.items() if value.lstrip(b"-").isdigit()}

    def _add(self, scope: Scope, now: float, name: str) -> None:
        waiting = self._of(scope, now)
        if waiting is not None:
            waiting[name] += 1

    def _of(self, scope: Scope, now: float) -> defaultdict[str, int] | None:
        place = (scope, day_of(now))
        found = self._waiting.get(place)
        if found is None and len(self._waiting) < MOST:
            found = self._waiting[place] = defaultdict(int)
        return found


def day_of(at: float, before: int = 0) -> str:
    """Return the day in UTC of a time, seconds since the epoch, or one so many days before it, as 2026-11-22."""
    return (datetime.fromtimestamp(at, UTC) - timedelta(days=before)).strftime("%Y-%m-%d")
