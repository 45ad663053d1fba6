"""Lives of answers by scope: time-sensitive questions, and an own life for other questions."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.store.scopes import HOUR, ScopeSettings
from testing.processes import RedisServer
from tests.response_cache import Caches, GivenVectors, answer, asked

pytestmark = pytest.mark.usefixtures("patient")
SCOPES = {
    "faq": ScopeSettings(mode="serve", ttl_s=8 * HOUR, semantic_ttl_s=2 * HOUR),
    "brief": ScopeSettings(mode="serve", time_sensitive_ttl_s=60),
    "lasting": ScopeSettings(mode="serve", time_sensitive=False),
}
NOW, REWORDED = "Who leads the league right now?", "please tell me who leads the league right now"
EVER, ASKED_AGAIN = "Who leads the league of nations?", "please tell me who leads the league of nations"


@pytest.fixture
async def caches(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Caches]:
    """Caches to which all questions are equal, and whose gates serve every candidate."""
    one = np.array([1.0, 0.0], np.float32)
    made = Caches(redis_server.url, tmp_path, SCOPES, embedder=GivenVectors({}, one))
    yield made
    await made.close()


async def kept(caches: Caches, question: str, scope: str) -> None:
    assert (await caches.cache.store("gateway", asked(question, scope=scope), answer())).refusal is None
    await caches.semantic.sync(0.0)


async def look(caches: Caches, question: str, scope: str) -> str:
    found = await caches.cache.lookup("gateway", asked(question, scope=scope))
    return found.source if isinstance(found, CacheHit) else found.reason


@pytest.mark.parametrize(("scope", "life_s"), [("faq", HOUR), ("brief", 60), ("lasting", 4 * HOUR)])
async def test_an_answer_about_now_lives_as_long_as_its_scope_says(caches: Caches, scope: str, life_s: float) -> None:
    await kept(caches, NOW, scope)
    caches.clock.now += life_s - 1
    assert await look(caches, NOW, scope) == "exact"
    caches.clock.now += 2
    assert await look(caches, NOW, scope) != "exact"


async def test_an_answer_about_now_never_serves_another_question(caches: Caches) -> None:
    await kept(caches, NOW, "faq")
    assert await look(caches, REWORDED, "faq") == "time_sensitive"
    assert await look(caches, EVER, "faq") == "cold"  # it is no candidate
    await kept(caches, EVER, "faq")
    assert await look(caches, REWORDED + "?", "faq") == "time_sensitive"


async def test_a_scope_can_treat_such_questions_as_all_others(caches: Caches) -> None:
    await kept(caches, NOW, "lasting")
    assert await look(caches, REWORDED, "lasting") == "semantic"


async def test_without_a_semantic_tier_the_miss_is_an_ordinary_one(redis_server: RedisServer, tmp_path: Path) -> None:
    caches = Caches(redis_server.url, tmp_path)
    found = await caches.cache.lookup("gateway", asked(NOW, scope="off"))
    assert isinstance(found, CacheMiss) and found.reason == "cold" and found.flight
    await caches.close()


async def test_an_answer_serves_other_questions_for_a_shorter_time_than_its_own(caches: Caches) -> None:
    await kept(caches, EVER, "faq")
    found = await caches.cache.lookup("gateway", asked(ASKED_AGAIN, scope="faq"))
    assert isinstance(found, CacheHit) and 0 < found.remaining_s <= 2 * HOUR
    caches.clock.now += 2 * HOUR + 1
    await caches.semantic.sync(10.0)
    assert await look(caches, ASKED_AGAIN, "faq") == "cold"
    assert await look(caches, EVER, "faq") == "exact"


def test_other_questions_cannot_have_the_longer_life() -> None:
    with pytest.raises(ValueError, match="semantic_ttl_s must be at most ttl_s"):
        ScopeSettings(ttl_s=60, semantic_ttl_s=61)
