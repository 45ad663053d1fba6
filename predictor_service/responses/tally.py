"""What each scope did on each day, counted here and added up in Redis once a second: a lookup does not wait for it."""

import asyncio
from collections import Counter, defaultdict
from typing import Final

from lpc.responses.answers import Refusal
from lpc.responses.canonical import Scope
from lpc.responses.counters import Counters, day_of
from lpc.wire.redis_reach import RedisAway
from predictor_service.responses.outcomes import Hit, Miss

INTERVAL_S: Final = 1.0
DAY_S: Final = 86_400
MOST: Final = 100_000
"""Scopes and days that wait for Redis; counts of more are lost while it is away."""


class Tally:
    """Counts until Redis takes them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._waiting: defaultdict[tuple[Scope, int], Counter[str]] = defaultdict(Counter)
        """By scope and day since the epoch."""

    def looked_up(self, scope: Scope, outcome: Hit | Miss, now: float) -> None:
        """Count a lookup."""
        if isinstance(outcome, Miss):
            self._add(scope, now, {f"miss:{outcome.reason}": 1})
            return
        answer = outcome.answer
        spared = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        self._add(scope, now, {f"hit:{outcome.source}": 1, "engine_ms": round(1000 * max(0.0, answer.engine_s)), **spared})

    def stored(self, scope: Scope, refusal: Refusal | None, now: float) -> None:
        """Count an answer that was handed in."""
        self._add(scope, now, {"stored" if refusal is None else f"refused:{refusal}": 1})

    def feedback(self, scope: Scope, word: str, now: float) -> None:
        """Count what a caller said."""
        self._add(scope, now, {f"feedback:{word}": 1})

    async def flush(self) -> None:
        """Hand over what was counted; what Redis does not take is counted further."""
        waiting, self._waiting = self._waiting, defaultdict(Counter)
        if not waiting:
            return
        try:
            await self._counters.add({(scope, day_of(day * DAY_S)): counts for (scope, day), counts in waiting.items()})
        except RedisAway:
            for place, counts in waiting.items():
                self._waiting[place].update(counts)

    async def flush_forever(self) -> None:
        """Hand over once a second, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.flush()

    def _add(self, scope: Scope, now: float, counts: dict[str, int]) -> None:
        place = (scope, int(now // DAY_S))
        if place in self._waiting or len(self._waiting) < MOST:
            waiting = self._waiting[place]
            for name, count in counts.items():
                waiting[name] += count
