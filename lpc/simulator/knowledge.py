"""What a policy may know before hits are counted: how likely a conversation goes on after a turn, and when.

From a trace it is learnt on the requests before `count_from`, each part when it is first asked for: the mean gap costs a look
at the log, probabilities a fit of the think-time head (seconds). A synthetic workload says what a log of the day before would
have shown: the continuation of other conversations, and gaps drawn from the same distribution.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.model.think_time import Prediction
from lpc.simulator.workload import Turn, Workload
from lpc.training.think_time import FEWEST_RETURNS, FEWEST_TURNS, Turns, fit_think_time, turns_of

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


class Knowledge(ABC):
    """Outlooks for the turns of a workload, learnt before hits are counted.

    Attributes:
        mean_gap: seconds between the turns of a conversation.
        by_turn: probability of a next turn after turn 1, 2, ...; the last stands for all from there on.
        share: [ages] where gaps follow one law for all: of those that continue, who has returned at each age.
    """

    mean_gap: float
    share: Floats | None = None

    @property
    @abstractmethod
    def by_turn(self) -> tuple[float, ...]:
        """See above."""

    @abstractmethod
    def outlook(self, turn: Turn) -> Outlook:
        """Return what is known at the end of a turn."""

    def turn_probability(self, turn: int) -> float:
        """Return the probability of a next turn from the turn's number alone."""
        return self.by_turn[min(turn, len(self.by_turn)) - 1]


class Assumed(Knowledge):
    """One law for all turns; a predictor's probability, where one was asked, replaces that by turn.

    Args:
        by_turn, mean_gap, share: see `Knowledge`.
        log_mean, log_sigma: of ln(seconds) to the next turn.
    """

    def __init__(
        self, by_turn: Sequence[float], mean_gap: float, log_mean: float, log_sigma: float, share: Floats | None = None
    ) -> None:
        self.mean_gap = mean_gap
        self.share = share
        self._by_turn = tuple(by_turn)
        self._log_mean = log_mean
        self._log_sigma = log_sigma

    @property
    def by_turn(self) -> tuple[float, ...]:
        """As given."""
        return self._by_turn

    def outlook(self, turn: Turn) -> Outlook:
        """Return the law, with the probability asked for or that by turn."""
        p = self.turn_probability(turn.turn) if turn.probability is None else turn.probability
        return Outlook(p, self._log_mean, self._log_sigma)


class Learnt(Knowledge):
    """What the think-time head says of each turn of a trace.

    Args:
        trace: the log; its requests are the workload's turns.
        until: seconds; only what came before is learnt from.
        seen: the turns that came before.
    """

    def __init__(self, trace: Trace, until: float, seen: Turns) -> None:
        self._trace = trace
        self._until = until
        self.mean_gap = float(seen.gap[np.isfinite(seen.gap)].mean())

    @cached_property
    def by_turn(self) -> tuple[float, ...]:
        """The mean of the fitted probability to continue at each turn number: a count would miss who returns later."""
        sums: defaultdict[int, list[float]] = defaultdict(list)
        for request, p in zip(self._trace.requests, self._prediction.p_continue.tolist(), strict=True):
            if request.arrival < self._until:
                sums[min(request.turn, LAST_TURN)].append(p)
        overall = sum(map(sum, sums.values())) / max(sum(map(len, sums.values())), 1)
        return tuple((sum(sums[n]) + PRIOR_TURNS * overall) / (len(sums[n]) + PRIOR_TURNS) for n in range(1, LAST_TURN + 1))

    def outlook(self, turn: Turn) -> Outlook:
        """Return what the think-time head says of a turn of the trace."""
        return self._outlooks[turn.index]

    @cached_property
    def _known(self) -> Floats:
        return known_of(self._trace)

    @cached_property
    def _prediction(self) -> Prediction:
        names = ("turn", "input_tokens", "new_tokens", "output_tokens", "last_gap", "mean_log_gap")
        category = np.array([request.category for request in self._trace.requests], np.str_)
        columns = {name: self._known[:, i] for i, name in enumerate(names)}
        return fit_think_time(self._trace, self._until).predict(**columns, category=category)

    @cached_property
    def _outlooks(self) -> list[Outlook]:
        said = self._prediction
        columns = (said.p_continue.tolist(), said.log_mean.tolist(), said.log_sigma.tolist())
        return [Outlook(*values) for values in zip(*columns, strict=True)]


def knowledge_of(workload: Workload) -> Knowledge:
    """Return what can be learnt of a workload before its hits are counted. The same object for the same workload."""
    known = _known.get(workload)
    if known is None:
        known = _known[workload] = _of_history(workload) if workload.trace is None else _of_trace(workload.trace, workload)
    return known


_known: "WeakKeyDictionary[Workload, Knowledge]" = WeakKeyDictionary()


def _of_trace(trace: Trace, workload: Workload) -> Knowledge:
    seen = turns_of(trace, workload.count_from)
    if len(seen) < FEWEST_TURNS or np.isfinite(seen.gap).sum() < FEWEST_RETURNS:
        # Too short to learn times from: everything returns like everything else.
        return Assumed((0.5,), 100.0, math.log(100.0), 1.0)
    return Learnt(trace, workload.count_from, seen)


def _of_history(workload: Workload) -> Knowledge:
    gaps = np.maximum(np.sort(workload.history_gaps), FLOOR_S)
    logs = np.log(gaps)
    share = np.interp(AGES, gaps, (np.arange(len(gaps)) + 0.5) / len(gaps), left=0.0, right=1.0)
    log_sigma = max(float(logs.std()), 0.1)
    return Assumed(workload.history_by_turn, float(gaps.mean()), float(logs.mean()), log_sigma, share)


def known_of(trace: Trace) -> Floats:
    """Return what is known when each request ends, [n, 6]: turn, input, new and output tokens, last gap, mean of ln gap."""
    turns = turns_in(trace)
    said = np.array([(r.turn, r.input_tokens, r.output_tokens) for r in trace.requests], np.float64)
    return np.column_stack([said[:, :2], turns.new_tokens, said[:, 2], turns.last_gap, turns.mean_log_gap])
