"""Lookup of a request in the exact, the normalised and the semantic tier, and storing of its answer.

A failing store is a miss with a reason. Only invalid requests raise.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from lpc.errors import InvalidRequest
from lpc.wire.redis_reach import RedisFailed, RedisRefused
from response_cache.keys.canonical import REMEMBERED, CacheRequest, Scope
from response_cache.keys.tickets import Flight, Served, Tickets
from response_cache.semantic.time_sensitive import time_sensitive
from response_cache.service.lookup import Lookup
from response_cache.service.opening import Opener, offload
from response_cache.service.outcomes import CacheHit, CacheMiss, Stored
from response_cache.service.similar import SimilarQuestions
from response_cache.store import entry as entries
from response_cache.store.answers import Answer, Refusal, not_kept, refused
from response_cache.store.days import DAY_S, Days
from response_cache.store.entry import Entry
from response_cache.store.flights import Flights
from response_cache.store.frequent import FrequentQuestions
from response_cache.store.scopes import Scopes
from response_cache.store.store import Store

MAX_WAIT_S: Final = 60.0
LISTED_S: Final = 60.0
"""Seconds for which a scope counts as still on its client's list, which may be on another node of a Cluster."""
TURNS: Final = 5
"""Latest texts of the user that may make a request time-sensitive, since a later one may refer to it ("And in Paris?")."""
COUNTING: Final = 256
"""Look-ups that are counted at a time; more are not counted."""
MAX_NAME: Final = 256
"""Longest scope or tenant in characters."""


