"""The semantic tier: serves the answer to another question of the same partition if the tenant's evidence permits it.

The scopes in use (`scopes_in_use.py`) have the indexes of vectors and the gates.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from lpc.wire.redis_reach import RedisAway
from response_cache.keys.canonical import EntryId, Names, Request, Scope
from response_cache.keys.sealing import Keys, Unsealable
from response_cache.keys.tickets import Candidate, Served, Tickets
from response_cache.semantic.gate import Decision
from response_cache.semantic.ranking import ALIKE, NEAREST, Ranking, alike, shortlist
from response_cache.semantic.same_answer import equal_text
from response_cache.service.embedding import Embedder
from response_cache.service.judging import Judging, Rules
from response_cache.service.opening import Opener
from response_cache.service.outcomes import Hit, InForce, Miss, Reason
from response_cache.service.scopes_in_use import ScopesInUse, Tenant, in_force_of
from response_cache.store import vectors as records
from response_cache.store.answers import Answer
from response_cache.store.entry import unseal
from response_cache.store.scopes import ScopeSettings
from response_cache.store.shared_evidence import SharedEvidence
from response_cache.store.store import Store
from response_cache.store.vectors import Vector, Vectors

log = logging.getLogger(__name__)

STORE_PATIENCE_S: Final = 2.0
"""Longest wait for a vector when an answer is stored, in seconds. Without a vector the answer cannot be a candidate."""


class SimilarQuestions:
    """The semantic tier of all scopes. Lives on one event loop.

    Args:
        keys: encryption keys.
        store: entries in Redis.
        vectors: vectors in Redis.
        evidence: evidence in Redis.
        embedder: computes vectors.
        rules: returns gate and judge for a scope's settings.
        clock: returns seconds since the epoch.
        ranking: ranks candidates.
        judged: called with a scope's name and each verdict; None if the judge failed.
        report: called with client, scope and state of each scope in use.
    """

    def __init__(
        self,
        keys: Keys,
        store: Store,
        vectors: Vectors,
        evidence: SharedEvidence,
        embedder: Embedder,
        rules: Callable[[ScopeSettings], Rules],
        clock: Callable[[], float],
        ranking: Ranking,
        judged: Callable[[str, bool | None], None] = lambda _scope, _same: None,
        report: Callable[[str, str, InForce], None] = lambda _client, _scope, _in_force: None,
    ) -> None:
        self._keys = keys
        self._store = store
        self._evidence = evidence
        self._embedder = embedder
        self._judged = judged
        self._judging = Judging(embedder)
        self._clock = clock
        self._ranking = ranking
        self._tickets = Tickets(store.namer)
        self._in_use = ScopesInUse(keys, vectors, evidence, embedder.encoder, rules, clock, report)

    async def lookup(self, client: str, names: Names, request: Request, settings: ScopeSettings, opener: Opener) -> Hit | Miss:
        """Look up a similar question of the same partition, and decide whether to serve its answer."""
        question = request.last_turn
        if question is None or names.partition is None:
            return Miss("cold")
        scope = self._in_use.of(names.scope, settings)
        scope.named = (client, request.scope)
        tenant = self._tenant(names.scope, settings, request.tenant)
        gate = tenant.gate
        vector = await self._embedder.vector(question)
        if vector is None or scope.position is None:
            return Miss("cold")
        near = [
            (EntryId(name), similarity)
            for name, similarity in scope.index.nearest(names.partition, vector, NEAREST, self._clock())
            if name != names.exact
        ]
        clusters = await self._evidence.clusters(names.scope, tenant.place, [name for name, _ in near])
        ranked = shortlist([similarity for _, similarity in near], clusters)
        vetoed, found = False, None
        found_records, served_before = await self._store.candidates(
            names.scope, [near[one.place][0] for one in ranked], names.exact
        )
        if served_before:
            gate.served(names.exact)
        for one, record in zip(ranked, found_records, strict=True):
            name = near[one.place][0]
            entry = await opener.open(names.scope, name, record)
            if record is None:
                scope.index.remove(name)
            if entry is None or entry.partition != names.partition:
                continue
            if found is not None and not alike(question, entry.question):
                continue  # only a question that is alike takes the place of an earlier one
            score = self._ranking.score(question, one, entry.question)
            if score is None:
                vetoed = True
            elif found is None or score == ALIKE:
                found = (name, entry, one.similarity, score)
        if found is None:
            return Miss("vetoed" if vetoed else "cold")
        name, entry, similarity, score = found
        decision = gate.decide(score, names.exact)
        threshold = gate.threshold
        if decision is Decision.SERVE and threshold is not None:
            scope.served.append(names.exact)
            age, remaining = entry.life(self._clock())
            ticket = self._tickets.give(client, request.tenant, Served(names.scope, name, "semantic", score))
            return Hit(
                *(ticket, "semantic", entry.answer, age, min(remaining, max(0.0, settings.semantic_life_s - age))),
                similarity=similarity,
                error_bound=threshold.bound,
                question=entry.question,
            )
        candidate = Candidate(names.scope, name, score, decision.value)
        would = settings.semantic == "shadow" and threshold is not None and score >= threshold.score
        reason: Reason = "audited" if decision is Decision.AUDIT else "shadow" if would else "below_threshold"
        ticket = self._tickets.give(client, request.tenant, candidate)
        return Miss(reason, candidate=ticket)

    async def vector(
        self, names: Names, request: Request, settings: ScopeSettings, expires_at: float, generation: int
    ) -> bytes:
        """Return the encrypted vector of a question whose answer is stored; empty if it has none."""
        question = request.last_turn
        if question is None or names.partition is None:
            return b""
        self._in_use.of(names.scope, settings)
        vector = await self._embedder.vector(question, STORE_PATIENCE_S)
        if vector is None:
            return b""
        values = vector.astype("<f2").tobytes()
        plain = Vector(names.exact, names.partition, expires_at, generation, values)
        return records.seal(plain, names.scope, self._keys.current)

    async def label(
        self,
        client: str,
        names: Names,
        request: Request,
        settings: ScopeSettings,
        answer: Answer | None,
        ticket: bytes,
        *,
        whole: bool,
    ) -> None:
        """Compare the engine's answer with the candidate's, and record the label: `different` if it is not a ``whole`` text.

        Without an answer the lookup stays unjudged and the threshold counts it as wrong, because the client may have hung up on
        a wrong answer (`response_cache.semantic.evidence`). If the judge fails, the lookup is subtracted again.
        """
        candidate = self._tickets.read(client, request.tenant, Candidate, ticket) if ticket else None
        if candidate is None or candidate.scope != names.scope or settings.semantic == "off":
            return
        tenant = self._tenant(names.scope, settings, request.tenant)
        decision = Decision(candidate.decision)

        async def learn(same: bool | None) -> None:
            if same is None:
                tenant.gate.unjudged(candidate.score, decision, excused=True)
                return
            joins = names.exact if same else None
            earlier = await self._evidence.label(
                *(names.scope, tenant.place, candidate.entry, candidate.score), same=same, joins=joins
            )
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
        if entry is None or not entry.belongs_to(client, request.scope, request.tenant):
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
        """
        # Otherwise one user could shut the tier for the whole tenant by repeated complaints.
        if not await self._evidence.first_complaint(served.scope, self._store.namer.proof(b"complaint", ticket)):
            return False
        if settings.semantic != "off" and not outdated:
            tenant = self._tenant(served.scope, settings, tenant_name)
            earlier = await self._evidence.label(served.scope, tenant.place, served.entry, served.score, same=False)
            before = tenant.gate.bound
            tenant.gate.complain(served.score, earlier)
            if tenant.gate.bound < before:
                log.warning("users complained: a tenant's bound on wrong semantic answers is now %.2g", tenant.gate.bound)
            tenant.share_soon()
        return True

    async def in_force(self, scope: Scope, settings: ScopeSettings) -> InForce:
        """Return the state of a scope's semantic tier."""
        if settings.semantic == "off":
            return InForce()
        in_use, own = self._in_use.of(scope, settings), self._tenant(scope, settings, "")
        if own.shared_at == -np.inf:
            await self._in_use.share_evidence(in_use, own, 0.0)
        return in_force_of(in_use)

    def _tenant(self, scope: Scope, settings: ScopeSettings, name: str) -> Tenant:
        return self._in_use.tenant(self._in_use.of(scope, settings), self._store.namer.tenant(scope, name))

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
        """Cancel pending judgements, and share the evidence."""
        await self._judging.close()
        await self._in_use.close()
