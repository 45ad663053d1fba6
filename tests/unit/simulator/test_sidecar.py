"""The simulator's sidecar: the return model, which gets what a sidecar gets."""

import math

import numpy as np
import pytest

from lpc.model.returns.facts import Facts
from lpc.model.returns.hazards import AGES
from lpc.model.returns.memory import WatchedTurn
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies.lru import LruPolicy
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.sidecar import block_hash, curves_of, take_in
from lpc_apps.simulator.workload import Turn, Workload
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.training.online_returns import EPOCH_S, OnlineReturns


@pytest.fixture(scope="module")
def chats() -> Workload:
    return WORKLOADS["chat-exponential"](requests=900)


def turn(number: int = 1, contents: tuple[int, ...] = (7, 8, 9), probability: float | None = None) -> Turn:
    return Turn("c", number, "ask", 48, 20, contents, contents, probability=probability)


def test_a_sidecar_gets_of_a_turn_what_comes_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    online = OnlineReturns()
    seen: list[tuple[WatchedTurn, Facts]] = []
    monkeypatch.setattr(online.model, "answer", lambda turns, facts: seen.extend(zip(turns, facts, strict=True)))
    take_in(online, turn(1), 1.0)
    take_in(online, turn(2, probability=0.75), 5.0)

    arrival, facts = seen[1][0].arrival, seen[1][1]
    assert (arrival.conversation, arrival.asked_at) == (b"c", EPOCH_S + 5)
    assert (facts.turn_count, facts.input_tokens, facts.reply_tokens, facts.category) == (2, 48, 20, "ask")
    assert facts.model_log_odds == pytest.approx(math.log(3))
    assert arrival.opening == block_hash(8)


def test_curves_are_known_after_200_requests(chats: Workload) -> None:
    known = curves_of(chats)

    assert not any(turn in known for turn in chats.arrivals[:200])
    assert all(known[turn].shape == AGES.shape for turn in chats.arrivals[-100:])


def test_curves_learnt_once_are_those_learnt_in_a_run(chats: Workload) -> None:
    online = OnlineReturns()
    afresh: dict[Turn, np.ndarray] = {}

    class Asking(LruPolicy):
        def arrive(self, turn: Turn, now: float) -> None:
            curve = take_in(online, turn, now)
            if curve is not None:
                afresh[turn] = curve

    small = chats.working_set_tokens() // 50
    simulate(chats, small, lambda blocks: Asking(blocks, chats, PolicySettings()))

    known = curves_of(chats)
    assert list(afresh) == list(known)
    assert all((afresh[turn] == known[turn]).all() for turn in known)
    assert curves_of(chats) is known
