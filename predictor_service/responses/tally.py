"""Daily counters of scopes, added to Redis once a second so that lookups need not wait."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

from lpc.responses import layout
from lpc.responses.answers import Refusal
from lpc.responses.canonical import Scope
from lpc.wire.redis_reach import RedisFailed, RedisReach
from predictor_service.responses.outcomes import Hit, Miss, Source

INTERVAL_S: Final = 1.0
MAX_PENDING: Final = 100_000
"""Most pairs of scope and day in memory while Redis does not respond; counts of further pairs are lost."""
_HITS: Final = {source: f"hit:{source}" for source in get_args(Source)}


class Tally:
    """Counters that are not in Redis yet."""

    def __init__(self, redis: RedisReach) -> None:
        self._redis = redis
        self._pending: dict[tuple[Scope, str], defaultdict[str, int]] = {}
        """By scope and day."""

    def looked_up(self, scope: Scope, outcome: Hit | Miss, now: float) -> None:
        """Count a lookup."""
        if isinstance(outcome, Miss):
            self._add(scope, now, f"miss:{outcome.reason}")
            return
        pending, answer = self._of(scope, now), outcome.answer
        if pending is not None:
            pending[_HITS[outcome.source]] += 1
            pending["prompt_tokens"] += answer.prompt_tokens
            pending["completion_tokens"] += answer.completion_tokens
            pending["engine_ms"] += round(1000 * max(0.0, answer.engine_s))

    def stored(self, scope: Scope, refusal: Refusal | None, now: float) -> None:
        """Count an answer that was stored or refused."""
        self._add(scope, now, "stored" if refusal is None else f"refused:{refusal}")

    def feedback(self, scope: Scope, verdict: str, now: float) -> None:
        """Count feedback."""
        self._add(scope, now, f"feedback:{verdict}")

    async def flush(self) -> None:
        """Add the counters to Redis; counters that Redis refuses remain."""
        pending, self._pending = self._pending, {}
        if not pending:
            return
        counts = [(day, name, amount) for day, names in pending.items() for name, amount in names.items()]

        def add(pipe: Any) -> None:
            for (scope, day), name, amount in counts:
                pipe.hincrby(layout.key(scope, "c", day), name, amount)
            for scope, day in pending:
                pipe.expire(layout.key(scope, "c", day), layout.COUNTERS_S)

        try:
            answers = await self._redis.ask_each(add)
        except RedisFailed as error:
            answers = [error] * len(counts)
        for (day, name, amount), answer in zip(counts, answers, strict=False):
            if isinstance(answer, Exception):
                self._pending.setdefault(day, defaultdict(int))[name] += amount

    async def day(self, scope: Scope, day: str) -> dict[str, int]:
        """Return a scope's counters of a day. Raises RedisFailed."""
        key = layout.key(scope, "c", day)
        found: dict[bytes, bytes] = await self._redis.ask(lambda client: client.hgetall(key))
        return {name.decode(): int(value) for name, value in found.items() if value.lstrip(b"-").isdigit()}

    def _add(self, scope: Scope, now: float, name: str) -> None:
        pending = self._of(scope, now)
        if pending is not None:
            pending[name] += 1

    def _of(self, scope: Scope, now: float) -> defaultdict[str, int] | None:
        day = (scope, day_of(now))
        found = self._pending.get(day)
        if found is None and len(self._pending) < MAX_PENDING:
            found = self._pending[day] = defaultdict(int)
        return found


def day_of(at: float, before: int = 0) -> str:
    """Return the UTC date, as 2026-11-22, that is ``before`` days before a time in seconds since the epoch."""
    return (datetime.fromtimestamp(at, UTC) - timedelta(days=before)).strftime("%Y-%m-%d")
