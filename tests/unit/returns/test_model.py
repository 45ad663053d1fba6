"""The return model: what it answers while it learns, and what it keeps."""

import math
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc.model.returns.facts import Facts
from lpc.model.returns.groups import GROUPS
from lpc.model.returns.memory import Arrival, Conversations, WatchedTurn
from lpc.model.returns.model import FEWEST_TURNS, GIVEN_UP_S, ReturnModel
from lpc.model.returns.users import Users

START = 1_700_000_000.0


def turn(name: str, at: float, number: int = 1, tokens: float = 100.0) -> Arrival:
    return Arrival(name.encode(), at, Facts(number, tokens, model_log_odds=0.0))


def answers(model: ReturnModel, *turns: WatchedTurn) -> list[int]:
    groups: list[int] = model.answer(turns, [turn.arrival.facts for turn in turns]).tolist()
    return groups


def groups_of(model: ReturnModel, *arrivals: Arrival) -> list[int]:
    """Return the groups of turns of conversations that nothing is known of."""
    return answers(model, *(WatchedTurn(arrival=arrival) for arrival in arrivals))


def answer(model: ReturnModel, conversations: Conversations, *turns: Arrival) -> list[int]:
    """Return the groups of turns that arrive at once."""
    placed = [conversations.arrive(one, Users()) for one in turns]
    for _, before in placed:
        if before is not None:
            model.record_return(before)
    return answers(model, *(one for one, _ in placed))


class Traffic:
    """Conversations of long prompts return after a while, up to three times; those of short ones never do."""

    def __init__(self, capacity: int = 20_000) -> None:
        self.model = ReturnModel(capacity)
        self.conversations = Conversations()
        self.now = START
        self.names = 0
        self.draw = random.Random(0)
        self.waiting: list[tuple[float, str, int]] = []

    def arrive(self, *turns: Arrival) -> None:
        answer(self.model, self.conversations, *turns)

    def minutes(self, count: int) -> None:
        for _ in range(count):
            for _ in range(12):
                self.now += 5.0
                due = [one for one in self.waiting if one[0] <= self.now]
                self.waiting = [one for one in self.waiting if one[0] > self.now]
                for _ in range(2):
                    self.names += 1
                    due.append((self.now, f"long {self.names}", 1))
                self.arrive(*(turn(name, self.now, number, 5000.0) for _, name, number in due))
                self.arrive(*(turn(f"short {self.names} {n}", self.now) for n in range(4)))
                for _, name, number in due:
                    if number < 4:
                        self.waiting.append((self.now + 15.0 + self.draw.expovariate(1 / 15.0), name, number + 1))
            self.model.refit(self.now)


@pytest.fixture(scope="module")
def learnt() -> Traffic:
    traffic = Traffic()
    traffic.minutes(6)
    return traffic


def returning(model: ReturnModel, *turns: Arrival) -> list[float]:
    """Return the probability to return ever, by the curves of the turns' groups."""
    groups = np.array(groups_of(model, *turns))
    assert ((groups > 0) & (groups < GROUPS)).all()
    stays = np.prod(1.0 - model.group_curves().hazards, axis=1)
    returned: list[float] = (1.0 - stays[groups - 1]).tolist()
    return returned


def long_and_short(model: ReturnModel, now: float) -> list[float]:
    return returning(model, turn("", now, 1, 5000.0), turn("", now))


def test_before_enough_was_seen_nobody_has_a_group() -> None:
    model = ReturnModel()
    for n in range(FEWEST_TURNS - 1):
        assert groups_of(model, turn(f"c{n}", START + n)) == [0]
    model.refit(START + 300)
    assert groups_of(model, turn("last", START + 300)) == [0]
    assert len(model.group_curves().hazards) == 0


def test_conversations_that_return_differ_in_probability_from_others(learnt: Traffic) -> None:
    long, short = long_and_short(learnt.model, learnt.now)
    assert long > 0.5 > short
    assert learnt.model.quality.nats > 0.1


def test_a_pause_that_is_always_the_same_is_learnt() -> None:
    """Agents' tool pauses: everybody comes back after 8 s, until they come back no more."""
    model, now, conversations = ReturnModel(), START, Conversations()
    for step in range(600):
        now += 2.0
        turns = [turn(f"a {step - 4 * n}", now, n + 1, 5000.0) for n in range(4)]
        answer(model, conversations, *turns, turn(f"b {step}", now))
    model.refit(now)
    early, late = returning(model, turn("", now, 1, 5000.0), turn("", now, 4, 5000.0))
    assert early > 0.9 and late < 0.7


