"""The normalised and the semantic tier: serve the answer to another question of the same partition if the tenant's evidence
permits it.

Each has evidence of its own. A question with a stored one of the same normal form is the normalised tier's alone: if that does
not serve it, the engine does. Otherwise the semantic tier would be certified by easy look-ups that it later does not get.

The scopes in use (`scopes_in_use.py`) have the indexes of vectors and the gates.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from lpc.wire.redis_reach import RedisAway, RedisFailed
from response_cache.keys.canonical import EntryId, Scope, owner_of
from response_cache.keys.sealing import Unsealable
from response_cache.keys.tickets import Candidate, Served, Tickets
from response_cache.semantic.evidence import Tier
from response_cache.semantic.gate import Decision
from response_cache.semantic.normal import alike
from response_cache.semantic.ranking import NEAREST, Ranking, shortlist
from response_cache.semantic.same_answer import equal_text
from response_cache.semantic.set_gate import evidence_score
from response_cache.semantic.threshold import EvidenceProgress
from response_cache.service.embedding import Embedder
from response_cache.service.judging import Judging, Rules
from response_cache.service.lookup import Lookup
from response_cache.service.opening import Opener
from response_cache.service.outcomes import CacheHit, CacheMiss, InForce, Reason
from response_cache.service.scopes_in_use import ScopesInUse, TenantTier, in_force_of
from response_cache.store import vectors as records
from response_cache.store.answers import Answer
from response_cache.store.entry import Entry, unseal
from response_cache.store.pairs import QuestionPair, QuestionPairs
from response_cache.store.scopes import ScopeSettings
from response_cache.store.shared_evidence import SharedEvidence
from response_cache.store.store import Store
from response_cache.store.vectors import Vector, Vectors

log = logging.getLogger(__name__)

CERTAIN: Final = 1.0
"""Score of all candidates of the normalised tier."""
STORE_PATIENCE_S: Final = 2.0
"""Longest wait for a vector when an answer is stored, in seconds. Without a vector the answer cannot be a candidate."""
NOTING: Final = 64
"""Pairs that are written at a time; more are not kept."""


class SimilarQuestions:
    """Both tiers of all scopes. Lives on one event loop.

    Args:
        store: entries in Redis.
        opener: opens the entries of a lookup; has keys and clock.
        vectors: vectors in Redis.
        evidence: evidence in Redis.
        embedder: computes vectors.
        rules: returns gate and judge for a scope's settings and tier.
        ranking: ranks candidates.
        pairs: keeps questions and their candidates, in scopes with `pairs`.
        judged: called with a scope's name and each verdict; None if the judge failed.
        report: called with client, scope and state of each scope in use.
    """

    def __init__(
        self,
        store: Store,
        opener: Opener,
        vectors: Vectors,
        evidence: SharedEvidence,
        embedder: Embedder,
        rules: Callable[[ScopeSettings, Tier], Rules],
        ranking: Ranking,
        pairs: QuestionPairs,
        judged: Callable[[str, bool | None], None] = lambda _scope, _same: None,
        report: Callable[[str, str, InForce], None] = lambda _client, _scope, _in_force: None,
    ) -> None:
        self._keys = keys = opener.keys
        self._store = store
        self._opener = opener
        self._evidence = evidence
        self._embedder = embedder
        self._judged = judged
        self._judging = Judging(embedder)
        self._clock = clock = opener.clock
        self._ranking = ranking
        self._pairs = pairs
        self._noting: set[asyncio.Task[None]] = set()
        self._tickets = Tickets(store.namer)
        self._in_use = ScopesInUse(keys, vectors, evidence, embedder.encoder, rules, clock, report)

    async def lookup(self, lookup: Lookup) -> CacheHit | CacheMiss:
        """Look up a similar question of the same partition, and decide whether to serve its answer."""
        question, names, settings = lookup.request.last_turn, lookup.names, lookup.settings
        if question is None or names.partition is None:
            return CacheMiss("cold")
        if settings.mode_of("normalised") != "off" and (found := await self._store.alike(names)) is not None:
            name, record, served_before = found
            entry = await self._opener.open(lookup, name, record)
            # The mapping is not sealed: the question is compared.
            if (
                entry is not None
                and entry.partition == names.partition
                and alike(question, entry.question)
                and entry.life(self._clock())[0] < settings.semantic_life_s
            ):
                return self._decided(lookup, "normalised", name, entry, CERTAIN, served_before=served_before)
        if settings.semantic == "off":
            return CacheMiss("cold")
        return await self._nearest(lookup, question, names.partition)

    async def _nearest(self, lookup: Lookup, question: str, partition: bytes) -> CacheHit | CacheMiss:
        """Look up a similar question by vectors."""
        names = lookup.names
        scope = self._in_use.of(names.scope, lookup.settings)
        scope.named = (lookup.client, lookup.request.scope)
        tenant = self._tenant(names.scope, lookup.settings, lookup.request.tenant, "semantic")
        vector = await self._embedder.vector(question)
        if vector is None or scope.position is None:
            return CacheMiss("cold")
        near = [
            (EntryId(name), similarity)
            for name, similarity in scope.index.nearest(partition, vector, NEAREST, self._clock())
            if name != names.exact
        ]
        clusters = await self._evidence.clusters(names.scope, tenant.place, [name for name, _ in near])
        ranked = shortlist([similarity for _, similarity in near], clusters)
        vetoed, found, fixed = False, None, lookup.settings.similarity
        if fixed is not None:
            ranked = sorted(ranked, key=lambda one: -one.similarity)
        found_records, served_before = await self._store.candidates(
            names.scope, [near[one.place][0] for one in ranked], names.exact
        )
        for one, record in zip(ranked, found_records, strict=True):
            name = near[one.place][0]
            entry = await self._opener.open(lookup, name, record)
            if record is None:
                scope.index.remove(name)
            if found is not None or entry is None or entry.partition != partition or alike(question, entry.question):
                continue
            score = self._ranking.score(question, one, entry.question)
            if score is None:
                vetoed = True
            else:
                found = (name, entry, score if fixed is None else evidence_score(one.similarity, fixed), one.similarity)
        if found is None:
            return CacheMiss("vetoed" if vetoed else "cold")
        name, entry, score, similarity = found
        outcome = self._decided(lookup, "semantic", name, entry, score, similarity=similarity, served_before=served_before)
        self._note(lookup, (question, entry.question), similarity, score, served=isinstance(outcome, CacheHit))
        return outcome

    def _note(self, lookup: Lookup, texts: tuple[str, str], similarity: float, score: float, *, served: bool) -> None:
        """Keep a pair in the background, if the scope's settings and the tenant's rate allow it."""
        scope, tenant, settings = lookup.names.scope, lookup.request.tenant, lookup.settings
        if settings.pairs == "off" or len(self._noting) >= NOTING or not self._pairs.admits(scope, tenant):
            return
        pair = self._pairs.pair(scope, tenant, texts, similarity, score, served=served, text=settings.pairs == "text")
        task = asyncio.get_running_loop().create_task(self._keep(scope, pair))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def noted(self) -> None:
        """Wait until the pairs of all look-ups so far are kept."""
        await asyncio.gather(*self._noting)

    async def _keep(self, scope: Scope, pair: QuestionPair) -> None:
        with contextlib.suppress(RedisFailed):
            await self._pairs.add(scope, pair)

    def _decided(
        self,
        lookup: Lookup,
        tier: Tier,
        name: EntryId,
        entry: Entry,
        score: float,
        *,
        served_before: bool,
        similarity: float = 1.0,
    ) -> CacheHit | CacheMiss:
        """Return the hit or miss of a candidate, as its tier's gate decides."""
        names, settings, tenant = lookup.names, lookup.settings, lookup.request.tenant
        gate = self._tenant(names.scope, settings, tenant, tier).gate
        if served_before:
            gate.served(names.exact)
        decision = gate.decide(score, names.exact)
        threshold = gate.threshold
        if decision is Decision.SERVE and threshold is not None:
            scope = self._in_use.of(names.scope, settings)
            scope.served.append(names.exact)
            age, remaining = entry.life(self._clock())
            return CacheHit(
                ticket=self._tickets.give(lookup.client, tenant, Served(names.scope, name, tier, score)),
                source=tier,
                answer=entry.answer,
                age_s=age,
                remaining_s=min(remaining, max(0.0, settings.semantic_life_s - age)),
                similarity=similarity,
                error_bound=threshold.bound,
                question=entry.question if settings.question == "text" else "",
                question_digest=self._store.namer.question(names.scope, tenant, entry.question),
            )
        candidate = Candidate(names.scope, name, score, decision.value, tier)
        would = settings.mode_of(tier) == "shadow" and threshold is not None and score >= threshold.score
        reason: Reason = "audited" if decision is Decision.AUDIT else "shadow" if would else "below_threshold"
        return CacheMiss(reason, candidate=self._tickets.give(lookup.client, tenant, candidate))

    async def vector(self, lookup: Lookup, expires_at: float) -> bytes:
        """Return the encrypted vector of a question whose answer is stored; empty if it has none."""
        question, names = lookup.request.last_turn, lookup.names
        if question is None or names.partition is None or lookup.settings.semantic == "off":
            return b""
        self._in_use.of(names.scope, lookup.settings)
        vector = await self._embedder.vector(question, STORE_PATIENCE_S)
        if vector is None:
            return b""
        values = vector.astype("<f2").tobytes()
        plain = Vector(names.exact, names.partition, expires_at, lookup.generation, values)
        return records.seal(plain, names.scope, self._keys.current)

    async def label(self, lookup: Lookup, answer: Answer | None, ticket: bytes, *, whole: bool) -> None:
        """Compare the engine's answer with the candidate's, and record the label: `different` if it is not a ``whole`` text.

        Without an answer the lookup stays unjudged and the threshold counts it as wrong, because the client may have hung up on
        a wrong answer (`response_cache.semantic.evidence`). If the judge fails, the lookup is subtracted again.
        """
        request, names, settings = lookup.request, lookup.names, lookup.settings
        candidate = self._tickets.read(lookup.client, request.tenant, Candidate, ticket) if ticket else None
        if candidate is None or candidate.scope != names.scope or settings.mode_of(candidate.tier) == "off":
            return
        tenant = self._tenant(names.scope, settings, request.tenant, candidate.tier)
        decision = Decision(candidate.decision)

        async def learn(same: bool | None) -> None:
            if same is None:
                tenant.gate.unjudged(candidate.score, decision, excused=True)
                return
            joins = names.exact if same else None
            entry, score = candidate.entry, candidate.score
            earlier = await self._evidence.label(names.scope, tenant.place, entry, score, same=same, joins=joins)
            tenant.gate.learn(candidate.score, same=same, decision=decision, earlier=earlier)
            tenant.share_soon()

        async def judged(same: bool | None) -> None:
            self._judged(request.scope, same)
            await learn(same)

        if answer is None:
            tenant.gate.unjudged(candidate.score, decision)
            return
        if not whole:
            await learn(False)
            return
        record = await self._store.get(names.scope, candidate.entry)
        try:
            entry = None if record is None else unseal(record, names.scope, candidate.entry, self._keys.current)
        except Unsealable:
            entry = None
        if entry is None or not lookup.owns(entry):
            tenant.gate.unjudged(candidate.score, decision)
            return
        if tenant.rules.judged_by:
            await self._judging.later(answer.text(), entry.answer.text(), judged)
        else:
            await judged(equal_text(answer.text(), entry.answer.text()))

    async def complain(
        self, served: Served, ticket: bytes, settings: ScopeSettings, tenant_name: str, *, outdated: bool
    ) -> bool:
        """Record a complaint about an answer that a tenant got; return False if it is not the first one.

        An ``outdated`` answer was to the right question, so it says nothing about similarity.
        A complaint about an exact hit does not count as evidence either.
        """
        # Otherwise one user could shut the tier for the whole tenant by repeated complaints.
        if not await self._evidence.first_complaint(served.scope, self._store.namer.proof(b"complaint", ticket)):
            return False
        if served.source != "exact" and settings.mode_of(served.source) != "off" and not outdated:
            tenant = self._tenant(served.scope, settings, tenant_name, served.source)
            earlier = await self._evidence.label(served.scope, tenant.place, served.entry, served.score, same=False)
            before = tenant.gate.bound
            tenant.gate.complain(served.score, earlier)
            if tenant.gate.bound < before:
                log.warning("users complained: a tenant's bound on wrong semantic answers is now %.2g", tenant.gate.bound)
            tenant.share_soon()
        return True

    async def in_force(self, scope: Scope, settings: ScopeSettings, tier: Tier) -> tuple[InForce, EvidenceProgress | None]:
        """Return the state of a scope's tier, and the progress of the tenant that lacks the fewest look-ups; None if off."""
        if settings.mode_of(tier) == "off":
            return InForce(), None
        in_use, own = self._in_use.of(scope, settings), self._tenant(scope, settings, "", tier)
        if own.shared_at == -np.inf:
            await self._in_use.share_evidence(in_use, own, 0.0)
        progress = [tenant.gate.progress() for tenant in in_use.tenants.values() if tenant.tier == tier]
        return in_force_of(in_use, tier), min(progress, key=lambda one: (one.lookups, -one.effective))

    def _tenant(self, scope: Scope, settings: ScopeSettings, name: str, tier: Tier) -> TenantTier:
        namer = self._store.namer
        owner = namer.tenant(scope, owner_of(name))
        return self._in_use.tenant(self._in_use.of(scope, settings), namer.tenant(scope, name), tier, owner)

    def forget(self, scope: Scope, entry: EntryId) -> None:
        """Remove an entry from this sidecar's index."""
        self._in_use.forget(scope, entry)

    async def sync_now(self) -> None:
        """Synchronise indexes and evidence with Redis, if it responds."""
        with contextlib.suppress(RedisAway):
            await self.sync(asyncio.get_running_loop().time())

    async def sync(self, now: float) -> None:
        """Synchronise indexes and evidence with Redis. ``now`` is in monotonic seconds. Raises RedisAway."""
        await self._in_use.sync(now)

    async def close(self) -> None:
        """Write pending pairs, cancel pending judgements, and share the evidence."""
        await self.noted()
        await self._judging.close()
        await self._in_use.close()
