"""The memory of turns: what follows what, what is forgotten, and what clocks, retries and dense traffic do to it."""

import math

import numpy as np
import pytest

from lpc.model.returns.facts import Facts, inputs
from lpc.model.returns.memory import SPAN_S, Arrival, Conversations, TurnMemory
from lpc.model.returns.users import Users

START = 1_700_000_000.0


def turn(name: str, at: float, number: int = 1, tokens: float = 100.0, opening: bytes = b"", category: str = "") -> Arrival:
    facts = Facts(number, tokens, model_log_odds=0.0, category=category)
    return Arrival(name.encode(), START + at, facts, opening)


class Memory(TurnMemory):
    """With the conversations whose turns it is given."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.conversations = Conversations()

    def arrive(self, *turns: Arrival) -> list[tuple[int | None, float] | None]:
        """Return the number and gap of the turns that these follow."""
        found: list[tuple[int | None, float] | None] = []
        for one in turns:
            placed, before = self.conversations.arrive(one, Users())
            gap = None if before is None else self.record_return(before)
            found.append(None if before is None or gap is None else (before.number, gap))
            facts = self.facts(placed, placed.arrival.facts)
            self.take(placed, facts, inputs([facts])[0], None)
        return found

    def facts_of(self, arrival: Arrival) -> Facts:
        turn, _ = self.conversations.arrive(arrival, Users())
        return self.facts(turn, turn.arrival.facts)


def test_a_turn_follows_the_latest_of_its_conversation() -> None:
    memory = Memory(10)
    assert memory.arrive(turn("a", 0), turn("b", 1), turn("a", 30), turn("a", 35)) == [None, None, (0, 30.0), (2, 5.0)]
    assert (memory.number, memory.returns) == (4, 2)
    outcomes = memory.outcomes(START + 100)
    assert outcomes.age.tolist() == [30.0, 99.0, 5.0, 65.0]
    assert outcomes.came.tolist() == [True, False, True, False]
    assert outcomes.waiting.tolist() == [False, True, False, True]


def test_facts_of_a_turn_come_from_the_turns_before() -> None:
    memory = Memory(10)
    memory.arrive(turn("a", 0, 1, 100.0, opening=b"o"), turn("a", 20, 2, 160.0))
    facts = memory.facts_of(turn("a", 65, 3, 170.0, opening=b"o"))
    assert facts.growth_tokens == 10.0 and facts.growth_before == 60.0
    assert facts.last_gap == 45.0 and facts.mean_gap == pytest.approx(30.0)
    assert facts.openings == 1
    first = memory.facts_of(turn("new", 70))
    assert all(math.isnan(value) for value in (first.growth_tokens, first.last_gap, first.mean_gap, first.openings))


def test_the_same_turn_again_changes_nothing_and_has_the_same_facts() -> None:
    memory = Memory(10)
    memory.arrive(turn("a", 0), turn("a", 30, 2, 150.0, opening=b"o"))
    before = memory.state(START + 40)
    again = turn("a", 30, 2, 150.0, opening=b"o")
    assert memory.arrive(again) == [None]
    assert (memory.facts_of(again).growth_tokens, memory.facts_of(again).openings) == (50.0, 0)
    after = memory.state(START + 40)
    assert all(np.array_equal(before[name], after[name], equal_nan=before[name].dtype.kind == "f") for name in before)
    assert memory.facts_of(turn("b", 50, opening=b"o")).openings == 1
    assert memory.arrive(turn("a", 70)) == [(1, 40.0)]


def test_a_conversation_that_is_left_is_watched_no_longer_and_nobody_follows_its_turn() -> None:
    memory = Memory(10)
    memory.arrive(turn("a", 0), turn("b", 0))
    memory.leave(memory.conversations._latest.pop(b"a"))
    assert memory.arrive(turn("a", 60), turn("b", 60)) == [None, (1, 60.0)]
    assert memory.outcomes(START + 100.0).age[0] == 0.0


def test_the_oldest_turns_are_forgotten_and_nobody_follows_them() -> None:
    memory = Memory(3)
    memory.arrive(*(turn(name, at) for at, name in enumerate("abcd")))
    assert len(memory) == 3 and memory.number == 4
    assert memory.arrive(turn("a", 10), turn("d", 11)) == [None, (3, 8.0)]


def test_dense_traffic_is_sampled_by_conversation_until_it_thins_out() -> None:
    memory = Memory(50)
    for at in range(2000):
        memory.arrive(turn(f"c{at // 4}", float(at), at % 4 + 1))
    assert memory.number < 1000
    # Of what is in the sample every return is seen, however many conversations came between.
    came = memory.outcomes(START + 2000).came
    assert came.mean() > 0.6
    for n in range(1000):
        memory.arrive(turn(f"late {n}", 2000 + n * SPAN_S / 5))
    sampled = memory.number
    for n in range(1000, 1100):
        memory.arrive(turn(f"late {n}", 2000 + n * SPAN_S / 5))
    assert memory.number - sampled == 100


def test_a_return_is_seen_in_dense_traffic_although_many_conversations_came_between() -> None:
    memory = Memory(64)
    names = [f"c{n}" for n in range(64)]
    memory.arrive(*(turn(name, at) for at, name in enumerate(names)))
    memory.arrive(*(turn(f"x{n}", 64.0 + n) for n in range(64)))  # once around: now half of the conversations are enough
    remembered = memory.number
    followed = [found for found in memory.arrive(*(turn(f"x{n}", 200.0 + n, 2) for n in range(64))) if found is not None]
    assert memory.number - remembered < 64
    assert len(followed) >= memory.number - remembered


def test_a_clock_set_back_starts_conversations_anew_and_time_goes_on() -> None:
    memory = Memory(10)
    memory.arrive(turn("a", 0), turn("b", 10))
    assert memory.arrive(turn("a", -86_400), turn("a", -86_390)) == [None, (2, 10.0)]
    assert memory.active_s == 20.0
    outcomes = memory.outcomes(START - 86_380)
    assert outcomes.age.tolist() == [0.0, 0.0, 10.0, 10.0]
    assert outcomes.waiting.tolist() == [False, True, False, True]


@pytest.mark.parametrize("capacity", [200, 40, 25])
def test_a_kept_memory_comes_back_into_a_larger_and_into_a_smaller_one(capacity: int) -> None:
    memory = Memory(100)
    for at in range(60):
        memory.arrive(turn(f"c{at % 30}", float(at), 1 + at // 30, 100.0 * at, category="agent" if at % 2 else ""))
    state = memory.state(START + 100)
    other = Memory(capacity)
    other.restore(state)
    kept = min(capacity, 60)
    assert (len(other), other.number) == (kept, kept)
    old, new = memory.outcomes(START + 100), other.outcomes(START + 9999)
    for name in ("inputs", "interval", "came", "age", "weight"):
        np.testing.assert_array_equal(getattr(new, name), getattr(old, name)[-kept:], err_msg=name)
    assert new.strata == old.strata[-kept:]
    assert not new.waiting.any()
    # It goes on where it was: the oldest turn goes first, and what is new is followed.
    assert other.arrive(turn("new", 200), turn("new", 230)) == [None, (kept, 30.0)]
    assert len(other) == min(kept + 2, capacity)
