"""No tenant opens the semantic tier for another one, or shuts it: evidence is a tenant's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from response_cache.semantic import gate as gates
from response_cache.semantic.drift import EACH
from response_cache.service.outcomes import CacheHit
from testing.processes import RedisServer
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
        if isinstance(found := await caches.cache.lookup("gateway", question(i, reworded=True, tenant=tenant)), CacheHit)
    ]
    for hit in served:
        await caches.upkeep.feedback("gateway", hit.ticket, wrong=True, drop=False, tenant=tenant)
    return len(served)


def bound_of(caches: Caches, tenant: str) -> float:
    """Return the bound in force for a tenant."""
    return caches.semantic._tenant(
        caches.store.namer.scope("gateway", "faq"), caches.scopes.of("faq"), tenant, "semantic"
    ).gate.bound


async def served(caches: Caches, tenant: str, of: range) -> list[bytes]:
    """Return the tickets of what a tenant is served."""
    found = [await caches.cache.lookup("gateway", question(i, reworded=True, tenant=tenant)) for i in of]
    return [one.ticket for one in found if isinstance(one, CacheHit)]


async def test_a_flood_of_complaints_makes_the_tier_stricter_for_its_own_tenant_alone_and_over_a_restart(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    many = 1400
    caches = Caches(redis_server.url, tmp_path, many)
    for tenant in ("attacker", "victim"):
        await fill(caches, many, tenant=tenant)
        await drive(caches, never, "text", range(many - 100), tenant=tenant)
    tickets = await served(caches, "attacker", range(many - 100, many - 50))
    theirs = await served(caches, "victim", range(many - 100, many - 50))
    assert len(tickets) > 2 * EACH and theirs

    async def complain_of(tickets: Sequence[bytes], **fields: Any) -> int:
        done = [await caches.upkeep.feedback("gateway", one, drop=False, tenant="attacker", **fields) for one in tickets]
        return sum(counted for counted, _ in done)

    # What another tenant was served, what nobody was, and one answer many times.
    assert await complain_of([*theirs, b"", b"x" * 5000, *(ticket[::-1] for ticket in tickets)], wrong=True) == 0
    assert await complain_of([tickets[0]] * 50, wrong=True) <= 1
    assert bound_of(caches, "attacker") == bound_of(caches, "victim") == 0.05
    # An outdated answer was to the right question.
    assert await complain_of(tickets[1 : EACH + 2], wrong=True, reason="outdated") == EACH + 1
    assert bound_of(caches, "attacker") == 0.05
    await complain_of(tickets[EACH + 2 :], wrong=True)
    assert bound_of(caches, "attacker") < 0.05 == bound_of(caches, "victim")
    # Praise is no evidence: it undoes nothing and opens nothing.
    await complain_of(tickets * 20, wrong=False)
    await caches.semantic.sync(2.0 * many)
    assert bound_of(caches, "attacker") < 0.05
    assert await served(caches, "victim", range(many - 50, many))
    await caches.close()
    again = Caches(redis_server.url, tmp_path, many)
    assert bound_of(again, "attacker") == bound_of(again, "victim") == 0.05  # before it has read Redis
    await again.semantic.sync(0.0)
    assert bound_of(again, "attacker") < 0.05 == bound_of(again, "victim")
    await again.close()
