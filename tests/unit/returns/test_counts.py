"""Hazards by counting, against a count turn by turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc.model.returns.counts import WEIGHT, Counts
from lpc.model.returns.facts import Facts, strata
from lpc.model.returns.hazards import EDGES, INTERVALS, interval_of

turns = st.lists(
    st.tuples(st.floats(0.0, 20_000.0), st.booleans(), st.floats(0.1, 1.0), st.integers(1, 3)), min_size=1, max_size=40
)


@settings(deadline=None)
@given(turns)
def test_returns_and_turns_at_risk_are_those_of_a_count_by_hand(rows: list[tuple[float, bool, float, int]]) -> None:
    age = np.array([row[0] for row in rows])
    came = np.array([row[1] for row in rows])
    weight = np.array([row[2] for row in rows])
    chains = [strata(Facts(row[3])) for row in rows]
    counts = Counts(chains, interval_of(age), came, weight)
    for interval in range(INTERVALS):
        last = interval == INTERVALS - 1
        here = [i for i, a in enumerate(age) if EDGES[interval] <= a and (last or a < EDGES[interval + 1])]
        later = [i for i, a in enumerate(age) if not last and a >= EDGES[interval + 1]]
        returned = sum(weight[i] for i in here if came[i])
        assert counts.returns[interval] == pytest.approx(returned)
        at_risk = sum(weight[later]) + returned + 0.5 * sum(weight[i] for i in here if not came[i])
        above = (returned + 0.01) / (at_risk + 0.5)
        for stratum in {chain[1] for chain in chains}:
            mine = [i for i, chain in enumerate(chains) if chain[1] == stratum]
            r = sum(weight[i] for i in here if came[i] and i in mine)
            n = sum(weight[i] for i in later if i in mine) + r + 0.5 * sum(weight[i] for i in here if not came[i] and i in mine)
            found = counts.hazard([(), stratum])[interval]
            if counts.returns[interval:].max() >= 10:  # else the average's tail is a guess
                assert found == pytest.approx((r + WEIGHT * above) / (n + WEIGHT))
            assert 0 <= found <= 1


def test_a_stratum_leans_on_the_coarser_one_as_far_as_it_has_seen_too_little() -> None:
    """Turns 2 always return within a minute, turns 1 never: the more of them, the more they say."""
    found = []
    for number in (10, 1000):
        chains = [strata(Facts(1 + i % 2)) for i in range(2 * number)]
        came = np.arange(2 * number) % 2 == 1
        age = np.where(came, 50.0, 14_000.0)
        counts = Counts(chains, interval_of(age), came, np.ones(2 * number))
        place = int(interval_of(np.array([50.0]))[0])
        found.append([counts.hazard(strata(Facts(turn)))[place] for turn in (1, 2)])
        assert counts.hazard([(), ("never seen",)])[place] == counts.average[place]
    (low, high), (lower, higher) = found
    assert lower < low < high < higher


def test_nothing_seen_is_not_believable() -> None:
    counts = Counts([], np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0))
    assert not counts.believable
    assert np.isfinite(counts.average).all()
