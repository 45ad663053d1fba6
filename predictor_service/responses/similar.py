"""The semantic tier: the answer to another question of the same partition, where the scope's evidence allows it.

Arrays of vectors and a gate for each scope in use, in memory; both are kept equal among sidecars through Redis, within a
fraction of a second and some seconds. A scope that was not asked lately is forgotten here and read again when it is.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lpc.responses import vectors as records
from lpc.responses.answers import Answer
from lpc.responses.canonical import Asked, EntryId, Names, Scope
from lpc.responses.entry import unseal
from lpc.responses.scopes import ScopeSettings
from lpc.responses.sealing import Unsealable
from lpc.responses.semantic.gate import Decision, Gate
from lpc.responses.semantic.index import PartitionIndex
from lpc.responses.semantic.vetoes import veto
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.store import Found, Store
from lpc.responses.tickets import Candidate, Served, Tickets
from lpc.responses.vectors import Vector, Vectors
from lpc.wire.redis_reach import RedisAway
from predictor_service.responses.judging import Judging, Rules
from predictor_service.responses.keys import Keys
from predictor_service.responses.opening import Opener
from predictor_service.responses.outcomes import Hit, InForce, Miss, Reason
from predictor_service.responses.semantic import Semantic

log = logging.getLogger(__name__)

NEAREST: Final = 3
"""Candidates that are looked at: the nearest may be vetoed."""
HEAR_S: Final = 0.25
EVIDENCE_S: Final = 5.0
IDLE_S: Final = 1800.0
MOST_SCOPES: Final = 1000


class Embeds(Protocol):
    """Gives vectors of questions: `predictor_service.responses.embedding.Embedder`."""

    def encoder(self) -> str:
        """Return what vectors that can be compared have in common."""

    async def vector(self, question: str) -> NDArray[np.float32] | None:
        """Return a question's vector, of unit length; None where it has none now."""


@dataclass(eq=False, slots=True)
class _Scope:
    """A scope in use.

    Attributes:
        named: client and scope, once one of its has asked.
        heard_to: how far its stream was read; None before its vectors were.
        served: questions answered from another one's, of which the other sidecars have not been told; for ``life_s`` seconds.
    """

    scope: Scope
    rules: Rules
    index: PartitionIndex = field(default_factory=PartitionIndex)
    heard_to: str | None = None
    generation: str | None = None
    counted_at: float = -np.inf
    used_at: float = 0.0
    served: list[EntryId] = field(default_factory=list)
    life_s: float = 0.0
    named: tuple[str, str] | None = None

    @property
    def gate(self) -> Gate:
        """What decides."""
        return self.rules.gate


