"""The semantic tier's bound holds when the engine's new answer cannot be stored, or never comes."""

import random
from pathlib import Path

import pytest

from response_cache.service.outcomes import CacheMiss
from testing.processes import RedisServer
from tests.response_cache import answer
from tests.semantic_traffic import Caches, Ending, Outcome, drive, fill, question

COUNT = 800


async def run(url: str, folder: Path, share: float, ending: Ending, seed: int, count: int = COUNT) -> Outcome:
    """Return the outcome of a stream in which this share of the candidates is wrong."""
    caches = Caches(url, folder, count, seed)
    draw = random.Random(seed)
    wrong = [draw.random() < share for _ in range(count)]
    await fill(caches, count)
    outcome = await drive(caches, wrong.__getitem__, ending, range(count))
    await caches.close()
    return outcome


SOME = ("tool_calls", "aborted", "never")
"""Endings of an engine's answer; the others in nightly tests."""


@pytest.mark.parametrize(
    "ending",
    [*SOME, *(pytest.param(ending, marks=pytest.mark.nightly) for ending in ("length", "content_filter", "error", "empty"))],
)
async def test_wrong_answers_count_even_if_the_engines_answer_is_not_stored(
    redis_server: RedisServer, tmp_path: Path, ending: Ending
) -> None:
    outcome = await run(redis_server.url, tmp_path, 0.4, ending, seed=1)
    assert outcome.wrong <= outcome.bound * outcome.served, outcome


async def test_right_answers_are_still_served(redis_server: RedisServer, tmp_path: Path) -> None:
    outcome = await run(redis_server.url, tmp_path, 0.0, "tool_calls", seed=1)
    assert outcome.served > 100 and outcome.wrong == 0


async def test_few_wrong_answers_are_within_the_displayed_bound(redis_server: RedisServer, tmp_path: Path) -> None:
    outcome = await run(redis_server.url, tmp_path, 0.01, "tool_calls", seed=3)
    assert outcome.served > 50
    assert outcome.wrong <= 0.05 * outcome.served, outcome


@pytest.mark.parametrize("ending", ["tool_calls", "aborted"])
async def test_changed_traffic_shuts_the_tier_even_if_no_audit_is_judged(
    redis_server: RedisServer, tmp_path: Path, ending: Ending
) -> None:
    caches = Caches(redis_server.url, tmp_path, COUNT + 200, seed=2)
    await fill(caches, COUNT + 200)
    before = await drive(caches, lambda _: False, ending, range(COUNT))
    after = await drive(caches, lambda _: True, ending, range(COUNT, COUNT + 200))
    await caches.close()
    assert before.served > 50
    assert after.served <= 0.05 * (before.served + after.served), after


async def test_only_the_request_that_asks_the_engine_counts_as_a_lookup(redis_server: RedisServer, tmp_path: Path) -> None:
    caches = Caches(redis_server.url, tmp_path, 1)
    await fill(caches, 1)
    leader = await caches.cache.lookup("gateway", question(0, reworded=True))
    others = [await caches.cache.lookup("gateway", question(0, reworded=True)) for _ in range(5)]
    assert isinstance(leader, CacheMiss) and leader.candidate
    assert {(other.reason, other.candidate) for other in others if isinstance(other, CacheMiss)} == {("in_flight", b"")}
    await caches.cache.store("gateway", question(0, reworded=True), answer("answer 0"), candidate=leader.candidate)
    (scope,) = caches.semantic._in_use._scopes.values()
    (tenant,) = scope.tenants.values()
    assert tenant.gate.evidence.counts().sum(axis=0).tolist() == [1, 1, 0, 1, 0, 0]
    await caches.close()
