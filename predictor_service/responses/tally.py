"""What each scope did on each day, counted here and added up in Redis once a second: a lookup does not wait for it."""

from collections import defaultdict
from typing import Final, get_args

from lpc.responses.answers import Refusal
from lpc.responses.canonical import Scope
from lpc.responses.counters import Counters, day_of
from lpc.wire.redis_reach import RedisFailed
from predictor_service.responses.outcomes import Hit, Miss, Source

INTERVAL_S: Final = 1.0
DAY_S: Final = 86_400
MOST: Final = 100_000
"""Scopes and days that wait for Redis; counts of more are lost while it is away."""
_HITS: Final = {source: f"hit:{source}" for source in get_args(Source)}


class Tally:
    """Counts until Redis takes them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._waiting: dict[tuple[Scope, int], defaultdict[str, int]] = {}
        """By scope and day since the epoch."""

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
        places = {(scope, day_of(day * DAY_S)): (scope, day) for scope, day in waiting}
        try:
            refused = await self._counters.add({named: waiting[place] for named, place in places.items()})
        except RedisFailed:
            refused = [(named, name) for named, place in places.items() for name in waiting[place]]
        for named, name in refused:
            place = places[named]
            self._waiting.setdefault(place, defaultdict(int))[name] += waiting[place][name]

    def _add(self, scope: Scope, now: float, name: str) -> None:
        waiting = self._of(scope, now)
        if waiting is not None:
            waiting[name] += 1

    def _of(self, scope: Scope, now: float) -> defaultdict[str, int] | None:
        place = (scope, int(now // DAY_S))
        found = self._waiting.get(place)
        if found is None and len(self._waiting) < MOST:
            found = self._waiting[place] = defaultdict(int)
        return found
