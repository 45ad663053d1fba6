"""The scopes whose similar questions are asked for, in memory: arrays of vectors of each, and gates of each of its tenants.

Evidence is a tenant's own. If tenants shared it, one of them could open the tier for all with answers of its own making, or
shut it for all with false feedback. Votes would not help, since anybody can be many tenants.

Both are kept equal among sidecars through Redis, arrays within a fraction of a second, evidence within some seconds. A scope
that was not asked lately is forgotten here and read again when it is.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lpc.responses import layout
from lpc.responses import vectors as records
from lpc.responses.canonical import EntryId, Scope
from lpc.responses.scopes import ScopeSettings
from lpc.responses.sealing import Keys
from lpc.responses.semantic.gate import Gate
from lpc.responses.semantic.index import PartitionIndex
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.vectors import Vector, Vectors
from lpc.wire.bugs import log_bug
from lpc.wire.redis_reach import RedisAway, RedisFailed, RedisRefused
from predictor_service.responses.judging import Rules
from predictor_service.responses.outcomes import InForce

log = logging.getLogger(__name__)

HEAR_S: Final = 0.25
EVIDENCE_S: Final = 5.0
IDLE_S: Final = 1800.0
MOST_SCOPES: Final = 1000
MOST_TENANTS: Final = 1000
"""Of one scope whose gates are in memory. Above it those that asked least recently go, after their evidence is handed over."""


@dataclass(eq=False, slots=True)
class Tenant:
    """What decides for one tenant of a scope.

    Attributes:
        place: of its evidence in Redis, within the scope.
    """

    place: str
    rules: Rules
    counted_at: float = -np.inf
    used_at: float = 0.0

    @property
    def gate(self) -> Gate:
        """What decides."""
        return self.rules.gate

    def hurry(self) -> None:
        """Have the other sidecars informed soon when evidence has turned."""
        if self.gate.forgotten:
            self.counted_at = -np.inf


@dataclass(eq=False, slots=True)
class InUse:
    """A scope in use.

    Attributes:
        tenants: by their names.
        named: client and scope, once one of its has asked.
        heard_to: how far its stream was read; None before its vectors were.
        served: questions answered from another one's, which the other sidecars do not know yet.
    """

    scope: Scope
    settings: ScopeSettings
    tenants: dict[bytes, Tenant] = field(default_factory=dict)
    index: PartitionIndex = field(default_factory=PartitionIndex)
    heard_to: str | None = None
    generation: str | None = None
    expired_at: float = -np.inf
    used_at: float = 0.0
    served: list[EntryId] = field(default_factory=list)
    named: tuple[str, str] | None = None


class ScopesInUse:
    """All scopes in use. Lives on one event loop.

    Args:
        encoder: names what vectors that can be compared have in common, now.
        rules: of a scope's settings.
        clock: seconds since the epoch.
        report: called for each scope in use, by client and name, with what is in force.
    """

    def __init__(
        self,
        keys: Keys,
        vectors: Vectors,
        evidence: SharedEvidence,
        encoder: Callable[[], str],
        rules: Callable[[ScopeSettings], Rules],
        clock: Callable[[], float],
        report: Callable[[str, str, InForce], None],
    ) -> None:
        self._keys = keys
        self._vectors = vectors
        self._evidence = evidence
        self._encoder_now = encoder
        self._encoder = encoder()
        self._rules = rules
        self._clock = clock
        self._report = report
        self._scopes: dict[Scope, InUse] = {}

    def of(self, name: Scope, settings: ScopeSettings) -> InUse:
        """Return a scope, which is in use from now on."""
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = InUse(name, settings)
        scope.used_at = asyncio.get_running_loop().time()
        return scope

    def tenant(self, scope: InUse, name: bytes) -> Tenant:
        """Return what decides for a tenant of a scope. ``name``: of the tenant within the scope, as in Redis."""
        tenant = scope.tenants.get(name)
        if tenant is None:
            rules = self._rules(scope.settings)
            tenant = scope.tenants[name] = Tenant(f"{rules.judged_by}:{layout.text(name)}", rules)
        tenant.used_at = asyncio.get_running_loop().time()
        return tenant

    def forget(self, scope: Scope, entry: EntryId) -> None:
        """Forget an entry here at once."""
        if scope in self._scopes:
            self._scopes[scope].index.remove(entry)

    async def keep(self, now: float) -> None:
        """Hear what others did in all scopes in use. ``now``: monotonic seconds. Raises RedisFailed."""
        if self._encoder != self._encoder_now():
            # Vectors of another encoder are another world.
            self._scopes.clear()
            self._encoder = self._encoder_now()
        for scope in list(self._scopes.values()):
            try:
                await self._keep(scope, now)
            except RedisAway:
                raise
            except RedisRefused:
                continue  # one scope's keys; noted where Redis is asked
            except Exception as error:
                # What is wrong in one scope's place in Redis does not concern the others.
                log_bug(log, "keeping one scope's arrays", error)

    async def _keep(self, scope: InUse, now: float) -> None:
        if _idle(scope, self._scopes.values(), MOST_SCOPES, now):
            with contextlib.suppress(RedisRefused):
                await self._tell(scope)
                await self._share_all(scope, now)
            self._scopes.pop(scope.scope, None)
        elif scope.heard_to is None:
            await self._share_all(scope, now)
            await self._read_all(scope)
        else:
            # Reading first: a full Redis refuses what the other two write.
            await self._hear(scope)
            if now - scope.expired_at >= EVIDENCE_S:
                scope.index.expire(self._clock())
                scope.expired_at = now
            await self._share_all(scope, now, EVIDENCE_S)
            await self._tell(scope)

    async def _share_all(self, scope: InUse, now: float, age_s: float = 0.0) -> None:
        """Share evidence that is as old as ``age_s``, and let go of idle tenants. Raises RedisFailed."""
        due = [(name, one) for name, one in scope.tenants.items() if now - one.counted_at >= age_s]
        for name, tenant in due:
            try:
                await self.share_evidence(scope, tenant, now)
            finally:
                if _idle(tenant, scope.tenants.values(), MOST_TENANTS, now):
                    del scope.tenants[name]
        if due and scope.named is not None:
            self._report(*scope.named, in_force_of(scope))

    async def close(self) -> None:
        """Hand over what was learnt and not yet handed over."""
        for scope in list(self._scopes.values()):
            try:
                await self._share_all(scope, 0.0, -np.inf)
                await self._tell(scope)
            except RedisAway:
                return
            except RedisRefused:
                continue

    async def _tell(self, scope: InUse) -> None:
        """Tell the other sidecars which questions were answered from another one's: none is for the second time."""
        if served := scope.served[:]:
            await self._evidence.mark_served(scope.scope, served, scope.settings.life_s)
            del scope.served[: len(served)]

    async def _read_all(self, scope: InUse) -> None:
        heard_to, generation = await self._vectors.position(scope.scope)
        index = PartitionIndex()
        async for batch in self._vectors.read(scope.scope, self._keys.current):
            self._add(index, batch, generation)
            await asyncio.sleep(0)
        scope.index, scope.heard_to, scope.generation = index, heard_to, generation

    async def _hear(self, scope: InUse) -> None:
        changes = await self._vectors.changes(scope.scope, scope.heard_to or records.START, self._keys.current)
        if not changes.complete or changes.generation != scope.generation:
            await self._read_all(scope)
            return
        for name in changes.removed:
            scope.index.remove(name)
        self._add(scope.index, changes.added, changes.generation)
        scope.heard_to = changes.position

    def _add(self, index: PartitionIndex, added: Sequence[Vector], generation: str | None) -> None:
        now = self._clock()
        for one in added:
            if str(one.generation) == generation and one.expires_at > now:
                index.add(one.partition, one.entry, np.frombuffer(one.values, "<f2"), one.expires_at)

    async def share_evidence(self, scope: InUse, tenant: Tenant, now: float) -> None:
        """Hand over what was learnt here, once and no more, and take in what the others did. Raises RedisFailed."""
        gate = tenant.gate
        pending = gate.pending()
        try:
            fields = await self._evidence.exchange(scope.scope, tenant.place, pending)
        except RedisFailed:
            gate.restore(pending)
            raise
        gate.merge(fields, pending)
        tenant.counted_at = now


def _idle(one: InUse | Tenant, among: Collection[InUse | Tenant], most: int, now: float) -> bool:
    """Say whether one has not asked for long, or is among those beyond ``most`` that asked least recently."""
    if now - one.used_at > IDLE_S:
        return True
    return len(among) > most and one.used_at < sorted((other.used_at for other in among), reverse=True)[most - 1]


def in_force_of(scope: InUse) -> InForce:
    """Return what evidence allows in the semantic tier.

    That is the lowest threshold and the highest bound of any tenant in use, and the labels of all.
    """
    gates = [tenant.gate for tenant in scope.tenants.values()]
    counts = [gate.evidence.counts() for gate in gates]
    labels, different = sum(int(one[:, 1:3].sum()) for one in counts), sum(int(one[:, 2].sum()) for one in counts)
    found = [gate.threshold for gate in gates if gate.threshold is not None]
    if not found:
        return InForce(labels=labels, different=different)
    return InForce(min(one.similarity for one in found), max(one.bound for one in found), labels, different)
