"""The way of a request through the tiers, exact and semantic, or to the engine; and of its answer into the store.

Whatever goes wrong with the store is a miss that says so. Only invalid requests raise here.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from lpc.errors import InvalidRequest
from lpc.responses import entry as entries
from lpc.responses.answers import Answer, Refusal, not_kept, refused
from lpc.responses.canonical import REMEMBERED, Names, Request, Scope
from lpc.responses.entry import Entry
from lpc.responses.flights import Flights
from lpc.responses.scopes import Scopes, ScopeSettings
from lpc.responses.sealing import Keys
from lpc.responses.store import Store
from lpc.responses.tickets import Flight, Tickets
from lpc.wire.redis_reach import RedisFailed, RedisRefused
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.opening import Opener, aside
from predictor_service.responses.outcomes import Hit, Miss, Stored
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.tally import Tally

MAX_WAIT_S: Final = 60.0
MAX_TAGS: Final = 16
LISTED_S: Final = 60.0
"""How long a scope is taken to be still on its client's list, which may lie on another node of a Cluster."""
MAX_NAME: Final = 256
"""Characters of a scope, a tag, a tenant."""


class ResponseCache:
    """The response caches of one sidecar. Lives on one event loop.

    Args:
        keys: of the key file.
        store, flights, tally: of the caches' own Redis.
        scopes: what the operator allows.
        semantic: the tiers that serve the answer to another request.
        metrics: of the sidecar.
        max_entry_bytes: answers above are not kept.
        client_scopes: that one client may use.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: Keys,
        store: Store,
        flights: Flights,
        tally: Tally,
        scopes: Scopes,
        semantic: SimilarQuestions,
        metrics: CacheMetrics,
        *,
        max_entry_bytes: int,
        client_scopes: int,
        clock: Callable[[], float],
    ) -> None:
        self.scopes = scopes
        self._store = store
        self._semantic = semantic
        self._tally = tally
        self._keys = keys
        self._namer = store.namer
        self._tickets = Tickets(store.namer)
        self._flights = flights
        self._metrics = metrics
        self._max_entry_bytes = max_entry_bytes
        self._client_scopes = client_scopes
        self._clock = clock
        self._registered: dict[bytes, tuple[str | None, float]] = {}

    async def lookup(
        self, client: str, request: Request, *, wait_s: float = 0.0, exact_only: bool = False, max_age_s: float = 0.0
    ) -> Hit | Miss:
        """Find an answer.

        Args:
            client: as it was authenticated.
            asked: its request.
            wait_s: how long to wait for another caller's answer to the same request.
            exact_only: look for the very request alone.
            max_age_s: of an answer; 0: any.

        Raises:
            InvalidRequest: it is not a request.
        """
        _check(request)
        settings = self.scopes.of(request.scope)
        scope = self._namer.scope(client, request.scope)
        outcome: Hit | Miss
        admitted: bool | None = None
        with contextlib.suppress(RedisFailed):
            admitted = await self._admitted(client, request, scope)
        if because := refused(request, settings):
            outcome = Miss("off") if because == "off" else Miss("refused", refusal=because)
        elif admitted is False:
            outcome = Miss("refused", refusal="scopes")
        elif admitted is None:
            outcome = Miss("unavailable")
        else:
            names = await aside(request.size, lambda: self._namer.names(client, request, last_turn=False))
            try:
                outcome = await self._find(client, request, names, settings, wait_s, max_age_s, exact_only=exact_only)
            except RedisFailed:
                outcome = Miss("unavailable")
        self._metrics.looked_up(self.scopes.label(request.scope), outcome)
        if scope in self._registered:
            self._tally.looked_up(scope, outcome, self._clock())
        return outcome

    def too_large_to_look_up(self, client: str, scope: str) -> Miss:
        """Count a request that is not read, and return why."""
        outcome = Miss("refused", refusal="too_large")
        self._metrics.looked_up(self.scopes.label(scope), outcome)
        self._tally.looked_up(self._namer.scope(client, scope), outcome, self._clock())
        return outcome

    def too_large_to_store(self, client: str, scope: str) -> Stored:
        """Count the answer to a request that is not read, and return why it is not kept."""
        self._metrics.stored(self.scopes.label(scope), "too_large")
        self._tally.stored(self._namer.scope(client, scope), "too_large", self._clock())
        return Stored(refusal="too_large")

    async def store(
        self,
        client: str,
        request: Request,
        answer: Answer,
        *,
        flight: bytes = b"",
        candidate: bytes = b"",
        same: bool | None = None,
        ttl_s: float = 0.0,
        aborted: bool = False,
        no_store: bool = False,
    ) -> Stored:
        """Take what the engine said. ``flight``, ``candidate``: of the miss; ``same``: the candidate says the same.

        Raises:
            InvalidRequest: it is not a request.
        """
        _check(request)
        settings = self.scopes.of(request.scope)
        names = await aside(request.size, lambda: self._namer.names(client, request, last_turn=settings.semantic != "off"))
        ticket = self._tickets.read(client, request.tenant, Flight, flight)
        if ticket is not None and (ticket.scope, ticket.entry) != (names.scope, names.exact):
            ticket = None
        because: Refusal | None = "aborted"
        if not aborted:
            because = await aside(answer.size, lambda: not_kept(request, answer, settings, self._max_entry_bytes))
        try:
            if because not in (None, "too_large", "aborted"):
                same = False  # the candidate is a whole text, and this is not
            await self._semantic.label(client, names, request, settings, None if aborted else answer, candidate, same)
            if no_store and not aborted:
                because = "no_store"
            if because is None:
                because = await self._put(client, request, answer, names, settings, ticket, ttl_s)
        except RedisFailed:
            because = because or "unavailable"
        if ticket is not None:
            again = because in ("aborted", "stale", "unavailable")
            with contextlib.suppress(RedisFailed):
                await self._flights.end(names.scope, names.exact, ticket.token.encode(), kept=because is None, again=again)
        self._metrics.stored(self.scopes.label(request.scope), because)
        if names.scope in self._registered:
            self._tally.stored(names.scope, because, self._clock())
        if because is not None:
            return Stored(refusal=because)
        proof = self._tickets.exact_proof(client, request.tenant, names.scope, names.exact)
        return Stored(Tickets.exact(names.scope, names.exact, proof))

    # -- the way of a lookup ---------------------------------------------------------------------------------------------------

    async def _find(
        self,
        client: str,
        request: Request,
        names: Names,
        settings: ScopeSettings,
        wait_s: float,
        max_age_s: float,
        *,
        exact_only: bool,
    ) -> Hit | Miss:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + min(wait_s, MAX_WAIT_S)
        unless_stored = True
        while True:
            found = await self._store.find(names, request.model, request.model_version, request.tags)
            opener = Opener(
                *(self._keys, self._store, self._metrics, self._clock),
                client=client,
                request=request,
                found=found,
                max_age_s=max_age_s,
            )
            entry = await opener.open(names.scope, names.exact, found.record)
            if entry is not None:
                self._metrics.lookup_seconds.observe(loop.time() - began)
                age, remaining = entry.life(self._clock())
                return Hit(Tickets.exact(names.scope, names.exact, entry.proof), "exact", entry.answer, age, remaining)
            # A request that waits for this very answer does not look for another one again and again. And where the leader's
            # answer becomes a label, the others do not count as lookups.
            waits = deadline > loop.time()
            if (waits or settings.semantic != "off") and await self._flights.flying(names.scope, names.exact):
                if not waits:
                    return Miss("in_flight")
                state = await self._flights.wait(names.scope, names.exact, deadline - loop.time())
                if state == "flying":
                    return Miss("in_flight")
                began = loop.time()
                if state == "stored":
                    continue
            miss: Hit | Miss = Miss("cold")
            if not exact_only and settings.semantic != "off":
                by_turn = await aside(request.size, partial(self._namer.with_last_turn, names, request))
                miss = await self._semantic.lookup(client, by_turn, request, settings, opener)
            self._metrics.lookup_seconds.observe(loop.time() - began)
            if isinstance(miss, Hit):
                return miss
            # A record that is here cannot be used: it is damaged, outdated or invalidated.
            unless_stored = unless_stored and found.record is None
            try:
                state, token = await self._flights.take(names.scope, names.exact, unless_stored=unless_stored)
            except RedisRefused:
                return miss  # Redis is full, or holds something else in the flight's place: nobody waits for this answer
            if state == "free":
                flight = Flight(names.scope, names.exact, token.decode(), found.stamp, found.tags)
                return miss._replace(flight=self._tickets.give(client, request.tenant, flight))
            if state == "not_kept":
                return miss  # nor would the next one be: nobody waits for it
            if state == "flying" and deadline <= loop.time():
                return Miss("in_flight")
            # "stored" once: just now. Twice: a key of another type is in the entry's place, and no look will ever find it.
            unless_stored = state != "stored"

    # -- the way of an answer --------------------------------------------------------------------------------------------------

    async def _put(
        self,
        client: str,
        request: Request,
        answer: Answer,
        names: Names,
        settings: ScopeSettings,
        flight: Flight | None,
        ttl_s: float,
    ) -> Refusal | None:
        if not await self._admitted(client, request, names.scope):
            return "scopes"
        if flight is not None:
            stamp, tags = flight.stamp, flight.tags
        else:
            found = await self._store.find(names, request.model, request.model_version, request.tags)
            stamp, tags = found.stamp, found.tags
            # Nobody noted the generations when this was asked. The engine may have begun before an invalidation.
            if await self._store.invalidated_s(names.scope) < answer.engine_s:
                return "stale"
        if request.tags and tags != await self._store.tags(names.scope, request.tags):
            return "stale"
        await self._admitted(client, request, names.scope, stamp[0])
        now = self._clock()
        life_s = min(ttl_s or settings.life_s, settings.life_s)
        entry = Entry(
            *(client, request.scope, request.tenant, request.model, request.model_version, request.last_turn or ""),
            *(answer, now, now + life_s, stamp),
            tags=tuple(zip(request.tags, tags, strict=True)),
            partition=names.partition or b"",
            proof=self._tickets.exact_proof(client, request.tenant, names.scope, names.exact),
        )
        keyring = self._keys.current
        record = await aside(answer.size, lambda: entries.seal(entry, names.scope, names.exact, keyring))
        if len(record) > min(settings.max_mib, settings.tenant_mib) * 2**20:
            return "full"
        vector = await self._semantic.vector(names, request, settings, entry.expires_at, stamp[0])
        put = await self._store.put(
            names,
            record,
            stamp=stamp,
            model=request.model,
            version=request.model_version,
            now=now,
            life_s=life_s,
            max_entries=settings.max_entries,
            max_bytes=settings.max_mib * 2**20,
            tenant=request.tenant,
            tenant_entries=settings.tenant_entries,
            tenant_bytes=settings.tenant_mib * 2**20,
            vector=vector,
            flight=b"" if flight is None else flight.token.encode(),
        )
        self._metrics.evicted(self.scopes.label(request.scope), put)
        return None if put.stored else "stale"

    async def _admitted(self, client: str, request: Request, scope: Scope, generation: str | None = None) -> bool:
        """List a scope, else nobody could invalidate it by its client; return False where the client has too many.

        Again where the list may have been lost or purged: after a while, or when the scope has another generation.
        """
        now = asyncio.get_running_loop().time()
        known, at = self._registered.get(scope, (None, -LISTED_S))
        if now - at < LISTED_S and generation in (None, known):
            return True
        sealed = self._keys.current.seal(request.scope.encode(), b"scope" + scope)
        if not await self._store.register(client, scope, sealed, self._client_scopes):
            return False
        if len(self._registered) >= REMEMBERED:
            self._registered.clear()
        self._registered[scope] = (generation or known, now)
        return True


def _check(request: Request) -> None:
    """Refuse an invalid request. Raises InvalidRequest."""
    if not request.model:
        raise InvalidRequest("the request names no model: send the one that the engine would be asked for")
    if not request.messages and request.prompt is None and not request.parameters:
        raise InvalidRequest("the request is empty: send messages or prompt")
    if len(request.tags) > MAX_TAGS:
        raise InvalidRequest(f"the request has {len(request.tags)} tags: send at most {MAX_TAGS}")
    if any(
        len(name) > MAX_NAME for name in (request.scope, request.tenant, request.language, request.model_version, *request.tags)
    ):
        raise InvalidRequest(f"a scope, tenant, language, version or tag is longer than {MAX_NAME} characters: shorten it")
