"""The requests that a router holds for one engine, and hands on warm first.

So agents whose sessions together exceed an engine's cache do not lose it all, whatever the engine's own order is: who waits
and is still in the cache goes first, within a bound (`eviction_client.schedule.warm_first`). An engine has at most one request
in prefill, or `AHEAD_S` seconds of prefill, before the router holds others. So an engine that does not queue gets all at once.
Tenants share its prefill, and each may order its own requests by priority (`lpc_apps.routing.lanes`).

What an engine has cached is believed: the conversations that it was handed last, up to a share of its cache. The share is
learned from the cached tokens that answers report.
"""

import math
from collections.abc import Iterator
from typing import Final

from eviction_client.schedule.prefill import RepeatedPrefill
from eviction_client.schedule.warm_first import OVERTAKE_S, WarmFirst
from lpc_apps.routing.counted import COUNT_S, FirstTokens
from lpc_apps.routing.lanes import Lanes
from lpc_apps.routing.router import EngineWork, Sending

AHEAD_S: Final = 0.2
"""Seconds of prefill that an engine may have waiting before requests are held."""
SLOW, SLOW_S = 3.0, 1.0
"""An engine shows no first tokens if one takes this many times as long as its prefill should, and so many seconds."""
SHARE: Final = 0.9
"""Share of an engine's cache that conversations are believed to fill, at first: replies and running requests take the rest."""
SHARES: Final = (0.3, 1.5)
"""Least and most that is learned."""
LEARNS: Final = 0.02
"""Change of the share by an answer that was not as believed."""