class ResponseCache:
    """The response caches of one sidecar. Lives on one event loop.

    Args:
        store: entries in Redis.
        opener: opens the entries of a lookup; has keys, metrics and clock.
        flights: single flight of equal requests.
        scopes: the operator's settings.
        semantic: the semantic tier.
        frequent: counts questions in scopes with `warm_up`.
        days: counts by day.
        max_entry_bytes: largest answer that is cached.
        client_scopes: most scopes of one client.
    """

    def __init__(
        self,
        store: Store,
        opener: Opener,
        flights: Flights,
        scopes: Scopes,
        semantic: SimilarQuestions,
        frequent: FrequentQuestions,
        days: Days,
        *,
        max_entry_bytes: int,
        client_scopes: int,
    ) -> None:
        self.scopes = scopes
        self._store = store
        self._opener = opener
        self._semantic = semantic
        self._frequent = frequent
        self._counting: set[asyncio.Task[None]] = set()
        self._keys = opener.keys
        self._namer = store.namer
        self._tickets = Tickets(store.namer)
        self._flights = flights
        self._metrics = opener.metrics
        self._days = days
        self._max_entry_bytes = max_entry_bytes
        self._client_scopes = client_scopes
        self._clock = opener.clock
        self._listed: dict[bytes, tuple[int | None, float]] = {}

    async def lookup(
        self,
        client: str,
        request: CacheRequest,
        *,
        wait_s: float = 0.0,
        exact_only: bool = False,
        renews: bool = False,
        asks_again: bool = False,
    ) -> CacheHit | CacheMiss:
        """Look up an answer. If the call is cancelled, no other caller waits for this one's answer.

        Args:
            client: authenticated name of the client.
            request: the request.
            wait_s: longest wait for another caller's answer to the same request, in seconds.
            exact_only: whether to skip the other tiers.
            renews: whether the caller renews the flight that it may get.
            asks_again: whether the caller asks again if the answer is in flight. This call is then not counted.

        Raises:
            InvalidRequest: the request is invalid.
        """
        _check(request)
        settings = self.scopes.of(request.scope)
        scope = self._namer.scope(client, request.scope)
        outcome: CacheHit | CacheMiss
        admitted: bool | None = None
        with contextlib.suppress(RedisFailed):
            admitted = await self._admitted(client, request, scope)
        if because := refused(request, settings):
            outcome = CacheMiss("off") if because == "off" else CacheMiss("refused", refusal=because)
        elif admitted is False:
            outcome = CacheMiss("refused", refusal="scopes")
        elif admitted is None:
            outcome = CacheMiss("unavailable")
        else:
            lookup = await self._read(client, request, last_turn=False)
            try:
                outcome = await self._find(lookup, wait_s, exact_only=exact_only, renews=renews)
            except RedisFailed:
                outcome = CacheMiss("unavailable")
            if asks_again and isinstance(outcome, CacheMiss) and outcome.reason == "in_flight":
                return outcome
            if settings.warm_up and not lookup.about_now and not exact_only and len(self._counting) < COUNTING:
                task = asyncio.get_running_loop().create_task(self._count(lookup))
                self._counting.add(task)
                task.add_done_callback(self._counting.discard)
        self._metrics.looked_up(self.scopes.label(request.scope), outcome)
        if admitted:  # else the scope is not on the client's list, and anybody could create any number of counts
            self._days.count(scope, _amounts(outcome))
        return outcome

    async def counted(self) -> None:
        """Wait until all look-ups so far were counted, and flights whose caller has gone were ended."""
        await asyncio.gather(*self._counting, return_exceptions=True)
        await self._flights.close()

    async def _count(self, lookup: Lookup) -> None:
        with contextlib.suppress(RedisFailed):
            await self._frequent.count(lookup.names.scope, lookup.names.exact, lookup.request)

    async def renew(self, client: str, flights: Sequence[tuple[str, bytes]]) -> int:
        """Renew flights that their callers lead, each a tenant and a ticket; return how many have not ended."""
        held = []
        for tenant, data in flights:
            if (ticket := self._tickets.read(client, tenant, Flight, data)) is not None:
                held.append((ticket.scope, ticket.entry, ticket.token.encode()))
        try:
            return await self._flights.renew(held)
        except RedisFailed:
            return 0

    def release(self, client: str, tenant: str, flight: bytes) -> None:
        """End a flight in the background, because its caller has gone before it got the ticket."""
        if (ticket := self._tickets.read(client, tenant, Flight, flight)) is not None:
            self._flights.release(ticket.scope, ticket.entry, ticket.token.encode())

    def too_large_to_look_up(self, scope: str) -> CacheMiss:
        """Count a request that is too large to look up, and return the miss."""
        outcome = CacheMiss("refused", refusal="too_large")
        self._metrics.looked_up(self.scopes.label(scope), outcome)
        return outcome

    def too_large_to_store(self, scope: str) -> Stored:
        """Count an answer to a request that is too large, and return the refusal."""
        self._metrics.stored(self.scopes.label(scope), "too_large")
        return Stored(refusal="too_large")

    async def store(
        self,
        client: str,
        request: CacheRequest,
        answer: Answer,
        *,
        flight: bytes = b"",
        candidate: bytes = b"",
        aborted: bool = False,
        no_store: bool = False,
    ) -> Stored:
        """Store the engine's answer.

        Args:
            client: authenticated name of the client.
            request: the request.
            answer: the engine's answer.
            flight: ticket of the miss.
            candidate: ticket of the miss.
            aborted: whether the answer is incomplete.
            no_store: whether the answer must not be stored.

        Raises:
            InvalidRequest: the request is invalid.
        """
        _check(request)
        lookup = await self._read(client, request, last_turn=self.scopes.of(request.scope).learns)
        names, settings = lookup.names, lookup.settings
        ticket = self._tickets.read(client, request.tenant, Flight, flight)
        if ticket is not None and (ticket.scope, ticket.entry) != (names.scope, names.exact):
            ticket = None
        because: Refusal | None = "aborted"
        if not aborted:
            because = await offload(answer.size, lambda: not_kept(request, answer, settings, self._max_entry_bytes))
        try:
            whole = because in (None, "too_large", "aborted")
            await self._semantic.label(lookup, None if aborted else answer, candidate, whole=whole)
            if no_store and not aborted:
                because = "no_store"
            if because is None:
                because = await self._put(lookup, answer, ticket)
        except RedisFailed:
            because = because or "unavailable"
        if ticket is not None:
            again = because in ("aborted", "stale", "unavailable")
            with contextlib.suppress(RedisFailed):
                await self._flights.end(names.scope, names.exact, ticket.token.encode(), kept=because is None, again=again)
        self._metrics.stored(self.scopes.label(request.scope), because)
        return Stored(refusal=because) if because is not None else Stored(self._exact_ticket(lookup))

    async def _read(self, client: str, request: CacheRequest, *, last_turn: bool) -> Lookup:
        """Return the record of a request, with partition and normal form if ``last_turn`` and it is not time-sensitive."""
        settings = self.scopes.of(request.scope)

        def read() -> Lookup:
            about_now = settings.time_sensitive and any(map(time_sensitive, request.user_texts()[-TURNS:]))
            names = self._namer.names(client, request, last_turn=last_turn and not about_now)
            return Lookup(client, request, settings, names, about_now)

        return await offload(request.size, read)

    def _exact_ticket(self, lookup: Lookup) -> bytes:
        served = Served(lookup.names.scope, lookup.names.exact, "exact", 1.0)
        return self._tickets.give(lookup.client, lookup.request.tenant, served)

    # -- lookup ----------------------------------------------------------------------------------------------------------------

    async def _find(self, lookup: Lookup, wait_s: float, *, exact_only: bool, renews: bool) -> CacheHit | CacheMiss:
        request, names, learns = lookup.request, lookup.names, lookup.settings.learns
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + min(wait_s, MAX_WAIT_S)
        unless_stored = True
        while True:
            lookup.generation, record = await self._store.find(names)
            entry = await self._opener.open(lookup, names.exact, record)
            if entry is not None:
                self._metrics.lookup_seconds.observe(loop.time() - began)
                age, remaining = entry.life(self._clock())
                return CacheHit(self._exact_ticket(lookup), "exact", entry.answer, age, remaining)
            # Followers wait before the other tiers are asked, so that each does not repeat its lookup, and only the leader's
            # lookup counts as evidence.
            waits = deadline > loop.time()
            if (waits or learns) and await self._flights.flying(names.scope, names.exact):
                if not waits:
                    return CacheMiss("in_flight")
                state = await self._flights.wait(names.scope, names.exact, deadline - loop.time())
                if state == "flying":
                    return CacheMiss("in_flight")
                began = loop.time()
                if state == "stored":
                    continue
            miss: CacheHit | CacheMiss = CacheMiss("cold")
            if learns and lookup.about_now:
                miss = CacheMiss("time_sensitive")
            elif not exact_only and learns:
                lookup.names = await offload(request.size, partial(self._namer.with_last_turn, names, request))
                miss = await self._semantic.lookup(lookup)
            self._metrics.lookup_seconds.observe(loop.time() - began)
            if isinstance(miss, CacheHit):
                return miss
            # A record that is here cannot be used: it is damaged, outdated or invalidated.
            unless_stored = unless_stored and record is None
            try:
                state, token = await self._flights.take(names.scope, names.exact, unless_stored=unless_stored, renews=renews)
            except RedisRefused:
                return miss  # Redis is full, or the key has another type: no flight
            if state == "free":
                flight = Flight(names.scope, names.exact, token.decode(), lookup.generation)
                return miss._replace(flight=self._tickets.give(lookup.client, request.tenant, flight))
            if state == "not_kept":
                return miss  # the next answer would not be cached either: no flight
            if state == "flying" and deadline <= loop.time():
                return CacheMiss("in_flight")
            # "stored" means that an answer arrived just now. A second time, the entry's key has another type and cannot be
            # found.
            unless_stored = state != "stored"

    # -- store -----------------------------------------------------------------------------------------------------------------

    async def _put(self, lookup: Lookup, answer: Answer, flight: Flight | None) -> Refusal | None:
        client, request, names, settings = lookup.client, lookup.request, lookup.names, lookup.settings
        if not await self._admitted(client, request, names.scope):
            return "scopes"
        if flight is not None:
            lookup.generation = flight.generation
        else:
            lookup.generation, _ = await self._store.find(names)
            # The generation at the time of the request is unknown: the engine may have begun before an invalidation.
            if await self._store.invalidated_s(names.scope) < answer.engine_s:
                return "stale"
        await self._admitted(client, request, names.scope, lookup.generation)
        now = self._clock()
        ends = now + (min(settings.life_s, settings.time_sensitive_ttl_s) if lookup.about_now else settings.life_s)
        entry = Entry(
            client=client,
            scope=request.scope,
            tenant=request.tenant,
            question=request.last_turn or "",
            answer=answer,
            stored_at=now,
            expires_at=ends,
            generation=lookup.generation,
            partition=names.partition or b"",
        )
        keyring = self._keys.current
        record = await offload(answer.size, lambda: entries.seal(entry, names.scope, names.exact, keyring))
        if len(record) > min(settings.max_mib, settings.tenant_mib) * 2**20:
            return "full"
        vector = await self._semantic.vector(lookup, min(ends, now + settings.semantic_life_s))
        token = b"" if flight is None else flight.token.encode()
        put = await self._store.put(names, entry, record, settings, vector=vector, flight=token)
        self._metrics.evicted(self.scopes.label(request.scope), put)
        return None if put.stored else "stale"

    async def _admitted(self, client: str, request: CacheRequest, scope: Scope, generation: int | None = None) -> bool:
        """Add a scope to its client's list, which invalidation needs; return False if the client has too many scopes.

        The scope is added again after a while and in another generation, because the list may have been lost or purged.
        """
        now = asyncio.get_running_loop().time()
        known, at = self._listed.get(scope, (None, -LISTED_S))
        if now - at < LISTED_S and generation in (None, known):
            return True
        sealed = self._keys.current.seal(request.scope.encode(), b"scope" + scope)
        if not await self._store.register(client, scope, sealed, self._client_scopes):
            return False
        if len(self._listed) >= REMEMBERED:
            self._listed.clear()
        self._listed[scope] = (generation or known, now)
        return True


def _amounts(outcome: CacheHit | CacheMiss) -> dict[str, int]:
    """Return what a look-up adds to the counts of its day."""
    if isinstance(outcome, CacheMiss):
        return {outcome.reason: 1}
    answer = outcome.answer
    return {
        outcome.source: 1,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "engine_ms": round(1000 * min(answer.engine_s, DAY_S)),
    }


def check_names(*names: str) -> None:
    """Raise InvalidRequest if the name of a scope or tenant is too long. Names of scopes are kept in memory."""
    if max(map(len, names)) > MAX_NAME:
        raise InvalidRequest(f"a scope or tenant is longer than {MAX_NAME} characters: shorten it")


def _check(request: CacheRequest) -> None:
    """Raise InvalidRequest if a request is invalid."""
    if not request.model:
        raise InvalidRequest("the request names no model: send the model's name at the engine")
    if not request.messages and request.prompt is None and not request.parameters:
        raise InvalidRequest("the request is empty: send messages or prompt")
    check_names(request.scope, request.tenant)
