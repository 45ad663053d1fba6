"""Engines that pool under the rule `lpc` evict as engines that have each seen all requests of the fleet.

The reference is the paper's policy with the names of the conversations (`tests.pooled_order`). The stores are memory, a real
Redis and a real Redis Cluster: they give the same evictions.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest

from eviction_client.policy.reuse_monitor import ReuseMonitor
from eviction_client.stores import BlockHash, MemoryStore
from eviction_client.stores.base import Turned
from eviction_client.stores.claims import SharedClaim
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.wire.redis_connection import Connection
from lpc_apps.simulator.fleet import run as fleet_run
from lpc_apps.simulator.fleet.run import Fleet, simulate_fleet
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.segments import Segment
from testing.processes import RedisServer
from tests.pooled_order import MEAN_GAP_S, Seen, drawn, kinds
from tests.redis_cluster import redis_cluster
from tests.redis_stores import START

__all__ = ["redis_cluster"]

CACHE: int = 4000
CONVERSATIONS = 80


@pytest.fixture(autouse=True)
def _same_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines estimate the mean gap from their own requests. Here all have the reference's."""
    monkeypatch.setattr(ReuseMonitor, "mean_gap_s", MEAN_GAP_S)


def served(kind: str, router: str, seed: int, *, pooled: bool = False) -> tuple[float, float, int]:
    """Return the hit rate of two engines in percent, the share of evictions as by the reference, and their number."""
    workload, seen = drawn(seed, conversations=CONVERSATIONS), Seen()
    policy = kinds(seen)[kind]
    fleet = Fleet(2, router, seed=seed, pooled=pooled)
    found = simulate_fleet(workload, CACHE, lambda n: policy(n, workload, PolicySettings(rule="lpc")), fleet)
    return 100 * found.figures()["hit_rate"], seen.equal / max(seen.evicted, 1), seen.evicted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("router", ["session-hash", "cost:11"])
def test_behind_a_router_that_keeps_sessions_together_the_order_is_that_of_engines_that_saw_all(router: str, seed: int) -> None:
    hits, equal, evicted = served("compared", router, seed, pooled=True)
    assert evicted > 200
    assert equal >= 0.95
    assert hits == pytest.approx(served("fleetwide", router, seed)[0], abs=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_conversations_that_move_between_engines_are_known_on_both(seed: int) -> None:
    """Seconds pass until an engine asks for its free blocks again; until then it evicts by what it has seen."""
    best = served("fleetwide", "round-robin", seed)[0]
    alone, alone_equal, _ = served("compared", "round-robin", seed)
    pooled, pooled_equal, _ = served("compared", "round-robin", seed, pooled=True)
    assert pooled_equal > alone_equal + 0.4
    assert best - pooled < (best - alone) / 2


class InRedis(MemoryStore[Segment]):
    """A real store of segments, whose times count from START."""

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self.store = store

    def record(self, blocks: Sequence[Segment], turned: Turned, gap_s: float) -> None:
        highest = turned.highest._replace(at=turned.highest.at + START)
        self.store.record([named(block) for block in blocks], Turned(turned.conversation, turned.at + START, highest), gap_s)
        assert self.store.flush()

    def claims(self, blocks: Sequence[Segment]) -> dict[Segment, SharedClaim]:
        found = self.store.claims([named(block) for block in blocks])
        claims = {block: found.get(named(block)) for block in blocks}
        return {block: claim._replace(at=claim.at - START) for block, claim in claims.items() if claim is not None}


def named(segment: Segment) -> BlockHash:
    return BlockHash(sha256(repr((segment.depth, segment.contents)).encode()).digest())


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_through_redis_and_a_cluster_the_evictions_are_those_through_memory(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    expected = served("compared", "round-robin", 0, pooled=True)
    found: Any = request.getfixturevalue("redis_server" if kind == "redis" else "redis_cluster")
    server: RedisServer = found if kind == "redis" else found[0]
    connection = Connection(server.url, cluster=kind == "cluster")
    store = RedisStore(connection, Namespace("sha256_cbor", "0", 16, "a-model"), shards=4)
    monkeypatch.setattr(fleet_run, "MemoryStore", lambda: InRedis(store))
    try:
        assert served("compared", "round-robin", 0, pooled=True) == expected
        assert store.failures == store.refused == 0 < store.written
    finally:
        store.close()
