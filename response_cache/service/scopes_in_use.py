"""The scopes in use, in memory: an index of vectors for each scope, and a gate for each of its tenants.

Each tenant has its own evidence. If tenants shared it, one could open the tier for all by its own answers, or shut it for all
by false feedback. Votes would not help, because anybody can be many tenants.

Redis synchronises the sidecars: indexes within a fraction of a second, evidence within seconds. A scope without recent requests
is dropped from memory and read again at the next request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lpc.wire.bugs import log_bug
from lpc.wire.redis_reach import RedisAway, RedisFailed, RedisRefused
from response_cache.keys.canonical import EntryId, Scope
from response_cache.keys.sealing import Keys
from response_cache.semantic.evidence import Tier
from response_cache.semantic.gate import Gate
from response_cache.semantic.index import PartitionIndex
from response_cache.semantic.set_gate import SetGate
from response_cache.service.judging import Rules
from response_cache.service.outcomes import InForce
from response_cache.store import layout
from response_cache.store import vectors as records
from response_cache.store.scopes import ScopeSettings
from response_cache.store.shared_evidence import SharedEvidence
from response_cache.store.vectors import Vector, Vectors

log = logging.getLogger(__name__)

SYNC_S: Final = 0.25
EVIDENCE_S: Final = 5.0
IDLE_S: Final = 1800.0
MAX_SCOPES: Final = 1000
MAX_TENANTS: Final = 1000
"""Gates of one scope in memory. Above it, the least recently used ones of the owners with most of them are dropped after their
evidence was shared."""


@dataclass(eq=False, slots=True)
class TenantTier:
    """A tenant of a scope in use, at one tier.

    Attributes:
        tier: the tier.
        owner: tenant whose limits apply to it: the client of which it may be a part.
        place: location of its evidence in Redis: judge and tenant.
        part_of: name in Redis of the client of which it is a part; empty: it is none.
        rules: gate and judge.
        shared_at: time of the last exchange of evidence, monotonic seconds.
        used_at: time of the last request, monotonic seconds.
    """

    tier: Tier
    owner: bytes
    place: str
    rules: Rules
    part_of: str = ""
    shared_at: float = -np.inf
    used_at: float = 0.0

    @property
    def gate(self) -> Gate:
        """The tenant's gate."""
        return self.rules.gate

    def share_soon(self) -> None:
        """Share evidence in the next round if it was reset."""
        if self.gate.forgotten:
            self.shared_at = -np.inf


@dataclass(eq=False, slots=True)
class InUse:
    """A scope in use.

    Attributes:
        tenants: tenants by name and tier.
        index: vectors of the scope's questions.
        position: position in the scope's stream; None before the vectors were read.
        generation: generation of the vectors.
        expired_at: time of the last removal of expired vectors, monotonic seconds.
        used_at: time of the last request, monotonic seconds.
        served: questions with a semantic hit that Redis does not have yet.
        named: client and name of the scope, after its first lookup.
    """

    scope: Scope
    settings: ScopeSettings
    tenants: dict[tuple[bytes, Tier], TenantTier] = field(default_factory=dict)
    index: PartitionIndex = field(default_factory=PartitionIndex)
    position: str | None = None
    generation: str | None = None
    expired_at: float = -np.inf
    used_at: float = 0.0
    served: list[EntryId] = field(default_factory=list)
    named: tuple[str, str] | None = None


