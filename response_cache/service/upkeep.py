"""Operations of the response caches other than lookup and store: feedback, invalidation, deletion, statistics, report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.redis_reach import RedisFailed
from response_cache.keys.canonical import Scope
from response_cache.keys.sealing import Keys
from response_cache.keys.tickets import Served, Tickets
from response_cache.semantic.evidence import Tier
from response_cache.service.metrics import CacheMetrics
from response_cache.service.outcomes import SOURCES, Reason
from response_cache.service.similar import SimilarQuestions
from response_cache.store.days import Days
from response_cache.store.frequent import FrequentQuestion, FrequentQuestions
from response_cache.store.pairs import QuestionPair, QuestionPairs
from response_cache.store.scopes import Scopes, ScopeSettings
from response_cache.store.store import Store

RESULTS: Final[Sequence[str]] = (*SOURCES, *get_args(Reason))
FIELDS: Final = (*RESULTS, "prompt_tokens", "completion_tokens", "engine_ms", "reported_wrong")
"""Counts of a day."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Lives on one event loop. No method raises RedisFailed."""

    keys: Keys
    store: Store
    scopes: Scopes
    semantic: SimilarQuestions
    frequent: FrequentQuestions
    question_pairs: QuestionPairs
    metrics: CacheMetrics
    days: Days

    async def feedback(
        self, client: str, ticket: bytes, *, wrong: bool, drop: bool, tenant: str = "", reason: str = ""
    ) -> tuple[bool, bool]:
        """Record feedback on an answer; return whether it was counted, and whether the entry was deleted.

        An answer counts as wrong only once, or a user could report any number of wrong answers.
        """
        served = Tickets(self.store.namer).read(client, tenant, Served, ticket)
        if served is None:
            return False, False
        name = await self._name_of(client, served.scope)
        counts, dropped = True, False
        try:
            if wrong and name is not None:
                counts = await self.semantic.complain(
                    served, ticket, self.scopes.of(name), tenant, outdated=reason == "outdated"
                )
            if drop:
                self.semantic.forget(served.scope, served.entry)
                dropped = await self.store.drop(served.scope, served.entry)
        except RedisFailed:
            pass
        if counts:
            verdict = (reason or "wrong") if wrong else "right"
            self.metrics.feedback.labels(self.scopes.label(name or ""), verdict).inc()
            if wrong and name is not None:
                self.days.count(served.scope, {"reported_wrong": 1})
        return counts, dropped

    async def invalidate(self, client: str, *, scope: str | None = None, erase: bool = False) -> tuple[bool, int]:
        """Make answers unfindable.

        Args:
            client: authenticated name of the client.
            scope: name of a scope; None for all of the client's scopes.
            erase: whether to delete them.

        Returns:
            Whether Redis responded, and the number of deleted entries.
        """
        try:
            scopes = await self._of(client, scope)
            for one in scopes.values():
                await self.store.invalidate(one)
                await self.question_pairs.erase(one)
                if erase:
                    await self.frequent.erase(one)
            return True, sum([await self.store.erase(one) for one in scopes.values()]) if erase else 0
        except RedisFailed:
            return False, 0

    async def yesterday(self, client: str, scope: str, tenant: str, most: int) -> Sequence[FrequentQuestion] | None:
        """Return a tenant's most frequent questions of yesterday; None if Redis did not respond."""
        if not self.scopes.of(scope).warm_up:
            return []
        try:
            return await self.frequent.yesterday(self.store.namer.scope(client, scope), tenant, most)
        except RedisFailed:
            return None

    async def pairs(self, client: str, scope: str, most: int) -> Sequence[QuestionPair] | None:
        """Return questions of a client's scope with their candidates, the latest first; None if Redis did not respond."""
        shown = self.scopes.of(scope).pairs
        if shown == "off":
            return []
        try:
            found = await self.question_pairs.read(self.store.namer.scope(client, scope), most)
        except RedisFailed:
            return None
        # The setting may have been `text` when they were kept.
        return found if shown == "text" else [pair._replace(question="", candidate="") for pair in found]

    async def stats(self, client: str, scope: str | None) -> Sequence[pb.ScopeStats]:
        """Return the state of a client's scope, or of all its scopes."""
        try:
            scopes = await self._of(client, scope)
        except RedisFailed:
            return [self._stats(scope)] if scope is not None else []
        return [await self._known_stats(name, one) for name, one in sorted(scopes.items())]

    async def _known_stats(self, name: str, scope: Scope) -> pb.ScopeStats:
        stats = self._stats(name)
        try:
            stats.entries = await self.store.size(scope)
            for tier in get_args(Tier):
                await self._add_tier(stats, scope, self.scopes.of(name), tier)
        except RedisFailed:
            return self._stats(name)
        stats.known = True
        return stats

    async def _add_tier(self, stats: pb.ScopeStats, scope: Scope, settings: ScopeSettings, tier: Tier) -> None:
        in_force, progress = await self.semantic.in_force(scope, settings, tier)
        found = stats.tiers.add(
            source=pb.Source.Value(f"SOURCE_{tier.upper()}"),
            mode=settings.mode_of(tier),
            labels=in_force.labels,
            labels_different=in_force.different,
        )
        if in_force.threshold is not None:
            found.error_bound = in_force.error_bound
        if progress is not None:
            found.labels_effective, found.labels_needed = progress.effective, progress.needed
            found.design_effect, found.lookups_missing = progress.design_effect, progress.lookups
        if tier == "semantic":
            stats.labels, stats.labels_different = in_force.labels, in_force.different
            stats.error_bound = in_force.error_bound
            stats.bound_in_force = stats.bound if in_force.bound is None else in_force.bound
            if in_force.threshold is not None:
                stats.threshold = in_force.threshold

    async def report(self, client: str, scope: str | None, days: int) -> pb.ReportResponse:
        """Return look-ups by result, and savings, of a client's scope or of all its scopes, on this many days up to today."""
        names = self.days.latest(days)
        answer = pb.ReportResponse()
        try:
            await self.days.share()
            for name, one in sorted((await self._of(client, scope)).items()):
                for day, counts in zip(names, await self.days.read(one, names, FIELDS), strict=True):
                    if counts:
                        answer.days.append(_day(name, day, counts))
        except RedisFailed:
            return pb.ReportResponse()
        answer.known = True
        return answer

    def _stats(self, name: str) -> pb.ScopeStats:
        """Return the settings of a scope."""
        settings = self.scopes.of(name)
        return pb.ScopeStats(
            scope=name,
            kind=settings.kind,
            mode=settings.semantic,
            ttl_s=settings.life_s,
            bound=settings.bound,
            level=settings.level,
            similarity=settings.similarity,
        )

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


def _day(scope: str, day: str, counts: Mapping[str, int]) -> pb.DayOfScope:
    return pb.DayOfScope(
        scope=scope,
        day=day,
        lookups={result: counts[result] for result in RESULTS if result in counts},
        prompt_tokens=counts.get("prompt_tokens", 0),
        completion_tokens=counts.get("completion_tokens", 0),
        engine_s=counts.get("engine_ms", 0) / 1000,
        reported_wrong=counts.get("reported_wrong", 0),
    )
