"""What a policy may know before hits are counted: how likely a conversation goes on after a turn, and when.

From a trace it is learnt on the requests before `count_from`. A synthetic workload says what a log of the day before would have
shown: the continuation of other conversations, and gaps drawn from the same distribution.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.model.think_time import ThinkTimeError
from lpc.simulator.returns import classes, curves
from lpc.simulator.workload import Turn, Workload
from lpc.training.think_time import fit_think_time, turns_of

Floats = NDArray[np.float64]

PRIOR_TURNS: Final = 1.0
"""Weight of the share over all turns in that of one turn number."""
LAST_TURN: Final = 12
"""Turn numbers from here on count as one."""
FLOOR_S: Final = 0.05
"""Gaps below are taken as this: their logarithm is used."""
AGES: Final[Floats] = np.geomspace(0.1, 10_800.0, 150)
"""The ages at which curves and indices are tabulated, seconds: 0.1 s to 3 hours."""


@dataclass(frozen=True)
class Outlook:
    """What is thought of a conversation when its turn ends.

    Attributes:
        p: that it continues.
        log_mean, log_sigma: of ln(seconds) from this turn's arrival to the next, given that it continues.
    """

    p: float
    log_mean: float
    log_sigma: float


@dataclass(frozen=True)
class Knowledge:
    """Outlooks for the turns of a workload.

    Attributes:
        by_turn: probability of a next turn after turn 1, 2, ... LAST_TURN and later; learnt before hits are counted.
        outlooks: of single turns, by their index; empty where there is nothing but the turn's number.
        typical: log_mean and log_sigma for the others.
        class_of: the class of a turn's return curve, by the turn's index; empty where there are no curves.
        curves: [classes, ages] of each class.
        share: [ages] where gaps follow one law for all: of those that continue, who has returned at each age.
        mean_gap: seconds between the turns of a conversation.
    """

    by_turn: tuple[float, ...]
    outlooks: dict[int, Outlook]
    typical: tuple[float, float]
    class_of: dict[int, int]
    curves: Floats
    share: Floats | None = None
    mean_gap: float = 100.0

    def turn_probability(self, turn: int) -> float:
        """Return the probability of a next turn from the turn's number alone."""
        return self.by_turn[min(turn, len(self.by_turn)) - 1]

    def outlook(self, use: Any) -> Outlook:
        """Return what is known at the end of a turn; the predictor's probability, where one was asked, replaces the learnt."""
        known = self.outlooks.get(use.index)
        if known is not None:
            return known
        p = self.turn_probability(use.turn) if use.probability is None else use.probability
        return Outlook(p, *self.typical)


def knowledge_of(workload: Workload) -> Knowledge:
    """Return what can be learnt of a workload before its hits are counted. The same object for the same workload."""
    known = _known.get(workload)
    if known is None:
        known = _known[workload] = _of_trace(workload) if workload.trace is not None else _of_history(workload)
    return known


_known: "WeakKeyDictionary[Workload, Knowledge]" = WeakKeyDictionary()


def _of_trace(workload: Workload) -> Knowledge:
    trace, until = workload.trace, workload.count_from
    assert trace is not None
    try:
        model = fit_think_time(trace, until)
        seen = turns_of(trace, until)
    except ThinkTimeError:
        # A log too short to learn times from: everything returns like everything else.
        return Knowledge((0.5,), {}, (math.log(100.0), 1.0), {}, np.zeros((0, len(AGES))))
    known = known_of(trace)
    names = ("turn", "input_tokens", "new_tokens", "output_tokens", "last_gap", "mean_log_gap")
    prediction = model.predict(
        **{name: known[:, i] for i, name in enumerate(names)}, category=np.array([r.category for r in trace.requests], np.str_)
    )
    deviation = (np.log(AGES)[None, :] - prediction.log_mean[:, None]) / prediction.log_sigma[:, None]
    lognormal = prediction.p_continue[:, None] * ndtr(deviation)
    learnt = np.array([request.arrival < until for request in trace.requests])
    labels, centres = classes(curves(trace, until, known, lognormal, AGES), learnt)
    turns = workload.arrivals
    outlooks = {
        turn.index: Outlook(float(p), float(mean), float(sigma))
        for turn, p, mean, sigma in zip(turns, prediction.p_continue, prediction.log_mean, prediction.log_sigma, strict=True)
    }
    fitted = model.predict_features(seen.features, seen.category)
    return Knowledge(
        _by_turn(turns, prediction.p_continue, until),
        outlooks,
        (float(fitted.log_mean.mean()), float(fitted.log_sigma.mean())),
        {turn.index: int(label) for turn, label in zip(turns, labels, strict=True)},
        centres,
        mean_gap=float(seen.gap[np.isfinite(seen.gap)].mean()),
    )


def _of_history(workload: Workload) -> Knowledge:
    gaps = np.maximum(np.sort(workload.history_gaps), FLOOR_S)
    logs = np.log(gaps)
    share = np.interp(AGES, gaps, (np.arange(len(gaps)) + 0.5) / len(gaps), left=0.0, right=1.0)
    return Knowledge(
        tuple(workload.history_by_turn),
        {},
        (float(logs.mean()), max(float(logs.std()), 0.1)),
        {},
        np.zeros((0, len(AGES))),
        share=share,
        mean_gap=float(gaps.mean()),
    )


def _by_turn(turns: list[Turn], p_continue: Floats, until: float) -> tuple[float, ...]:
    """Return the mean of the fitted probability to continue at each turn number: a count would miss who returns later."""
    sums: defaultdict[int, list[float]] = defaultdict(list)
    for turn, p in zip(turns, p_continue.tolist(), strict=True):
        if turn.arrival < until:
            sums[min(turn.turn, LAST_TURN)].append(p)
    overall = sum(map(sum, sums.values())) / max(sum(map(len, sums.values())), 1)
    return tuple((sum(sums[n]) + PRIOR_TURNS * overall) / (len(sums[n]) + PRIOR_TURNS) for n in range(1, LAST_TURN + 1))


def known_of(trace: Trace) -> Floats:
    """Return what is known when each request ends, [n, 6]: turn, input, new and output tokens, last gap, mean of ln gap."""
    turns = turns_in(trace)
    said = np.array([(r.turn, r.input_tokens, r.output_tokens) for r in trace.requests], np.float64)
    return np.column_stack([said[:, :2], turns.new_tokens, said[:, 2], turns.last_gap, turns.mean_log_gap])
