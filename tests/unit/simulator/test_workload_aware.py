"""The policy `wa`: traffic that could refute it, its order, and its bounds."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings, workload_aware
from lpc_apps.simulator.policies.plugin import PluginPolicy
from lpc_apps.simulator.policies.workload_aware import REMEMBERED, TURNS, ReuseTimes, WorkloadAware
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK = 32
HOUR = 3600.0
Law = Callable[[str, float], tuple[float, float]]
"""Probability that a conversation of a category goes on after a time, and the mean gap, seconds."""


def conversations(law: Law, seed: int) -> Workload:
    """An hour of two categories of conversations with 1,000 new tokens per turn; hits count in the second half."""
    timeline = Timeline(seed, BLOCK)
    random = timeline.random
    for category in ("a", "b"):
        for start in np.arange(0.0, HOUR, 8.0).tolist():
            text, user, at, context = timeline.text(), timeline.conversation(), start + float(random.uniform(0, 8)), 0
            for turn in range(1, 6):
                if at > HOUR:
                    break
                context += 900
                at = timeline.ask(at, user, turn, text, context, 100, category=category)
                context += 100
                goes_on, mean = law(category, at)
                if random.random() >= goes_on:
                    break
                at += float(random.exponential(mean))
    drawn = timeline.workload("conversations", 2_400)
    drawn.count_from = HOUR / 2
    return drawn


def swapped(category: str, at: float) -> tuple[float, float]:
    """Half-way the categories swap their gaps."""
    return (0.8, 20.0 if (category == "a") == (at < HOUR / 2) else 600.0)


def stopping(category: str, at: float) -> tuple[float, float]:
    """Half-way one category stops returning."""
    return (0.9 if category == "b" or at < HOUR / 2 else 0.0, 120.0)


def rate(workload: Workload, name: str, share: float) -> float:
    capacity = int(share * workload.working_set_tokens())
    return 100 * simulate(workload, capacity, lambda blocks: REGISTRY[name](blocks, workload, PolicySettings())).hit_rate


def test_old_gaps_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [conversations(swapped, seed) for seed in range(2)]
    lru, forgets = (np.mean([rate(each, name, 0.02) for each in drawn]) for name in ("lru", "wa"))
    monkeypatch.setattr(workload_aware, "HALF_LIFE_S", 1e9)
    remembers = np.mean([rate(each, "wa", 0.02) for each in drawn])
    assert remembers < lru < forgets - 2


def test_a_class_that_stops_returning_leaves_its_room_to_the_other() -> None:
    drawn = [conversations(stopping, seed) for seed in range(2)]
    lru, wa = (np.mean([rate(each, name, 0.05) for each in drawn]) for name in ("lru", "wa"))
    assert wa > lru + 8


@pytest.mark.parametrize(("name", "above_lru"), [("batch-scan", 4.0), ("day", -0.3)])
def test_neither_a_scan_nor_another_hour_of_the_day_misleads_it(name: str, above_lru: float) -> None:
    drawn = WORKLOADS[name](1)
    assert rate(drawn, "wa", 0.02) > rate(drawn, "lru", 0.02) + above_lru


def asked(category: str = "", turn: int = 1, arrival: float = 0.0, conversation: str = "c") -> Turn:
    return Turn(conversation, turn, category, 0, 0, (), (), arrival=arrival)


def policy() -> WorkloadAware:
    return WorkloadAware(0, Workload("none", BLOCK, [], False, 0.0, 0.0), PolicySettings())


def test_the_lowest_value_goes_first_and_of_a_request_the_deepest() -> None:
    random = np.random.default_rng(0)
    tested = policy()
    laws = {}
    for category in "abc":
        for number in (1, 2):
            laws[tested.class_of(asked(category, number))] = float(random.uniform(0.1, 0.9)), float(random.uniform(20, 300))
    tested.times.laws = laws
    values, depths = {}, {}
    for request in range(60):
        turn = asked(str(random.choice(list("abc"))), int(random.integers(1, 3)), float(random.uniform(0, 500)))
        q, tau = laws[tested.class_of(turn)]
        pieces = [workload_aware.AgingPiece(Segment((10 * request + depth,), depth), 0, 1) for depth in (0, 1, 2)]
        # The engine frees the tail first; another request may have used the middle a little longer.
        tested.free([pieces[2], pieces[0]], turn, 500.0)
        tested.free([pieces[1]], turn, 500.0)
        for piece in pieces:
            # The probability of a use between 500 and 500 + life, by hand.
            age = 500.0 - turn.arrival
            values[piece.block_id] = q * (np.exp(-age / tau) - np.exp(-(age + tested.life) / tau))
            depths[piece.block_id] = piece.depth
    gone: list[int] = []
    while len(gone) < len(values):
        life = tested.life
        gone += [content for chunk in tested.evict(1, 500.0) for content in chunk]
        tested.life = life
    assert gone == sorted(values, key=lambda block: (values[block], -depths[block]))


def observed(q: float, tau: float, hours: float, seed: int = 0) -> ReuseTimes:
    """Blocks used once a second, and again after an exponential time or never."""
    random = np.random.default_rng(seed)
    uses = []
    for second in range(int(3600 * hours)):
        block, at = Segment((second,), 0), float(second)
        uses.append((at, second, block))
        if random.random() < q:
            uses.append((at + float(random.exponential(tau)), second, block))
    times = ReuseTimes()
    for at, _, block in sorted(uses):
        if at < 3600 * hours:
            # The second use is of another class, so that the first has one law.
            times.used(block, 0 if block not in times.awaited else 7 * TURNS, at)
    times.fit(3600 * hours)
    return times


@pytest.mark.parametrize(("q", "tau"), [(0.2, 30.0), (0.5, 600.0), (0.8, 1500.0)])
def test_forgetting_does_not_bias_the_law(q: float, tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_aware, "PRIOR_WEIGHT", 1e-6)
    found = np.mean([observed(q, tau, 3.0, seed).laws[0] for seed in range(3)], axis=0)
    assert found == pytest.approx((q, tau), rel=0.12)


def test_a_class_without_data_has_the_law_of_its_category() -> None:
    times = ReuseTimes()
    blocks = [Segment(tuple(range(10 * number, 10 * number + 10)), 0) for number in range(1_000)]
    for second, block in enumerate(blocks):
        times.used(block, (second % 2) * TURNS, float(second))
        if second > 10 and second % 2 == 0:
            times.used(blocks[second - 10], 7 * TURNS, float(second))  # blocks of category 0 return after 10 s
    for category in (0, 1):
        times.used(Segment((-1 - category,), 0), category * TURNS + 3, 1_000.0)
    times.fit(1_001.0)
    for key in (0, TURNS):
        assert times.laws[key + 3][0] == pytest.approx(times.laws[key][0], abs=0.15)
    assert times.laws[TURNS + 3][0] + 0.2 < times.default[0] < times.laws[3][0] - 0.2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_aware, "REMEMBERED", 500)
    times, tested = ReuseTimes(), policy()
    for block in range(3_000):
        times.used(Segment((block,), 0), 0, float(block))
    times.fit(3_000.0)
    assert len(times.awaited) == 500 < REMEMBERED
    classes = {tested.class_of(asked(f"category {n}", turn)) for n in range(500) for turn in range(1, 50)}
    assert len(classes) == workload_aware.CATEGORIES * TURNS
    assert tested.class_of(asked("category 0", 3)) != tested.class_of(asked("category 0", 4))
    assert tested.class_of(asked("category 0", TURNS)) == tested.class_of(asked("category 0", 40))


def test_an_ablation_leaves_out_one_factor_of_the_value() -> None:
    workload = conversations(swapped, 0)
    q, tau, life = 0.4, 50.0, 20.0
    laws = {}
    for name in ("wa", "wa-no-life", "wa-no-distribution"):
        policy = REGISTRY[name](1_000, workload, PolicySettings())
        assert isinstance(policy, WorkloadAware)
        policy.life = life
        laws[name] = policy.law(q, tau)
    assert laws["wa"] == pytest.approx((math.log(q * (1 - math.exp(-life / tau))), 1 / tau))
    assert laws["wa-no-life"] == pytest.approx((math.log(q), 1 / tau))
    assert laws["wa-no-distribution"] == pytest.approx((math.log(q), 0.0), abs=1e-9)


def test_the_plug_in_knows_the_categories_only_if_callers_name_them() -> None:
    """One category returns after 20 s, the other after 600 s; their prompts are alike."""

    def apart(category: str, at: float) -> tuple[float, float]:
        del at
        return (0.8, 20.0) if category == "a" else (0.8, 600.0)

    workload = conversations(apart, 0)
    capacity = int(0.2 * workload.working_set_tokens())
    rates, categories = [], []
    for named in (False, True):
        made: list[PluginPolicy] = []

        def build(blocks: int, named: bool = named, made: list[PluginPolicy] = made) -> PluginPolicy:
            made.append(PluginPolicy(blocks, workload, PolicySettings(rule="wa", categories=named)))
            return made[0]

        rates.append(100 * simulate(workload, capacity, build).hit_rate)
        categories.append({key.category for key in made[0].core.combined.keys})
    assert categories == [{0}, {0, 1, 2}]
    assert rates[1] > rates[0] + 0.5, rates