class ScopesInUse:
    """All scopes in use. Lives on one event loop.

    Args:
        keys: encryption keys.
        vectors: vectors in Redis.
        evidence: evidence in Redis.
        encoder: returns the id of the current encoder.
        rules: returns gate and judge for a scope's settings and tier.
        clock: returns seconds since the epoch.
        report: called with client, scope and state of each scope in use.
    """

    def __init__(
        self,
        keys: Keys,
        vectors: Vectors,
        evidence: SharedEvidence,
        encoder: Callable[[], str],
        rules: Callable[[ScopeSettings, Tier], Rules],
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
        """Return a scope, and mark it as used."""
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = InUse(name, settings)
        scope.used_at = asyncio.get_running_loop().time()
        return scope

    def tenant(self, scope: InUse, name: bytes, tier: Tier, owner: bytes) -> TenantTier:
        """Return a tenant of a scope by its name in Redis and its owner's, and mark it as used."""
        tenant = scope.tenants.get((name, tier))
        if tenant is None:
            rules = self._rules(scope.settings, tier)
            kind = "set" if isinstance(rules.gate, SetGate) else tier
            place = ":".join((rules.judged_by, layout.text(name), *([] if kind == "semantic" else [kind])))
            part_of = "" if owner == name else layout.text(owner)
            tenant = scope.tenants[name, tier] = TenantTier(tier, owner, place, rules, part_of)
        tenant.used_at = asyncio.get_running_loop().time()
        return tenant

    def forget(self, scope: Scope, entry: EntryId) -> None:
        """Remove an entry from the index."""
        if scope in self._scopes:
            self._scopes[scope].index.remove(entry)

    async def sync(self, now: float) -> None:
        """Synchronise all scopes in use with Redis. ``now`` is in monotonic seconds. Raises RedisAway."""
        if self._encoder != self._encoder_now():
            # Vectors of different encoders are not comparable.
            self._scopes.clear()
            self._encoder = self._encoder_now()
        for scope in list(self._scopes.values()):
            try:
                await self._sync(scope, now)
            except RedisAway:
                raise
            except RedisRefused:
                continue  # concerns one scope; already counted
            except Exception as error:
                # A bug in one scope must not stop the others.
                log_bug(log, "synchronising one scope", error)

    async def _sync(self, scope: InUse, now: float) -> None:
        if _idle(scope, self._scopes.values(), MAX_SCOPES, now):
            with contextlib.suppress(RedisRefused):
                await self._mark_served(scope)
                await self._share_all(scope, now)
            self._scopes.pop(scope.scope, None)
        elif scope.position is None:
            await self._share_all(scope, now)
            await self._read_all(scope)
        else:
            # Read first, because a full Redis refuses the writes.
            await self._read_changes(scope)
            if now - scope.expired_at >= EVIDENCE_S:
                scope.index.expire(self._clock())
                scope.expired_at = now
            await self._share_all(scope, now, EVIDENCE_S)
            await self._mark_served(scope)

    async def _share_all(self, scope: InUse, now: float, age_s: float = 0.0) -> None:
        """Share evidence whose last exchange is ``age_s`` ago, and drop idle tenants. Raises RedisFailed."""
        surplus = surplus_of(scope.tenants.values(), MAX_TENANTS)
        due = [(name, one) for name, one in scope.tenants.items() if now - one.shared_at >= age_s]
        for name, tenant in due:
            try:
                await self.share_evidence(scope, tenant, now)
            finally:
                if tenant in surplus or now - tenant.used_at > IDLE_S:
                    del scope.tenants[name]
        if due and scope.named is not None:
            self._report(*scope.named, in_force_of(scope, "semantic"))

    async def close(self) -> None:
        """Share what was not shared yet."""
        for scope in list(self._scopes.values()):
            try:
                await self._share_all(scope, 0.0, -np.inf)
                await self._mark_served(scope)
            except RedisAway:
                return
            except RedisRefused:
                continue

    async def _mark_served(self, scope: InUse) -> None:
        """Store which questions had a semantic hit, because no sidecar may serve a second one."""
        if served := scope.served[:]:
            await self._evidence.mark_served(scope.scope, served, scope.settings.life_s)
            del scope.served[: len(served)]

    async def _read_all(self, scope: InUse) -> None:
        position, generation = await self._vectors.position(scope.scope)
        index = PartitionIndex()
        async for batch in self._vectors.read(scope.scope, self._keys.current):
            self._add(index, batch, generation)
            await asyncio.sleep(0)
        scope.index, scope.position, scope.generation = index, position, generation

    async def _read_changes(self, scope: InUse) -> None:
        changes = await self._vectors.changes(scope.scope, scope.position or records.START, self._keys.current)
        if not changes.complete or changes.generation != scope.generation:
            await self._read_all(scope)
            return
        for name in changes.removed:
            scope.index.remove(name)
        self._add(scope.index, changes.added, changes.generation)
        scope.position = changes.position

    def _add(self, index: PartitionIndex, added: Sequence[Vector], generation: str | None) -> None:
        now = self._clock()
        for one in added:
            if str(one.generation) == generation and one.expires_at > now:
                index.add(one.partition, one.entry, np.frombuffer(one.values, "<f2"), one.expires_at)

    async def share_evidence(self, scope: InUse, tenant: TenantTier, now: float) -> None:
        """Exchange a tenant's evidence with Redis. Raises RedisFailed."""
        gate = tenant.gate
        pending = gate.pending()
        try:
            fields = await self._evidence.exchange(scope.scope, tenant.place, pending, tenant.part_of)
        except RedisFailed:
            gate.restore(pending)
            raise
        gate.merge(fields, pending)
        tenant.shared_at = now


def surplus_of(tenants: Collection[TenantTier], most: int) -> set[TenantTier]:
    """Return the tenants without which ``most`` are left. Owners keep equal numbers of them, the most recently used."""
    of_owner: dict[bytes, list[TenantTier]] = {}
    for tenant in tenants if len(tenants) > most else ():
        of_owner.setdefault(tenant.owner, []).append(tenant)
    surplus: set[TenantTier] = set()
    room, owners = most, len(of_owner)
    for group in sorted(of_owner.values(), key=len):
        kept = min(len(group), room // owners)
        surplus.update(sorted(group, key=lambda tenant: tenant.used_at)[: len(group) - kept])
        room, owners = room - kept, owners - 1
    return surplus


def _idle(one: InUse, among: Collection[InUse], most: int, now: float) -> bool:
    """Return whether one is unused for `IDLE_S`, or is not among the ``most`` most recently used."""
    if now - one.used_at > IDLE_S:
        return True
    return len(among) > most and one.used_at < sorted((other.used_at for other in among), reverse=True)[most - 1]


def in_force_of(scope: InUse, tier: Tier) -> InForce:
    """Return the state of a scope's tier.

    It is the lowest threshold (a probability) and the highest bound of any tenant in use, and the sum of labels.
    """
    gates = [tenant.gate for tenant in scope.tenants.values() if tenant.tier == tier]
    counts = [gate.evidence.counts() for gate in gates]
    labels, different = sum(int(one[:, 1:3].sum()) for one in counts), sum(int(one[:, 2].sum()) for one in counts)
    bound = min((gate.bound for gate in gates), default=None)
    found = [gate.threshold for gate in gates if gate.threshold is not None]
    if not found:
        return InForce(labels=labels, different=different, bound=bound)
    return InForce(min(one.score for one in found), max(one.bound for one in found), labels, different, bound)
