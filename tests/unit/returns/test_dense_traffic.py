"""At a rate at which the label memory is full, what is known of a conversation's earlier turns still reaches the features."""

import heapq

import numpy as np
import pytest

from lpc.model.conversation import UserTurns
from lpc.model.returns.facts import WIDTH
from lpc.model.returns.memory import TurnMemory
from lpc.v1 import predictor_pb2 as pb
from predictor_service.constants import Constants
from predictor_service.labels.names import identity_of
from predictor_service.labels.tracker import TurnTracker
from predictor_service.labels.turn import Turn, TurnObserver
from predictor_service.returns.turns import CHARS_PER_TOKEN, facts_of
from predictor_service.settings import ServiceSettings

PER_S = 34.0
GAP_S = 900.0
TURNS = 4
GROWTH = 500
FIELDS = ServiceSettings.model_fields


class Forgotten(TurnObserver):
    """Counts turns that were forgotten to make room."""

    def __init__(self) -> None:
        self.count = 0

    def forgotten(self, turn: Turn) -> None:
        self.count += 1


@pytest.mark.nightly
def test_above_28_turns_a_second_features_keep_gaps_and_growth() -> None:
    tracker = TurnTracker(FIELDS["label_memory_turns"].default, FIELDS["label_horizon_s"].default, [])
    returns = TurnMemory(Constants().returns_turns)
    row = np.zeros(WIDTH, np.float32)
    due: list[tuple[float, int, int]] = []
    seen: dict[str, int] = {"turns": 0, "later": 0, "facts": 0}
    full = 0
    until_s = 6300.0  # from 2700 s on all rounds of turns arrive
    arrivals = np.arange(0.0, until_s, TURNS / PER_S)
    for number, began in enumerate(arrivals):
        heapq.heappush(due, (float(began), number, 1))
    while due:
        at, number, count = heapq.heappop(due)
        if at > until_s:
            break
        if count < TURNS:
            heapq.heappush(due, (at + GAP_S, number, count + 1))
        name = f"conversation {number}"
        prompt = f"turn {count}"
        chars = int(GROWTH * count * CHARS_PER_TOKEN) - len(prompt)
        turns = UserTurns((prompt,), count, history_chars=chars, told_apart=False)
        asked = pb.Conversation(prompt=prompt, conversation_id=name)
        tracker.expire(at)
        turn = tracker.arrive(turns, identity_of(turns, name), at, facts_of(asked, turns))
        facts = turn.arrival.facts
        returns.take(turn, facts, row, None)
        full += len(tracker) == tracker.capacity
        if count > 1 and at > until_s - 300.0:
            seen["later"] += 1
            seen["facts"] += facts.last_gap == pytest.approx(GAP_S) and facts.growth_tokens == GROWTH
    assert full > 1000, "the label memory was not full: the rate is too low for this test"
    assert seen["later"] > 1000
    assert seen["facts"] == seen["later"]


def test_the_label_memory_forgets_the_longest_idle_and_reports_it() -> None:
    heard = Forgotten()
    tracker = TurnTracker(2, 1000.0, [heard])

    def arrive(at: float, *prompts: str) -> Turn:
        turns = UserTurns(prompts, len(prompts))
        return tracker.arrive(turns, identity_of(turns, ""), at)

    firsts = [arrive(float(number), f"prompt {number}") for number in range(6)]
    # Two turns wait for their labels, two more for their next turns.
    assert heard.count == 2
    recognised = []
    for number in (4, 0, 2):
        first, second = firsts[number], arrive(10.0, f"prompt {number}", "and?")
        recognised.append(second.arrival.conversation == first.arrival.conversation)
    assert recognised == [True, True, False]
