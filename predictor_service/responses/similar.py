"""The tier that guesses: the answer to another question of the same partition, where the tenant's evidence allows it.

What is near stands in the arrays of the scopes in use (`scopes_in_use.py`); their gates decide.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import numpy as np

from lpc.responses import vectors as records
from lpc.responses.answers import Answer
from lpc.responses.canonical import EntryId, Names, Request, Scope
from lpc.responses.entry import unseal
from lpc.responses.scopes import ScopeSettings
from lpc.responses.sealing import Keys, Unsealable
from lpc.responses.semantic.gate import Decision
from lpc.responses.semantic.same_answer import equal_text
from lpc.responses.semantic.vetoes import veto
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.store import Store
from lpc.responses.tickets import Candidate, Served, Tickets
from lpc.responses.vectors import Vector, Vectors
from lpc.wire.redis_reach import RedisAway
from predictor_service.responses.embedding import Embedder
from predictor_service.responses.judging import Judging, Rules
from predictor_service.responses.opening import Opener
from predictor_service.responses.outcomes import Hit, InForce, Miss, Reason
from predictor_service.responses.scopes_in_use import ScopesInUse, Tenant, in_force_of

NEAREST: Final = 3
"""Candidates that are looked at: the nearest may be vetoed."""
STORING_S: Final = 2.0
"""Longest time that storing waits for a vector: nobody waits for it, and without one the answer cannot be a candidate."""


class SimilarQuestions:
    """The tier, of all scopes. Lives on one event loop.

    Args:
        rules: of a scope's settings.
        clock: seconds since the epoch.
        judged: called with what a judge said, by the scope's name; None: it could not be asked.
        report: called for each scope in use, by client and name, with what is in force.
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
        judged: Callable[[str, bool | None], None] = lambda _scope, _said: None,
        report: Callable[[str, str, InForce], None] = lambda _client, _scope, _in_force: None,
    ) -> None:
        self._keys = keys
        self._store = store
        self._evidence = evidence
        self._embedder = embedder
        self._judged = judged
        self._judging = Judging()
        self._clock = clock
        self._tickets = Tickets(store.namer)
        self._in_use = ScopesInUse(keys, vectors, evidence, embedder.encoder, rules, clock, report)

    async def lookup(self, client: str, names: Names, request: Request, settings: ScopeSettings, opener: Opener) -> Hit | Miss:
        """Look for a similar question of the same partition, and decide what to do with its answer."""
        question = request.last_turn
        if question is None or names.partition is None:
            return Miss("cold")
        scope = self._in_use.of(names.scope, settings)
        scope.named = (client, request.scope)
        gate = self._tenant(names.scope, settings, request.tenant).gate
        vector = await self._embedder.vector(question)
        if vector is None or scope.heard_to is None:
            return Miss("cold")
        near = [
            (EntryId(name), similarity)
            for name, similarity in scope.index.nearest(names.partition, vector, NEAREST, self._clock())
            if name != names.exact
        ]
        vetoed, found = False, None
        found_records, served_before = await self._store.candidates(names.scope, [name for name, _ in near], names.exact)
        if served_before:
            gate.served(names.exact)
        for (name, similarity), record in zip(near, found_records, strict=True):
            entry = await opener.open(names.scope, name, record)
            if record is None:
                scope.index.remove(name)
            if entry is None or entry.partition != names.partition:
                continue
            if veto(question, entry.question) is None:
                found = (name, entry, similarity)
                break
            vetoed = True
        if found is None:
            return Miss("vetoed" if vetoed else "cold")
        name, entry, similarity = found
        decision = gate.decide(similarity, names.exact)
        threshold = gate.threshold
        if decision is Decision.SERVE and threshold is not None:
            scope.served.append(names.exact)
            age, remaining = entry.life(self._clock())
            ticket = self._tickets.give(client, request.tenant, Served(names.scope, name, "semantic", similarity))
            return Hit(
                *(ticket, "semantic", entry.answer, age, remaining),
                similarity=similarity,
                error_bound=threshold.bound,
                question=entry.question,
            )
        candidate = Candidate(names.scope, name, similarity, decision.value)
        would = settings.semantic == "shadow" and threshold is not None and similarity >= threshold.similarity
        reason: Reason = "audited" if decision is Decision.AUDIT else "shadow" if would else "below_threshold"
        ticket = self._tickets.give(client, request.tenant, candidate)
        return Miss(reason, candidate=ticket, candidate_answer=entry.answer, similarity=similarity)

    async def vector(
        self, names: Names, request: Request, settings: ScopeSettings, expires_at: float, generation: str
    ) -> bytes:
        """Return the sealed vector of a question whose answer is being stored; nothing where its scope has no such tier."""
        question = request.last_turn
        if question is None or names.partition is None or not generation.isdigit():
            return b""
        self._in_use.of(names.scope, settings)
        vector = await self._embedder.vector(question, STORING_S)
        if vector is None:
            return b""
        values = vector.astype("<f2").tobytes()
        plain = Vector(names.exact, names.partition, expires_at, int(generation), values)
        return records.seal(plain, names.scope, self._keys.current)

    async def label(
        self,
        client: str,
        names: Names,
        request: Request,
        settings: ScopeSettings,
        answer: Answer | None,
        ticket: bytes,
        same: bool | None,
    ) -> None:
        """Compare the engine's answer (None: it never came) with the candidate's, unless ``same`` is known, and learn.

        A client may hang up because the answer is wrong. So its lookup stays unjudged, which the threshold counts as wrong
        (`lpc.responses.semantic.evidence`). A lookup whose judge is out of order is taken back.
        """
        candidate = self._tickets.read(client, request.tenant, Candidate, ticket) if ticket else None
        if candidate is None or candidate.scope != names.scope or settings.semantic == "off":
            return
        tenant = self._tenant(names.scope, settings, request.tenant)
        decision = Decision(candidate.decision)

        async def learn(said: bool | None) -> None:
            if said is None:
                tenant.gate.unjudged(candidate.similarity, decision, excused=True)
                return
            joins = names.exact if said else None
            nth = await self._evidence.nth(names.scope, tenant.place, candidate.entry, joins=joins)
            tenant.gate.learn(candidate.similarity, same=said, decision=decision, nth=nth)
            tenant.hurry()

        async def judged(said: bool | None) -> None:
            self._judged(request.scope, said)
            await learn(said)

        if answer is None:
            tenant.gate.unjudged(candidate.similarity, decision)
            return
        if same is not None:
            await learn(same)
            return
        record = await self._store.get(names.scope, candidate.entry)
        try:
            entry = None if record is None else unseal(record, names.scope, candidate.entry, self._keys.current)
        except Unsealable:
            entry = None
        if entry is None or not entry.belongs_to(client, request.scope, request.tenant):
            tenant.gate.unjudged(candidate.similarity, decision)
            return
        texts = (request.last_turn or "", answer.text(), entry.question, entry.answer.text())
        if tenant.rules.judge is None:
            await judged(equal_text(texts[1], texts[3]))
        else:
            await self._judging.later(tenant.rules.judge, texts, judged)

    async def complain(self, served: Served, ticket: bytes, settings: ScopeSettings, of: str) -> bool:
        """Learn that an answer which was served to the tenant ``of`` was wrong; return False where that is known already."""
        # Else one user could shut the tier for all users of the tenant by saying the same again and again.
        if not await self._evidence.first_complaint(served.scope, self._store.namer.proof(b"complaint", ticket)):
            return False
        if settings.semantic != "off":
            tenant = self._tenant(served.scope, settings, of)
            nth = await self._evidence.nth(served.scope, tenant.place, served.entry)
            tenant.gate.complain(served.similarity, nth)
            tenant.hurry()
        return True

    async def in_force(self, scope: Scope, settings: ScopeSettings) -> InForce:
        """Return what evidence allows in a scope now."""
        if settings.semantic == "off":
            return InForce()
        in_use, own = self._in_use.of(scope, settings), self._tenant(scope, settings, "")
        if own.counted_at == -np.inf:
            await self._in_use.share_evidence(in_use, own, 0.0)
        return in_force_of(in_use)

    def _tenant(self, scope: Scope, settings: ScopeSettings, name: str) -> Tenant:
        return self._in_use.tenant(self._in_use.of(scope, settings), self._store.namer.tenant(scope, name))

    def gone(self, scope: Scope, entry: EntryId) -> None:
        """Forget an entry here at once."""
        self._in_use.forget(scope, entry)

    async def keep_now(self) -> None:
        """Keep arrays and evidence equal to the other sidecars', as far as Redis answers."""
        with contextlib.suppress(RedisAway):
            await self.keep(asyncio.get_running_loop().time())

    async def keep(self, now: float) -> None:
        """Hear what others did in all scopes in use. ``now``: monotonic seconds. Raises RedisFailed."""
        await self._in_use.keep(now)

    async def close(self) -> None:
        """Hand over what was learnt and not yet handed over; leave unjudged what was not judged so far."""
        await self._judging.close()
        await self._in_use.close()
