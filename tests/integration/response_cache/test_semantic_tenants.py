"""No tenant opens the semantic tier for another one, or shuts it: evidence is a tenant's own."""

from pathlib import Path

import pytest

from benchmarks.processes import RedisServer
from response_cache.semantic import gate as gates
from response_cache.service.outcomes import Hit
from tests.semantic_traffic import Caches, drive, fill, question

COUNT = 400


@pytest.fixture(autouse=True)
def no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an open tier serve every candidate."""
    for name in ("AUDITS", "FIRST_AUDITS"):
        monkeypatch.setattr(gates, name, 0.0)


def never(_: int) -> bool:
    return False


async def test_a_tenant_with_clean_traffic_does_not_open_the_tier_for_another(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    caches = Caches(redis_server.url, tmp_path, COUNT)
    for tenant in ("attacker", "victim"):
        await fill(caches, COUNT, tenant=tenant)
    attacker = await drive(caches, never, "text", range(COUNT), tenant="attacker")
    assert attacker.served > 20
    victim = await drive(caches, lambda _: True, "text", range(60), tenant="victim")
    await caches.close()
    assert victim.served == 0, victim


async def test_a_tenants_false_feedback_does_not_shut_the_tier_for_another(redis_server: RedisServer, tmp_path: Path) -> None:
    caches = Caches(redis_server.url, tmp_path, COUNT)
    for tenant in ("attacker", "victim"):
        await fill(caches, COUNT, tenant=tenant)
        await drive(caches, never, "text", range(COUNT - 50), tenant=tenant)
    assert await complain(caches, "attacker") > 5
    await caches.semantic.sync(300.0)
    left = range(COUNT - 25, COUNT)
    attacker, victim = [await drive(caches, never, "text", left, tenant=tenant) for tenant in ("attacker", "victim")]
    await caches.close()
    assert attacker.served == 0 and victim.served > 0


async def complain(caches: Caches, tenant: str) -> int:
    """Call wrong what the tenant is served, and return how many answers these were."""
    served = [
        found
        for i in range(COUNT - 50, COUNT - 25)
        if isinstance(found := await caches.cache.lookup("gateway", question(i, reworded=True, tenant=tenant)), Hit)
    ]
    for hit in served:
        await caches.upkeep.feedback("gateway", hit.ticket, wrong=True, drop=False, tenant=tenant)
    return len(served)
