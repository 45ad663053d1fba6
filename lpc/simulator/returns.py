"""Return curves: the probability that a conversation's next turn has come a seconds after this one, for each turn of a trace.

A mixture of two models of the turns before `count_from`:
- a discrete-time hazard model (Singer and Willett 1993): gradient-boosted trees give the probability that the turn comes in an
  interval, given that it has not come before; turns whose intervals reach past `count_from` count as far as they were watched;
- the think-time head (`lpc.training.think_time`): a lognormal with a probability to continue.

The curves are then grouped into classes by k-means, so that a policy compares class ends, not conversations.
"""

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in

Floats = NDArray[np.float64]

EDGES: Final = np.array(
    [0, 9, 18, 27, 36, 45, 60, 75, 90, 120, 150, 180, 240, 300, 400, 500, 650, 800, 1000, 1300, 1800, 2400, 3600], np.float64
)
"""Intervals of the hazard model, seconds."""
MEMBERS: Final = 6
"""Models averaged; each sees half of the features at a time."""
SHARE: Final = 0.7
"""Of the hazard model in the mixture."""
CLASSES: Final = 192
NEW: Final = 2
OUTPUT: Final = 3
FEWEST_TURNS: Final = 500
FEWEST_RETURNS: Final = 40
"""In an interval, for its hazard to be learnt."""


def curves(trace: Trace, until: float, known: Floats, lognormal: Floats, age: Floats) -> Floats:
    """Return the curves of all requests at the given ages, [requests, ages].

    Args:
        trace: the log; only what came before ``until`` (seconds) is learnt from.
        known: [requests, f] what is known when each request ends; columns OUTPUT and NEW are its reply's and new tokens.
        lognormal: [requests, ages] the think-time head's curves, which are returned alone where there is too little to learn.
        age: [ages] seconds.
    """
    turns = turns_in(trace)
    linkable = np.array([request.linkable for request in trace.requests])
    learnt = np.flatnonzero((turns.arrival < until) & linkable & turns.stands)
    arrival = turns.arrival[learnt]
    turn, interval, came = _person_periods(turns.next_arrival[learnt] - arrival, until - arrival)
    if len(learnt) < FEWEST_TURNS or came.sum() < FEWEST_TURNS / 10:
        return lognormal
    before = np.where((turns.before >= 0)[:, None], known[turns.before][:, [OUTPUT, NEW]], np.nan)
    features = np.column_stack([known, before, _alike(trace)])
    inputs = np.column_stack([features[learnt][turn], interval])
    with threadpool_limits(1):  # the boosting's threads wait for each other when the cores are busy
        hazard = _hazard(features, inputs, came)
    # Late intervals have hardly any return to learn from: there the lognormal's hazard holds.
    seen = np.bincount(interval[came], minlength=len(EDGES) - 1) >= FEWEST_RETURNS
    reached = np.column_stack([np.zeros(len(hazard)), *(_at(age, lognormal, edge) for edge in EDGES[1:])])
    smooth = np.diff(reached, axis=1) / np.maximum(1 - reached[:, :-1], 1e-9)
    hazard = np.where(seen, hazard, smooth)
    returned = np.column_stack([np.zeros(len(hazard)), 1 - np.cumprod(1 - hazard, axis=1)])
    boosted = np.array([np.interp(age, EDGES, row) for row in returned])
    boosted[:, age > EDGES[-1]] += np.maximum(lognormal[:, age > EDGES[-1]] - reached[:, -1:], 0)
    mixed: Floats = SHARE * boosted + (1 - SHARE) * lognormal
    return mixed


def _hazard(features: Floats, inputs: Floats, came: NDArray[np.bool_]) -> Floats:
    """Return the probability to return in each interval, [requests, intervals], learnt from person-periods."""
    hazard = np.zeros((len(features), len(EDGES) - 1))
    for member in range(MEMBERS):
        model = HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.06,
            max_leaf_nodes=10,
            min_samples_leaf=60,
            l2_regularization=3,
            max_features=0.5,
            early_stopping=False,
            random_state=member,
        ).fit(inputs, came)
        for i in range(len(EDGES) - 1):
            hazard[:, i] += model.predict_proba(np.column_stack([features, np.full(len(features), i)]))[:, 1] / MEMBERS
    return hazard


def classes(curve: Floats, learnt: NDArray[np.bool_], seed: int = 0) -> tuple[NDArray[np.int64], Floats]:
    """Return the class of each curve, [n], and each class's mean curve, [classes, ages]; grouped on the curves learnt from."""
    sample = curve[learnt] if learnt.sum() >= CLASSES else curve
    count = min(CLASSES, len(np.unique(sample, axis=0)))
    with threadpool_limits(1):
        means = KMeans(count, n_init=1, random_state=seed, max_iter=50).fit(sample[:, ::8])
        labels = means.predict(curve[:, ::8]).astype(np.int64)
    centres = np.array([sample[means.labels_ == k].mean(axis=0) for k in range(count)])
    return labels, centres


def _at(age: Floats, curve: Floats, when: float) -> Floats:
    """Return each curve's value at one age, [n]."""
    high = int(np.clip(np.searchsorted(age, when), 1, len(age) - 1))
    part = (when - age[high - 1]) / (age[high] - age[high - 1])
    value: Floats = curve[:, high - 1] * (1 - part) + curve[:, high] * part
    return value


def _alike(trace: Trace) -> Floats:
    """Return how many prompts before began alike, [requests]."""
    counts = []
    alike: Counter[int] = Counter()
    for request in trace.requests:
        opening = request.blocks[1] if len(request.blocks) > 1 else -1
        counts.append(alike[opening])
        alike[opening] += 1
    return np.array(counts, np.float64)


def _person_periods(gap: Floats, window: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return one row per turn and interval it was watched through: turn, interval, whether the next turn came in it."""
    rows: list[tuple[int, int]] = []
    came: list[bool] = []
    for i, (g, w) in enumerate(zip(gap.tolist(), window.tolist(), strict=True)):
        for j in range(len(EDGES) - 1):
            here = g <= min(EDGES[j + 1], w)
            if not here and EDGES[j + 1] > w:
                break
            rows.append((i, j))
            came.append(here)
            if here:
                break
    table = np.array(rows, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1], np.array(came, np.bool_)
