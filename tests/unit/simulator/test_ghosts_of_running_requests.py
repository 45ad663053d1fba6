"""Ghost caches of a cache that running requests share: their hits, and the room that these leave."""

from collections.abc import Sequence
from typing import Any

import pytest

from eviction_client.policy.ghosts import IN_USE_FOLLOWS
from eviction_client.policy.policy import Policy
from eviction_client.policy.request import TrackedRequest
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.policies.plugin import PluginPolicy
from lpc_apps.simulator.workloads import WORKLOADS
from tests.clock import Clock
from tests.reachable import names_in


class Bench:
    """A policy of a cache of names."""

    def __init__(self, capacity: int = 100) -> None:
        self.clock = Clock(0.0)
        self.policy: Policy[Any] = Policy(
            capacity, block_tokens=16, clock=self.clock, rule="auto", sample=lambda blocks, _: list(blocks)
        )
        self.ghosts = self.policy.ghosts

    def start(self, request: str, prompt: Sequence[str]) -> None:
        self.ghosts.start(request, prompt)

    def end(self, request: str, prompt: Sequence[str], computed: int | None = None) -> None:
        self.clock.now += 1.0
        length = len(prompt) if computed is None else computed
        self.policy.learn(self.policy.finished(TrackedRequest(request), prompt[:length], length, self.clock.now))


def test_a_request_does_not_hit_blocks_that_come_after_its_start() -> None:
    bench = Bench()
    bench.start("early", ["a", "b"])
    bench.start("late", ["a", "b"])
    bench.end("late", ["a", "b"])
    bench.end("early", ["a", "b"])
    assert set(bench.ghosts.hits.values()) == {0}
    bench.start("next", ["a", "b"])
    bench.end("next", ["a", "b"])
    assert set(bench.ghosts.hits.values()) == {2}


def test_a_request_hits_at_most_the_blocks_that_it_computed() -> None:
    bench = Bench()
    bench.end("first", ["a", "b", "c"])
    bench.start("aborted", ["a", "b", "c"])
    bench.end("aborted", ["a", "b", "c"], computed=1)
    assert set(bench.ghosts.hits.values()) == {1}


def test_a_waiting_request_hits_what_is_retained_for_it_and_comes_while_it_waits() -> None:
    bench = Bench()
    bench.start("waits", ["a"])
    bench.ghosts.wait("waits", ["a"])
    bench.end("other", ["a"])
    bench.end("waits", ["a"])
    assert set(bench.ghosts.hits.values()) == {1}


def test_a_request_that_is_forgotten_leaves_nothing() -> None:
    bench = Bench()
    for number in range(10):
        bench.start(f"r{number}", ["a"])
        bench.ghosts.release(f"r{number}")
    assert not names_in(bench.ghosts, lambda one: isinstance(one, str) and one.startswith("r") and one[1:].isdigit())


def test_blocks_in_use_take_the_room_of_the_new_ones_among_them() -> None:
    bench = Bench()
    bench.ghosts.resize(100.0, in_use=40.0)
    assert bench.ghosts.chosen.room == 60, "nothing is known of hits"
    conversation = [f"block {number}" for number in range(10)]
    for turn in range(round(10 / IN_USE_FOLLOWS)):
        fresh = [*conversation[:9], f"new {turn}"]
        bench.start("r", fresh)
        bench.end("r", fresh)
    bench.ghosts.resize(100.0, in_use=45.0)
    assert {cache.room for cache in (*bench.ghosts.caches.values(), bench.ghosts.chosen)} == {95}, "a tenth of 45 is new"


def test_in_a_small_busy_cache_a_rules_gain_is_about_that_of_its_ghost() -> None:
    """Running requests use most of this cache. In ghost caches of its whole size `own` gained five times as much as in it."""
    workload = WORKLOADS["documents"](5, requests=600)
    capacity = round(0.03 * workload.working_set_tokens())
    rates = {}
    for rule in ("lru", "own"):
        made: list[PluginPolicy] = []

        def policy(blocks: int, rule: str = rule, made: list[PluginPolicy] = made) -> PluginPolicy:
            made.append(PluginPolicy(blocks, workload, PolicySettings(rule=rule)))
            return made[-1]

        result = simulate(workload, capacity, policy)
        rates[rule] = result.all_hit_tokens / result.all_prompt_tokens
    ghosts = made[-1].core.ghosts
    real, shown = rates["own"] - rates["lru"], (ghosts.hits["own"] - ghosts.hits["lru"]) / ghosts.asked
    assert real > 0.01
    assert shown == pytest.approx(real, abs=0.01)
