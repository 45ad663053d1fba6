"""Operations of the response caches other than lookup and store: feedback, invalidation, deletion, statistics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lpc.responses.canonical import Scope
from lpc.responses.erasing import erase as erase_scope
from lpc.responses.erasing import erase_unfindable
from lpc.responses.scopes import Scopes, ScopeSettings
from lpc.responses.sealing import Keys
from lpc.responses.store import Store
from lpc.responses.tickets import Served, Tickets
from lpc.wire.redis_reach import RedisFailed
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.outcomes import InForce
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.tally import Tally, day_of

MAX_DAYS: Final = 31
REASONS: Final = frozenset({"outdated", "incomplete", "wrong_context", "opposite", "unsafe"})
"""Reasons that counters name. Others count as "other", because counters are not encrypted and a reason may quote a user."""


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """Statistics of one scope. ``known`` is whether Redis responded; ``days`` are counters by name, by UTC date."""

    name: str
    settings: ScopeSettings
    known: bool
    entries: int = 0
    in_force: InForce = field(default_factory=InForce)
    days: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Lives on one event loop. No method raises RedisFailed.

    Attributes:
        clock: returns seconds since the epoch.
    """

    keys: Keys
    store: Store
    tally: Tally
    scopes: Scopes
    semantic: SimilarQuestions
    metrics: CacheMetrics
    clock: Callable[[], float]

    async def feedback(
        self, client: str, ticket: bytes, *, wrong: bool, reason: str, drop: bool, tenant: str = ""
    ) -> tuple[bool, bool]:
        """Record feedback on an answer; return whether it was counted, and whether the entry was deleted.

        A semantic hit counts as wrong only once.
        """
        served = Tickets(self.store.namer).read(client, tenant, Served, ticket)
        if served is None:
            return False, False
        name = await self._name_of(client, served.scope)
        counted_reason = reason if reason in REASONS else "other" if reason else ""
        verdict = "wrong" if wrong else "right"
        counts, dropped = True, False
        try:
            if wrong and served.source != "exact" and name is not None:
                counts = await self.semantic.complain(served, ticket, self.scopes.of(name), tenant)
            if drop:
                self.semantic.forget(served.scope, served.entry)
                dropped = await self.store.drop(served.scope, served.entry)
        except RedisFailed:
            pass
        if counts:
            self.metrics.feedback.labels(self.scopes.label(name or ""), verdict).inc()
            self.tally.feedback(served.scope, f"{verdict}:{counted_reason}" if counted_reason else verdict, self.clock())
        return counts, dropped

    async def invalidate_entry(self, client: str, ticket: bytes, tenant: str = "") -> tuple[bool, int]:
        """Delete one entry; return whether Redis responded, and the number of deleted entries."""
        served = Tickets(self.store.namer).read(client, tenant, Served, ticket)
        if served is None:
            return True, 0
        self.semantic.forget(served.scope, served.entry)
        try:
            return True, int(await self.store.drop(served.scope, served.entry))
        except RedisFailed:
            return False, 0

    async def invalidate(
        self, client: str, *, scope: str | None = None, tag: str = "", model: str = "", version: str = "", erase: bool = False
    ) -> tuple[bool, int]:
        """Make answers unfindable.

        Args:
            client: authenticated name of the client.
            scope: name of a scope; None for all of the client's scopes.
            tag: only answers with this tag.
            model: only answers of this model.
            version: only answers of this version of the model.
            erase: whether to delete them; with a tag or model, all unfindable entries are deleted.

        Returns:
            Whether Redis responded, and the number of deleted entries.
        """
        try:
            scopes = await self._of(client, scope)
            for one in scopes.values():
                await self.store.invalidate(one, model=model, version=version, tag=tag)
            erased = 0
            if erase:
                for one in scopes.values():
                    if tag or model:
                        erased += await erase_unfindable(self.store, one, self.keys.current)
                    else:
                        erased += await erase_scope(self.store, one)
        except RedisFailed:
            return False, 0
        return True, erased

    async def stats(self, client: str, scope: str | None, days: int) -> Sequence[ScopeStats]:
        """Return the statistics of a client's scope, or of all its scopes, for the last ``days`` days including today."""
        await self.tally.flush()
        try:
            scopes = await self._of(client, scope)
        except RedisFailed:
            return [ScopeStats(scope, self.scopes.of(scope), known=False)] if scope is not None else []
        return [await self._scope_stats(name, one, min(max(days, 1), MAX_DAYS)) for name, one in sorted(scopes.items())]

    async def _scope_stats(self, name: str, scope: Scope, count: int) -> ScopeStats:
        settings = self.scopes.of(name)
        try:
            names = [day_of(self.clock(), before) for before in range(count)]
            days = {day: await self.tally.day(scope, day) for day in names}
            entries = await self.store.size(scope)
            in_force = await self.semantic.in_force(scope, settings)
        except RedisFailed:
            return ScopeStats(name, settings, known=False)
        return ScopeStats(name, settings, known=True, entries=entries, in_force=in_force, days=days)

    async def _of(self, client: str, scope: str | None) -> dict[str, Scope]:
        if scope is not None:
            return {scope: self.store.namer.scope(client, scope)}
        return await self.store.registered(client, self.keys.current)

    async def _name_of(self, client: str, scope: Scope) -> str | None:
        try:
            scopes = await self.store.registered(client, self.keys.current)
        except RedisFailed:
            return None
        return next((name for name, one in scopes.items() if one == scope), None)