class SimilarQuestions(Semantic):
    """The tier, of all scopes. Lives on one event loop.

    Args:
        rules: of a scope's settings.
        clock: seconds since the epoch.
        judged: told what a judge said, by the scope's name; None: it could not be asked.
        report: told of each scope in use, by client and name, what is in force.
    """

    def __init__(
        self,
        keys: Keys,
        store: Store,
        vectors: Vectors,
        evidence: SharedEvidence,
        embedder: Embeds,
        rules: Callable[[ScopeSettings], Rules],
        clock: Callable[[], float],
        judged: Callable[[str, bool | None], None] = lambda _scope, _said: None,
        report: Callable[[str, str, InForce], None] = lambda _client, _scope, _in_force: None,
    ) -> None:
        self._report = report
        self._keys = keys
        self._store = store
        self._vectors = vectors
        self._evidence = evidence
        self._embedder = embedder
        self._rules = rules
        self._judged = judged
        self._judging = Judging()
        self._clock = clock
        self._tickets = Tickets(store.namer)
        self._scopes: dict[Scope, _Scope] = {}
        self._encoder = embedder.encoder()
        self._growing: asyncio.Task[None] | None = None

    async def lookup(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, found: Found, opener: Opener
    ) -> Hit | Miss:
        """Look for a similar question of the same partition, and decide what to do with its answer."""
        del found
        question = asked.last_turn
        if settings.semantic == "off" or question is None or names.partition is None:
            return Miss("cold")
        scope = self._scope(names.scope, settings)
        scope.named = (client, asked.scope)
        vector = await self._embedder.vector(question)
        if vector is None or scope.heard_to is None:
            return Miss("cold")
        near = [
            (EntryId(name), similarity)
            for name, similarity in scope.index.nearest(names.partition, vector, NEAREST, self._clock())
            if name != names.exact
        ]
        vetoed = False
        found_records, served_before = await self._store.candidates(names.scope, [name for name, _ in near], names.exact)
        if served_before:
            scope.gate.served(names.exact)
        for (name, similarity), record in zip(near, found_records, strict=True):
            entry = await opener.open(names.scope, name, record)
            if record is None:
                scope.index.remove(name)
            if entry is None or entry.partition != names.partition:
                continue
            if veto(question, entry.question) is not None:
                vetoed = True
                continue
            decision = scope.gate.decide(similarity, names.exact)
            threshold = scope.gate.threshold
            if decision is Decision.SERVE and threshold is not None:
                scope.served.append(names.exact)
                age, remaining = entry.life(self._clock())
                ticket = self._tickets.give(client, Served(names.scope, name, "semantic", similarity))
                return Hit(
                    *(ticket, "semantic", entry.answer, age, remaining),
                    similarity=similarity,
                    error_bound=threshold.bound,
                    question=entry.question,
                )
            candidate = self._tickets.give(client, Candidate(names.scope, name, similarity, decision.value))
            would = settings.semantic == "shadow" and threshold is not None and similarity >= threshold.similarity
            reason: Reason = "audited" if decision is Decision.AUDIT else "shadow" if would else "below_threshold"
            return Miss(reason, candidate=candidate, candidate_answer=entry.answer, similarity=similarity)
        return Miss("vetoed" if vetoed else "cold")

    async def vector(self, names: Names, asked: Asked, settings: ScopeSettings, expires_at: float, generation: str) -> bytes:
        """Return the sealed vector of a question whose answer is being stored; nothing where its scope has no such tier."""
        question = asked.last_turn
        if settings.semantic == "off" or question is None or names.partition is None or not generation.isdigit():
            return b""
        self._scope(names.scope, settings)
        vector = await self._embedder.vector(question)
        if vector is None:
            return b""
        values = vector.astype("<f2").tobytes()
        plain = Vector(names.exact, names.partition, expires_at, int(generation), values)
        return records.seal(plain, names.scope, self._keys.ring)

    async def label(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, answer: Answer, ticket: bytes, same: bool | None
    ) -> None:
        """Compare the engine's answer with the candidate's of the miss, unless the caller did, and learn of it."""
        candidate = self._tickets.read(client, Candidate, ticket) if ticket else None
        if candidate is None or candidate.scope != names.scope or settings.semantic == "off":
            return
        scope = self._scope(names.scope, settings)
        decision = Decision(candidate.decision)

        async def learn(said: bool | None) -> None:
            if said is None:
                scope.gate.unjudged(decision)
                return
            joins = names.exact if said else None
            nth = await self._evidence.nth(names.scope, scope.rules.judged_by, candidate.entry, joins=joins)
            scope.gate.learn(candidate.similarity, candidate.entry, same=said, decision=decision, nth=nth)
            self._hurry(scope)

        async def judged(said: bool | None) -> None:
            self._judged(asked.scope, said)
            await learn(said)

        if same is not None:
            await learn(same)
            return
        record = await self._store.get(names.scope, candidate.entry)
        try:
            entry = None if record is None else unseal(record, names.scope, candidate.entry, self._keys.ring)
        except Unsealable:
            entry = None
        if entry is None or not entry.belongs_to(client, asked.scope, asked.tenant):
            return
        texts = (asked.last_turn or "", answer.text(), entry.question, entry.answer.text())
        if scope.rules.judged_by:
            await self._judging.later(scope.rules.judge, texts, judged)
        else:
            await judged(await scope.rules.judge(*texts))

    async def complain(self, served: Served, ticket: bytes, settings: ScopeSettings) -> bool:
        """Learn that an answer which was served was wrong; return False where that is known already."""
        # Else one user, again and again, would shut the scope for all.
        if not await self._evidence.first_complaint(served.scope, self._store.namer.proof(b"complaint", ticket)):
            return False
        if settings.semantic != "off":
            scope = self._scope(served.scope, settings)
            nth = await self._evidence.nth(served.scope, scope.rules.judged_by, served.entry)
            scope.gate.complain(served.similarity, served.entry, nth)
            self._hurry(scope)
        return True

    async def in_force(self, scope: Scope, settings: ScopeSettings) -> InForce:
        """Return what evidence allows in a scope now."""
        if settings.semantic == "off":
            return InForce()
        gate = self._scope(scope, settings).gate
        if self._scopes[scope].counted_at == -np.inf:
            await self._share_evidence(self._scopes[scope], 0.0)
        return self._of(gate)

    def _of(self, gate: Gate) -> InForce:
        counts = gate.evidence.counts()
        labels, different = int(counts[:, 1:3].sum()), int(counts[:, 2].sum())
        if gate.threshold is None:
            return InForce(labels=labels, different=different)
        return InForce(gate.threshold.similarity, gate.threshold.bound, labels, different)

    def gone(self, scope: Scope, entry: EntryId) -> None:
        """Forget an entry here at once."""
        if scope in self._scopes:
            self._scopes[scope].index.remove(entry)

    async def keep_forever(self) -> None:
        """Keep arrays and evidence equal to the other sidecars', until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEAR_S)
            try:
                await self.keep(loop.time())
            except RedisAway:
                continue
            except Exception:
                log.exception("keeping the semantic tier's arrays failed; exact answers are served all the same")

    async def keep(self, now: float) -> None:
        """Hear what others did in all scopes in use. ``now``: monotonic seconds. Raises RedisAway."""
        if self._encoder != self._embedder.encoder():
            # Vectors of another encoder are another world.
            self._scopes.clear()
            self._encoder = self._embedder.encoder()
        for scope in list(self._scopes.values()):
            if now - scope.used_at > IDLE_S:
                await self._share_evidence(scope, now)
                self._scopes.pop(scope.scope, None)
            elif scope.heard_to is None:
                await self._share_evidence(scope, now)
                await self._read_all(scope)
            else:
                await self._tell(scope)
                await self._hear(scope)
                if now - scope.counted_at >= EVIDENCE_S:
                    await self._share_evidence(scope, now)
                    scope.index.expire(self._clock())
        if self._growing is None or self._growing.done():
            self._growing = asyncio.get_running_loop().create_task(self._grow())

    async def close(self) -> None:
        """Hand over what was learnt and not yet handed over."""
        if self._growing is not None:
            self._growing.cancel()
        await self._judging.close()
        try:
            for scope in list(self._scopes.values()):
                await self._tell(scope)
                await self._share_evidence(scope, 0.0)
        except RedisAway:
            return

    @staticmethod
    def _hurry(scope: _Scope) -> None:
        """Have the others told soon where evidence has turned."""
        if scope.gate.forgotten:
            scope.counted_at = -np.inf

    def _scope(self, name: Scope, settings: ScopeSettings) -> _Scope:
        scope = self._scopes.get(name)
        if scope is None:
            if len(self._scopes) >= MOST_SCOPES:
                oldest = min(self._scopes.values(), key=lambda one: one.used_at)
                del self._scopes[oldest.scope]
            scope = self._scopes[name] = _Scope(name, self._rules(settings), life_s=settings.life_s)
        scope.used_at = asyncio.get_running_loop().time()
        return scope

    async def _tell(self, scope: _Scope) -> None:
        """Tell the other sidecars which questions were answered from another one's: none is for the second time."""
        if served := scope.served[:]:
            await self._evidence.mark_served(scope.scope, served, scope.life_s)
            del scope.served[: len(served)]

    async def _read_all(self, scope: _Scope) -> None:
        heard_to, generation = await self._vectors.place(scope.scope)
        index = PartitionIndex()
        async for batch in self._vectors.read(scope.scope, self._keys.ring):
            self._add(index, batch, generation)
            await asyncio.sleep(0)
        scope.index, scope.heard_to, scope.generation = index, heard_to, generation

    async def _hear(self, scope: _Scope) -> None:
        changes = await self._vectors.changes(scope.scope, scope.heard_to or records.START, self._keys.ring)
        if not changes.whole or changes.generation != scope.generation:
            await self._read_all(scope)
            return
        for name in changes.removed:
            scope.index.remove(name)
        self._add(scope.index, changes.added, changes.generation)
        scope.heard_to = changes.place

    async def _grow(self) -> None:
        """Build graphs of large partitions, while all else goes on."""
        for scope in list(self._scopes.values()):
            try:
                await scope.index.grow()
            except Exception:
                log.exception("building a graph failed; all vectors of the partition are searched instead")

    def _add(self, index: PartitionIndex, added: Sequence[Vector], generation: str | None) -> None:
        now = self._clock()
        for one in added:
            if str(one.generation) == generation and one.expires_at > now:
                index.add(one.partition, one.entry, np.frombuffer(one.values, "<f2"), one.expires_at)

    async def _share_evidence(self, scope: _Scope, now: float) -> None:
        """Hand over what was learnt here, once and no more, and take in what the others did."""
        gate, by = scope.gate, scope.rules.judged_by
        handed = gate.hand_over()
        try:
            fields = await self._evidence.exchange(scope.scope, by, handed)
        except RedisAway:
            gate.not_taken(handed)
            raise
        gate.take(fields, handed)
        if aged := gate.evidence.aged(fields):
            await self._evidence.forget(scope.scope, by, aged)
        scope.counted_at = now
        if scope.named is not None:
            self._report(*scope.named, self._of(gate))