class BelievedCache:
    """The conversations that an engine is believed to hold: those that it was handed last.

    Args:
        capacity: of the engine's cache, tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.share = SHARE
        self._tokens: dict[int, int] = {}
        """By number of the conversation, the one handed longest ago first."""
        self._total = 0

    def __contains__(self, conversation: object) -> bool:
        return conversation in self._tokens

    def use(self, conversation: int, tokens: int) -> None:
        """Record that the engine holds this many tokens of a conversation; it evicts others for them."""
        self._total += tokens - self._tokens.pop(conversation, 0)
        self._tokens[conversation] = tokens
        most = self.share * self.capacity
        while self._total > most and len(self._tokens) > 1:
            self._total -= self._tokens.pop(next(iter(self._tokens)))

    def clear(self) -> None:
        """Record that the engine holds nothing."""
        self._tokens.clear()
        self._total = 0

    def learn(self, *, held: bool, cached: bool) -> None:
        """Learn from an answer whether the engine holds less or more than believed."""
        least, most = SHARES
        if held and not cached:
            self.share = max(self.share * (1 - LEARNS), least)
        elif cached and not held:
            self.share = min(self.share * (1 + LEARNS), most)


class Held:
    """Requests that are held for one engine.

    Args:
        capacity: of its cache, tokens.
        ranks: data-parallel ranks behind its address, which compute as many prompts at once.
        overtake_s: bound of overtaking, seconds of prefill; 0: first come, first served.

    Attributes:
        first_tokens: ends of prefills by the engine's own count.
    """

    def __init__(self, engine: EngineWork, capacity: int, ranks: int = 1, *, overtake_s: float = OVERTAKE_S) -> None:
        self.cache = BelievedCache(capacity)
        engine.cache = self.cache
        self.first_tokens = FirstTokens(engine)
        self._ranks = ranks
        self._engine = engine
        self._repeated = RepeatedPrefill(capacity)
        self._overtake_s = overtake_s
        self._waiting = Lanes(self._warm_first, self.missing)
        self._handed: dict[Sending, float] = {}
        """Requests in the engine without a first token, and when the engine counts as not showing it."""
        self._believed: dict[Sending, bool] = {}
        """Whether their conversation was believed to be cached, of the requests in the engine."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sending: Sending) -> bool:
        return sending in self._waiting

    def __iter__(self) -> Iterator[Sending]:
        return iter(self._waiting)

    def missing(self, sending: Sending) -> int:
        """Return the prompt tokens that the engine is believed to compute for a request."""
        held = sending.believed if sending.conversation.number in self.cache else sending.shared
        return sending.tokens - min(held, sending.tokens - 1)

    def add(self, sending: Sending, tenant: str = "", priority: int = 0) -> None:
        """Hold a request. ``priority``: among those of its tenant, the lowest number first."""
        self._waiting.add(sending, tenant, priority)

    def drop(self, sending: Sending) -> None:
        """Forget a request that is not to be handed on."""
        self._waiting.drop(sending)

    def hand_on(self, now: float) -> Sending | None:
        """Return the next request, which the engine gets now; None: none is held, or the engine has enough."""
        if not self._waiting or not self._has_room(now):
            return None
        sending = self._waiting.take()
        self.hand(sending, now)
        return sending

    def has_room(self, now: float) -> bool:
        """Return whether a request that arrives now need not be held."""
        return not self._waiting and self._has_room(now)

    def _has_room(self, now: float) -> bool:
        if self._engine.due:
            self._engine.end_due(now)
        if self._handed:
            self._handed = {one: until for one, until in self._handed.items() if one.open and until > now}
        return not self._handed or self._excess_s(now) < 0

    def _warm_first(self) -> WarmFirst[Sending]:
        capacity = self.cache.capacity
        return WarmFirst(
            self.missing,
            capacity,
            room=lambda: capacity,  # a router does not see how much running requests hold
            speed=lambda: self._engine.tokens_per_s,
            repeated=lambda: self._repeated.share,
            overtake_s=self._overtake_s,
        )

    def next_at(self, now: float) -> float | None:
        """Return when the engine should get a request even if nothing happens until then; None: nothing is due."""
        due = [until for one, until in self._handed.items() if one.open]
        if self._counts and self._excess_s(math.inf) < 0:
            due.append(now + max(self._excess_s(now), 0.0) + 0.001)
        return min([*due, *(at for at, _, _ in self._engine.due[:1])], default=None)

    @property
    def _counts(self) -> bool:
        """Whether the oldest request in the engine ends by the engine's count."""
        return self._engine.counted and bool(self._handed) and not next(iter(self._handed)).streamed

    def _excess_s(self, now: float) -> float:
        """Return how many seconds of prefill the engine has beyond those up to which it gets another request.

        A count is late. So that the engine does not idle until then, it gets one request more by an estimate, no further one.
        """
        engine, missing = self._engine, [one.missing for one in self._handed]
        if self._ranks > 1:  # each of the others has a prompt
            missing = sorted(missing)[: 1 - self._ranks]
        ahead = sum(missing)
        if not self._counts:
            return ahead / engine.tokens_per_s - AHEAD_S
        oldest = next(iter(self._handed))
        return (ahead - min(oldest.missing, engine.computed(oldest, now))) / engine.tokens_per_s - AHEAD_S - COUNT_S

    def resize(self, capacity: int, ranks: int) -> None:
        """Set the size of the engine's cache, tokens, and its data-parallel ranks."""
        self.cache.capacity, self._ranks = capacity, ranks

    def answered(self, sending: Sending, cached: int | None) -> None:
        """Record the end of a request, and the cached tokens that its answer reports."""
        self.first_tokens.ended(sending)
        held = self._believed.pop(sending, None)
        if cached is not None and held is not None and sending.known > 2 * sending.shared:
            self.cache.learn(held=held, cached=cached > sending.known / 2)

    def hand(self, sending: Sending, now: float) -> None:
        """Record that the engine gets a request now, which was held or not."""
        self._handed = {one: until for one, until in self._handed.items() if one.open and until > now}
        number, missing = sending.conversation.number, self._engine.missing_of(sending)
        self._believed[sending] = number in self.cache
        self._repeated.note(missing, max(sending.known - (sending.tokens - missing), 0))
        self.cache.use(number, sending.tokens)
        ahead = sum(one.missing for one in self._handed)
        self._engine.handed(sending, missing, ahead, now)
        self.first_tokens.handed(sending)
        self._handed[sending] = now + SLOW * (ahead + missing) / self._engine.tokens_per_s + SLOW_S