def test_groups_do_not_depend_on_the_batch(learnt: Traffic) -> None:
    groups = []
    for size in (15, 1):
        turns = [turn("", learnt.now, n, 100.0 * n) for n in range(1, 16)]
        model = ReturnModel()
        model.restore(learnt.model.state(learnt.now), learnt.now)
        starts = range(0, len(turns), size)
        groups.append([group for start in starts for group in groups_of(model, *turns[start : start + size])])
    assert groups[0] == groups[1]


def test_each_outcome_is_judged_once() -> None:
    traffic = Traffic()
    traffic.minutes(5)
    later = traffic.now + GIVEN_UP_S + 60.0
    traffic.model.refit(later)
    judged = traffic.model.quality
    assert judged.nats != 0.0
    traffic.model.refit(later + 60.0)
    assert traffic.model.quality == judged
    # A turn that was given up and is followed after all was judged already.
    traffic.arrive(*(turn(name, later + 60.0, number) for _, name, number in traffic.waiting))
    assert traffic.model.quality.nats == judged.nats and traffic.model.quality.returns > judged.returns


@pytest.mark.parametrize("capacity", [20_000, 300])
def test_a_learnt_state_is_restored(learnt: Traffic, capacity: int) -> None:
    state = learnt.model.state(learnt.now)
    other = ReturnModel(capacity)
    other.restore(state, learnt.now)
    assert other.quality.returns > 50
    assert other.head_share == pytest.approx(learnt.model.head_share)
    long, short = long_and_short(other, learnt.now)
    assert long > 0.5 > short


@pytest.mark.parametrize("facts", [(math.inf, math.inf), (0.0, 0.0), (1e9, 1e12), (1.0, math.nan)])
def test_odd_facts_give_a_group_with_a_finite_curve(learnt: Traffic, facts: tuple[float, float]) -> None:
    count, tokens = facts
    odd = turn("", learnt.now)
    odd = odd._replace(facts=Facts(count, tokens, reply_tokens=tokens, model_log_odds=tokens, category="x" * 1000))
    (group,) = groups_of(learnt.model, odd)
    assert 0 < group < GROUPS
    assert np.isfinite(learnt.model.group_curves().hazards).all()


@pytest.mark.filterwarnings("default::RuntimeWarning")  # as in production, where NumPy's do not raise
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_state_is_refused_or_leaves_groups_with_finite_curves(learnt: Traffic, data: st.DataObject) -> None:
    state = learnt.model.state(learnt.now)
    name = data.draw(st.sampled_from(sorted(name for name, array in state.items() if array.dtype.kind == "f")))
    value = data.draw(st.sampled_from((math.nan, math.inf, -math.inf, -1.0, 1e300, 1e30, 3e3, 5e-324)))
    damaged = np.array(state[name])
    damaged[...] = np.where(
        np.random.default_rng(0).random(damaged.shape) < data.draw(st.sampled_from((0.01, 1.0))), value, damaged
    )
    model = ReturnModel()
    try:
        model.restore(state | {name: damaged}, learnt.now)
    except (ArithmeticError, ValueError):
        model = ReturnModel()  # as a sidecar that cannot load its state
        model.restore(state, learnt.now)
    later = Traffic()
    later.model, later.now = model, learnt.now
    later.minutes(4)
    groups = np.array(groups_of(model, *(turn("", later.now, n, 5000.0) for n in (1, 2))))
    assert ((groups > 0) & (groups < GROUPS)).all()
    assert np.isfinite(model.group_curves().hazards).all() and 0.0 < model.head_share < 1.0


def test_a_head_whose_weights_are_not_finite_starts_again() -> None:
    traffic = Traffic()
    traffic.minutes(5)
    traffic.model._head._weights[0][...] = math.nan
    traffic.model.refit(traffic.now)
    assert traffic.model.resets == 1
    traffic.minutes(3)
    long, short = long_and_short(traffic.model, traffic.now)
    assert long > short


def test_a_group_whose_curve_is_not_finite_does_not_stay() -> None:
    traffic = Traffic()
    traffic.minutes(5)
    traffic.model._groups._curves[1] = traffic.model._groups._signatures[1] = math.nan
    traffic.model.refit(traffic.now)
    long, short = long_and_short(traffic.model, traffic.now)
    assert long > short and np.isfinite(traffic.model.group_curves().hazards).all()


def test_groups_that_a_wrong_clock_has_joined_become_free(learnt: Traffic) -> None:
    state = learnt.model.state(learnt.now)
    model = ReturnModel()
    model.restore(state | {"groups.joined_at": state["groups.joined_at"] + 1e9}, learnt.now)
    assert (model.state(learnt.now)["groups.joined_at"] <= learnt.now).all()
