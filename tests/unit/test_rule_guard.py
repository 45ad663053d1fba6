"""The guard between rules: losses against LRU are bounded whatever the traffic does, and gains are taken soon."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.policy.guard import AGAIN, ALLOWANCE, REGAINED, WORTH, Guard

RULES = ("lru", "ttl", "mq", "value")
ASKED = 20


def observe(guard: Guard, hits: Sequence[int], asked: int = ASKED) -> None:
    """Let a cache without a past serve a request: it hits what the rule in force hits."""
    guard.observe(hits, asked, hits[guard.rules.index(guard.in_force)])


def requests_until(guard: Guard, rule: str, hits: Sequence[int], asked: int = ASKED) -> int:
    for number in range(1, 10_000):
        observe(guard, hits, asked)
        if guard.in_force == rule:
            return number
    raise AssertionError(f"{rule} never came into force")


def most(total: int, unit: int, lured: int) -> float:
    """Return the largest loss to LRU. ``lured``: blocks that rules would have gained while LRU was in force."""
    return REGAINED * total + (ALLOWANCE + 1.0) * unit + math.sqrt(2.0 * AGAIN / WORTH * ALLOWANCE * unit * lured)


def lost(guard: Guard, traffic: "Adversary", requests: int) -> tuple[int, int]:
    """Return the blocks that the rule in force hit less than LRU, and those that others hit more while LRU was in force."""
    loss = lured = 0
    for _ in range(requests):
        hits = traffic.hits(guard.in_force)
        loss += hits[0] - hits[RULES.index(guard.in_force)]
        lured += (max(hits) - hits[0]) * (guard.in_force == "lru")
        observe(guard, hits)
    return loss, lured


class Adversary:
    """Traffic that looks at the rule in force and makes it lose.

    Under LRU every other rule gains ``lure`` blocks per request. Another rule gains for ``patience`` requests after it came
    into force, and then hits ``bite`` blocks less than LRU; rules that are not in force keep gaining.
    """

    def __init__(self, lure: int, bite: int, patience: int = 0) -> None:
        self.lure, self.bite, self.patience = lure, bite, patience
        self.latest, self.since = "", 0

    def hits(self, in_force: str) -> list[int]:
        self.since = 0 if in_force != self.latest else self.since + 1
        self.latest = in_force
        turned = in_force != "lru" and self.since >= self.patience
        return [10 - self.bite if turned and rule == in_force else 10 if rule == "lru" else 10 + self.lure for rule in RULES]


@pytest.mark.parametrize("patience", [0, 10, 100])
@pytest.mark.parametrize("bite", [1, 3, 10])
@pytest.mark.parametrize("lure", [1, 3, 10])
def test_traffic_that_turns_whenever_the_guard_does_costs_little(lure: int, bite: int, patience: int) -> None:
    requests = 20_000
    loss, lured = lost(Guard(RULES, homes=("value",)), Adversary(lure, bite, patience), requests)
    assert loss <= most(ASKED * requests, max(lure, bite, ASKED), lured)
    assert loss < 0.0015 * ASKED * requests + 0.01 * lured


@settings(max_examples=50, deadline=None)
@given(st.integers(0), st.lists(st.sampled_from(RULES), min_size=1, unique=True), st.integers(1, 200))
def test_no_traffic_loses_more_than_the_allowance(seed: int, homes: Sequence[str], largest: int) -> None:
    rng, guard = random.Random(seed), Guard(RULES, homes=homes)
    loss = total = lured = 0
    against = rng.random()
    for _ in range(2_000):
        asked = rng.randint(0, largest)
        hits = [rng.randint(0, asked) for _ in RULES]
        if rng.random() < against:
            hits[RULES.index(guard.in_force)] = 0
        loss += hits[0] - hits[RULES.index(guard.in_force)]
        total += asked
        lured += (max(hits) - hits[0]) * (guard.in_force == "lru")
        observe(guard, hits, asked)
        assert loss <= most(total, largest, lured)


def test_a_rule_that_gains_for_long_returns_although_the_allowance_is_used_up() -> None:
    guard = Guard(RULES, homes=("value",))
    for _ in range(10):  # every return loses at once, until the allowance is used up
        while guard.in_force != "lru":
            guard.observe([5, 5, 5, 5], ASKED, 1)
        for _ in range(200):
            guard.observe([5, 5, 5, 7], ASKED, 5)
    assert requests_until(guard, "value", [5, 5, 5, 7]) < 3_000
    for _ in range(1_000):
        observe(guard, [5, 5, 5, 7])
    assert guard.in_force == "value"


def test_a_clear_gain_is_taken_within_tens_of_requests() -> None:
    guard = Guard(RULES, homes=("lru",))
    assert requests_until(guard, "value", [5, 5, 5, 7]) < 30
    assert requests_until(guard, "mq", [5, 5, 9, 5]) < 60
    assert guard.switches == 2


def test_rare_large_gains_are_found() -> None:
    """One request in fifty differs, by more than the mean prompt, as with chats and a large cache."""
    rng, guard, served = random.Random(3), Guard(RULES, homes=("lru",)), 0
    for _ in range(8_000):
        value = 40 * (rng.random() < 0.015)
        observe(guard, [40 * (rng.random() < 0.005), 0, 0, value])
        served += guard.in_force == "value"
    assert served > 4_000


def test_a_rule_that_turns_bad_is_left_for_good() -> None:
    guard = Guard(RULES, homes=("value",))
    for _ in range(5_000):
        observe(guard, [5, 5, 5, 7])
    assert guard.in_force == "value"
    assert requests_until(guard, "lru", [5, 5, 5, 3]) < 30
    for _ in range(5_000):
        observe(guard, [5, 5, 5, 3])
        assert guard.in_force == "lru"


def test_hits_of_the_real_cache_count_not_those_of_a_rules_own_cache() -> None:
    """A cache that loses at every change of the rule is put under LRU, although each rule's own cache gains."""
    guard = Guard(RULES, homes=("value",))
    for _ in range(50):
        guard.observe([5, 5, 5, 7], ASKED, 3)
    assert guard.in_force == "lru"


