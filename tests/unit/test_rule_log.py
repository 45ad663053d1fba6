"""The log of the guard's choices: one line each, with the hits that led to it, and never many."""

import logging
import random
import re

import pytest

from eviction_client.observability.rule_log import EVERY_S, WINDOW_S, RuleLog
from eviction_client.policy.ghosts import CHOSEN, Ghosts
from eviction_client.policy.guard import Guard
from eviction_client.policy.rules import RULES
from tests.unit.test_misses import Engine, words


class Scripted:
    """Ghost caches with scripted counters."""

    def __init__(self) -> None:
        self.ghosts: Ghosts[bytes] = Ghosts(
            100, dict.fromkeys((*RULES, CHOSEN), 1), choosable=("lru", "value"), homes=("value",), clock=lambda: 0.0
        )

    def serve(self, asked: int, **hits: int) -> None:
        self.ghosts.asked += asked
        for rule, count in hits.items():
            self.ghosts.hits[rule] += count

    def choose(self, rule: str) -> None:
        self.ghosts.guard.in_force = rule
        self.ghosts.guard.switches += 1


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eviction_client.observability.rule_log")


def test_a_choice_is_logged_once_with_recent_hits(caplog: pytest.LogCaptureFixture) -> None:
    scripted = Scripted()
    log = RuleLog("value", shadow=False)
    scripted.serve(10_000, value=9_000, lru=0)  # long ago: no evidence for what happens now
    for now in range(0, 3 * int(WINDOW_S), 10):
        log.update(scripted.ghosts, float(now))
    scripted.serve(1000, lru=410, ttl=473, value=250)
    scripted.choose("ttl")
    for second in range(3):
        log.update(scripted.ghosts, 3 * WINDOW_S + second)
    hits = {"lru": 41.0, "ttl": 47.3, "value": 25.0}
    assert caplog.messages == [
        "learned prefix cache: the guard changes the rule from value to ttl (change 1). Hits of 1000 sampled blocks in "
        f"{WINDOW_S:.0f} s: " + ", ".join(f"{rule} {hits.get(rule, 0.0)}%" for rule in RULES)
    ]


def test_choices_in_quick_succession_are_one_line_that_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    scripted = Scripted()
    log = RuleLog("value", shadow=True)
    rng = random.Random(1)
    now, changes = 0.0, 0
    while now < 100 * EVERY_S:
        now += rng.random()
        scripted.choose(("lru", "ttl")[changes % 2])
        changes += 1
        log.update(scripted.ghosts, now)
    assert 50 <= len(caplog.messages) <= 101
    assert caplog.messages[0].startswith("learned prefix cache: dry run, the guard would change the rule from value to lru (")
    changes_so_far = int(re.search(r"change (\d+)", caplog.messages[-1])[1])  # type: ignore[index]
    assert changes_so_far == len(caplog.messages) + sum(map(int, re.findall(r"(\d+) of them not logged", caplog.text)))


def chats(engine: Engine, requests: int, rng: random.Random) -> None:
    for _ in range(requests):
        engine.serve(words(17, 100 * min(int(rng.expovariate(0.05)), 400)), salt="a")


def test_a_plug_in_logs_the_choice_of_its_guard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rng = Engine(64), random.Random(3)
    chats(engine, 20, rng)
    caplog.clear()
    before = engine.plugin.rule
    assert before != "mq"
    monkeypatch.setattr(Guard, "observe", lambda *_: None)
    engine.plugin.policy.ghosts.guard.in_force = "mq"
    chats(engine, 20, rng)
    assert [f"the guard changes the rule from {before} to mq (" in line for line in caplog.messages] == [True]


def test_the_chosen_cache_hits_what_the_rule_in_force_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rng = Engine(64), random.Random(3)
    ghosts = engine.plugin.policy.ghosts
    monkeypatch.setattr(Guard, "observe", lambda *_: None)
    ghosts.guard.in_force = "lru"
    chats(engine, 100, rng)
    assert 0 < ghosts.hits[CHOSEN] == ghosts.hits["lru"] != ghosts.hits["value"]
    (tenant,) = engine.plugin.misses.tenants.values()
    assert tenant.sampled[CHOSEN] == ghosts.hits[CHOSEN]
    held = set(ghosts.chosen.contents)
    ghosts.guard.in_force = "value"
    chats(engine, 1, rng)
    assert held & set(ghosts.chosen.contents), "a change of rule moves no block"
    chats(engine, 100, rng)
    assert ghosts.chosen.queue.tables is engine.plugin.policy.tables_of("value") is not None
    assert set(ghosts.chosen.contents) != set(ghosts.caches["lru"].contents)
