"""What the simulator's sidecar answers: the return model, told what a sidecar is told."""

import math
from itertools import pairwise

import numpy as np
import pytest

from lpc.model.returns.credit import LIFETIMES
from lpc.simulator.engine import simulate
from lpc.simulator.policies.lru import Lru
from lpc.simulator.policy import PolicySettings
from lpc.simulator.sidecar import EPOCH_S, OnlineReturns, Sidecar, arrived, block_hash, credits_of, nominal_arrivals
from lpc.simulator.workload import Turn, Workload
from lpc.simulator.workloads import WORKLOADS


@pytest.fixture(scope="module")
def chats() -> Workload:
    return WORKLOADS["chat-exponential"](requests=900)


def turn(number: int = 1, contents: tuple[int, ...] = (7, 8, 9), probability: float | None = None) -> Turn:
    return Turn("c", number, "ask", 48, 20, contents, contents, probability=probability)


def test_a_sidecar_is_told_of_a_turn_what_came_over_the_wire() -> None:
    seen = arrived(turn(2, probability=0.75), EPOCH_S + 5, 33.0)

    assert seen[:5] == (b"c", EPOCH_S + 5, 2, 48, 33.0)
    assert seen.log_odds == pytest.approx(math.log(3))
    assert seen.category == "ask"
    assert seen.opening == block_hash(8)


def test_without_a_probability_or_a_full_block_these_are_unknown() -> None:
    seen = arrived(turn(contents=()), 0.0, math.nan)

    assert math.isnan(seen.log_odds)
    assert math.isnan(seen.reply_tokens)
    assert seen.opening == b""
    assert arrived(turn(contents=(7,)), 0.0, math.nan).opening == block_hash(7)


def test_hashes_of_blocks_are_digests() -> None:
    hashes = [block_hash(content) for content in range(4096)]
    last = np.bincount([name[-1] for name in hashes], minlength=256)

    assert {len(name) for name in hashes} == {32}
    assert len(set(hashes)) == 4096
    assert last.min() >= 3 and last.max() <= 34  # 16 each, on average


def test_before_200_requests_every_credit_is_0_and_later_not(chats: Workload) -> None:
    given = np.array([credits_of(chats)[turn] for turn in chats.arrivals])

    assert given.shape == (900, len(LIFETIMES))
    assert (given[:200] == 0).all()
    assert np.abs(given[-100:]).max() > 10


def test_answers_learnt_once_are_those_learnt_afresh_in_a_run(chats: Workload) -> None:
    online = OnlineReturns()
    afresh: dict[Turn, np.ndarray] = {}

    class Asking(Lru):
        def arrive(self, turn: Turn, now: float) -> None:
            afresh[turn] = online.credits(turn, now)

    small = chats.working_set_tokens() // 50
    simulate(chats, small, lambda blocks: Asking(blocks, chats, PolicySettings()))

    known = credits_of(chats)
    assert list(afresh) == list(known)
    assert all((afresh[turn] == known[turn]).all() for turn in known)
    assert credits_of(chats) is known


def test_an_inverted_sidecar_answers_minus_each_credit(chats: Workload) -> None:
    last = chats.arrivals[-1]
    tables = []
    for invert in (False, True):
        sidecar = Sidecar(chats, invert=invert)
        sidecar.ask(last)
        answer = sidecar.take(last)
        assert answer is not None and answer.credit is not None
        assert sidecar.take(last) is None
        tables.append(answer.credit.seconds)

    assert tables[1] == tuple(-credit for credit in tables[0])
    assert any(tables[0])


def test_of_an_hour_of_silence_the_first_and_the_last_refit_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    online = OnlineReturns()
    refitted: list[float] = []
    monkeypatch.setattr(online.model, "refit", refitted.append)
    for at in (0.0, 30.0, 3700.0, 3701.0, 3725.0, 3780.0):
        online.credits(turn(), at)

    assert refitted == [EPOCH_S + 60, EPOCH_S + 3660, EPOCH_S + 3720, EPOCH_S + 3780]


def test_a_closed_workload_is_learnt_at_nominal_times() -> None:
    first, second = turn(), turn(2)
    first.arrival, first.next, second.gap = 10.0, second, 100.0
    other = turn()
    other.arrival = 20.0
    closed = Workload("made", 16, [first, other], True, 0.0, 1000.0)

    assert nominal_arrivals(closed) == [(10.0, first), (20.0, other), (pytest.approx(110 + 48 / 20_000 + 20 * 0.01), second)]
    opened = WORKLOADS["documents"](requests=600)
    assert all(a[0] <= b[0] for a, b in pairwise(nominal_arrivals(opened)))