def test_home_is_in_force_without_evidence() -> None:
    guard = Guard(RULES, homes=("value",))
    for hits in range(500):
        observe(guard, [hits % 7] * 4)
    observe(guard, [0, 0, 0, 0], 0)
    assert (guard.in_force, guard.switches) == ("value", 0)
    assert guard.advantage == dict.fromkeys(RULES, 0.0)


def test_home_rules_need_the_same_evidence_against_each_other_and_less_against_others() -> None:
    def needed(homes: Sequence[str], before: Sequence[int], after: Sequence[int], rule: str) -> int:
        guard = Guard(RULES, homes=homes)
        for _ in range(300):
            observe(guard, before)
        return requests_until(guard, rule, after)

    mq, value = [5, 5, 7, 5], [5, 5, 5, 7]
    among_others = needed(("lru",), mq, value, "value")
    assert needed(("mq",), mq, value, "value") > among_others
    assert needed(("value",), mq, value, "value") < among_others
    assert needed(("mq", "value"), mq, value, "value") == among_others


@pytest.mark.parametrize("size", [1, 10, 100])
def test_noise_of_any_size_changes_the_rule_seldom(size: int) -> None:
    rng, guard = random.Random(1), Guard(RULES, homes=("value",))
    for _ in range(5_000):
        observe(guard, [size * rng.randint(0, 1) for _ in RULES], size)
    assert guard.switches <= 30


def test_the_unit_of_blocks_does_not_matter() -> None:
    rng, one, other = random.Random(2), Guard(RULES, homes=("value",)), Guard(RULES, homes=("value",))
    for _ in range(3_000):
        hits = [rng.randint(0, 9) for _ in RULES]
        observe(one, hits, 10)
        observe(other, [64 * hit for hit in hits], 640)
        assert one.in_force == other.in_force
    assert one.switches == other.switches > 0


def test_advantage_is_in_blocks_per_request() -> None:
    guard = Guard(RULES, homes=("lru",))
    for _ in range(1_000):
        observe(guard, [5, 4, 5, 7])
    assert guard.advantage == pytest.approx({"lru": 0.0, "ttl": -1.0, "mq": 0.0, "value": 2.0})


def test_sums_stay_finite_over_millions_of_requests() -> None:
    guard = Guard(("lru", "value"), homes=("value",))
    for _ in range(300_000):
        observe(guard, [5, 7])
    assert guard.in_force == "value" and guard.advantage["value"] == pytest.approx(2.0)
    assert requests_until(guard, "lru", [7, 5]) < 100


def test_a_rule_outside_choosable_is_compared_and_never_in_force() -> None:
    guard = Guard((*RULES, "lpc"), homes=("value",), choosable=("lru", "value"))
    for _ in range(2_000):
        observe(guard, [5, 8, 5, 6, 9])
        assert guard.in_force == "value"
    assert guard.advantage["lpc"] == pytest.approx(4.0) and guard.advantage["ttl"] == pytest.approx(3.0)


def test_a_forced_rule_stays_in_force() -> None:
    guard = Guard(RULES, homes=("mq",), choosable=("mq",))
    for _ in range(1_000):
        observe(guard, [9, 9, 0, 9])
    assert (guard.in_force, guard.switches) == ("mq", 0)


@pytest.mark.parametrize(
    ("rules", "homes", "choosable"),
    [
        (("value", "lru"), ("value",), None),
        ((), ("lru",), None),
        (("lru", "lru"), ("lru",), None),
        (RULES, (), None),
        (RULES, ("wa",), None),
        (RULES, ("value", "mq"), ("lru", "value")),
        (RULES, ("value",), ("value", "mq")),
        (RULES, ("lru",), ("lru", "wa")),
    ],
)
def test_impossible_sets_of_rules_are_refused(
    rules: Sequence[str], homes: Sequence[str], choosable: Sequence[str] | None
) -> None:
    with pytest.raises(ValueError, match="rule"):
        Guard(rules, homes=homes, choosable=choosable)


def test_hits_must_match_the_rules() -> None:
    with pytest.raises(ValueError, match="4 rules"):
        Guard(RULES, homes=("value",)).observe([1, 2, 3], ASKED, 3)
