"""The order of held requests: tenants share an engine's prefill, and each one's are handed on by priority, warm first.

Tenants. Each tenant with waiting requests may have one of them in the *round*, from which the engine's next request comes, warm
first (`eviction_client.schedule.warm_first`). A tenant that has had its share of the prefill since it began to wait joins the
round again once the others have had as much (weighted fair queueing: Demers, Keshav and Shenker, SIGCOMM 1989). Until then only
a warm request of it may join. So a tenant within its share waits for at most one request of each other tenant, for its own
earlier ones, and for the bound of overtaking, whatever the others send. With one tenant, or with one request per tenant, the
order is warm first alone.

Priorities. A lower number goes first, as in vLLM, among the requests of one tenant only: so anybody may name one. The oldest
request of a tenant gets a part of its prefill (`OLDEST`), so it is handed on after at most 1 / `OLDEST` times its own prefill
and that of the requests that came before it.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from eviction_client.schedule.warm_first import WARM, WarmFirst
from lpc_apps.routing.router import Sending

OLDEST: Final = 0.1
"""Part of a tenant's prefill that its oldest request gets, whatever its priority."""
LOOKED: Final = 16
"""Tenants beyond their share that are asked for a warm request at each choice."""


class _Level:
    """Waiting requests of one tenant and one priority, in order of arrival."""

    def __init__(self, order: WarmFirst[Sending]) -> None:
        self.order = order
        self.waiting: dict[Sending, None] = {}

    def first(self) -> Sending:
        self.order.step()
        return self.order.first() or next(iter(self.waiting))


class _Lane:
    """Waiting requests of one tenant.

    Attributes:
        waiting: in order of arrival, with their priorities; without the head.
        head: the request in the round.
        due: virtual time at which its share permits the next one.
        owed: tokens of prefill that its oldest request is owed.
    """

    def __init__(self, due: float) -> None:
        self.levels: dict[int, _Level] = {}
        self.waiting: dict[Sending, int] = {}
        self.head: Sending | None = None
        self.due = due
        self.owed = 0.0


class Lanes:
    """Held requests by tenant and priority.

    Args:
        order: returns an empty order, warm first.
        missing: returns the prompt tokens that the engine is believed to compute for a request.

    Attributes:
        resting: heap of the tenants without a request in the round, with outdated entries: virtual time, a number, the tenant.
    """

    def __init__(self, order: Callable[[], WarmFirst[Sending]], missing: Callable[[Sending], int]) -> None:
        self._order, self._missing = order, missing
        self._round = order()
        self._heads: dict[Sending, None] = {}
        """The requests in the round, in the order in which they joined it."""
        self._lanes: dict[str, _Lane] = {}
        self.resting: list[tuple[float, int, str]] = []
        self._tenants: dict[Sending, str] = {}
        """Of all that wait, in order of arrival."""
        self._now = 0.0
        """Virtual time: prompt tokens that each waiting tenant could have had computed."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._tenants)

    def __contains__(self, sending: object) -> bool:
        return sending in self._tenants

    def __iter__(self) -> Iterator[Sending]:
        return iter(self._tenants)

    def add(self, sending: Sending, tenant: str, priority: int) -> None:
        """Add a request that arrives now."""
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = _Lane(self._now)
            self._rest(tenant, lane)
        level = lane.levels.get(priority)
        if level is None:
            level = lane.levels[priority] = _Level(self._order())
        level.order.add(sending, sending.tokens)
        level.waiting[sending] = None
        lane.waiting[sending] = priority
        self._tenants[sending] = tenant

    def drop(self, sending: Sending) -> None:
        """Remove a request that is not to be handed on. Raises KeyError if it does not wait."""
        tenant = self._tenants.pop(sending)
        lane = self._lanes[tenant]
        if lane.head is sending:
            self._round.drop(sending)
            del self._heads[sending]
            lane.head = None
            if lane.waiting:
                self._rest(tenant, lane)
        else:
            priority = lane.waiting.pop(sending)
            level = lane.levels[priority]
            level.order.drop(sending)
            del level.waiting[sending]
            if not level.waiting:
                del lane.levels[priority]
        if lane.head is None and not lane.waiting:
            del self._lanes[tenant]

    def take(self) -> Sending:
        """Remove and return the request to hand on; at least one must wait."""
        self._fill()
        self._round.step()
        sending = self._round.first() or next(iter(self._heads))
        self._round.remove(sending)
        self._round.settle()
        del self._heads[sending]
        tenant = self._tenants.pop(sending)
        lane = self._lanes[tenant]
        lane.head = None
        tokens = self._missing(sending)
        lane.due = max(lane.due, self._now) + tokens
        self._now += tokens / len(self._lanes)
        if lane.waiting:
            self._rest(tenant, lane)
        else:
            del self._lanes[tenant]
        return sending

    def _rest(self, tenant: str, lane: _Lane) -> None:
        self._count += 1
        heapq.heappush(self.resting, (lane.due, self._count, tenant))
        if len(self.resting) > 2 * len(self._lanes) + 64:
            waiting = {name: one.due for name, one in self._lanes.items() if one.head is None}
            self.resting = list({name: (due, at, name) for due, at, name in self.resting if waiting.get(name) == due}.values())
            heapq.heapify(self.resting)

    def _fill(self) -> None:
        """Let requests join the round: of each tenant within its share, warm ones of others, and one if there is none."""
        resting, left = self.resting, []
        looked = 0
        while resting and (resting[0][0] <= self._now or looked < LOOKED):
            entry = heapq.heappop(resting)
            lane = self._lanes.get(entry[2])
            if lane is None or lane.head is not None or lane.due != entry[0]:
                continue
            within = lane.due <= self._now or not self._heads
            self._now = max(self._now, lane.due) if not self._heads else self._now
            sending = self._next(lane)
            if not within and (looked := looked + 1) and self._missing(sending) > WARM * sending.tokens:
                left.append(entry)
                continue
            self._join(lane, sending)
        for entry in left:
            heapq.heappush(resting, entry)

    def _next(self, lane: _Lane) -> Sending:
        """Return the next request of a tenant."""
        if len(lane.levels) > 1:
            oldest = next(iter(lane.waiting))
            if lane.owed >= self._missing(oldest):
                return oldest
        return lane.levels[min(lane.levels)].first()

    def _join(self, lane: _Lane, sending: Sending) -> None:
        tokens = self._missing(sending)
        if len(lane.levels) > 1:
            oldest = sending is next(iter(lane.waiting))
            lane.owed = max(lane.owed - tokens, 0.0) if oldest else lane.owed + tokens * OLDEST / (1 - OLDEST)
        else:
            lane.owed = 0.0
        priority = lane.waiting.pop(sending)
        level = lane.levels[priority]
        level.order.remove(sending)
        level.order.settle()
        del level.waiting[sending]
        if not level.waiting:
            del lane.levels[priority]
        lane.head = sending
        self._heads[sending] = None
        self._round.add(sending, sending.tokens)
