"""What a policy has learnt of the workload by now: how likely a conversation goes on after a turn, and when.

It starts knowing nothing, as an engine does, and learns from every request that has arrived. It is fitted again whenever the
requests seen have doubled, so that all fits together cost a few times as much as the last one. Each part is learnt when it is
first asked for: the mean gap costs a look at the requests, probabilities a fit of the think-time model (seconds).
"""

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces import Trace, TracedRequest
from lpc.logs.traces.turns import turns_in
from lpc.simulator.sidecar import nominal_arrivals
from lpc.simulator.think_time import Prediction, ThinkTime, enough, features, fit_think_time, turns_of
from lpc.simulator.workload import Turn, Workload

Floats = NDArray[np.float64]

FIRST_FIT: Final = 200
"""Requests seen before anything is learnt, as in the sidecar."""
GROWTH: Final = 2
"""From one fit to the next, in requests seen."""
PRIOR_TURNS: Final = 1.0
"""Weight of the share over all turns in that of one turn number."""
LAST_TURN: Final = 12
"""Turn numbers from here on count as one."""
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


NOTHING: Final = Outlook(0.5, math.log(100.0), 1.0)
"""Before anything is learnt all turns are alike, which makes every order that of last use."""
MEAN_GAP_S: Final = 100.0
"""Between turns, before anything is learnt."""


class _Stage:
    """What the requests of a trace say. ``enough``: whether they are enough to learn from."""

    def __init__(self, seen: Trace) -> None:
        self._seen = seen
        turns = turns_of(seen)
        self.enough = enough(turns)
        self.mean_gap = float(turns.gap[np.isfinite(turns.gap)].mean()) if self.enough else MEAN_GAP_S

    @cached_property
    def by_turn(self) -> tuple[float, ...]:
        """The mean of the fitted probability to continue at each turn number: a count would miss who returns later."""
        sums: defaultdict[int, list[float]] = defaultdict(list)
        for request, p in zip(self._seen.requests, self.predict(self._seen).p_continue.tolist(), strict=True):
            sums[min(request.turn, LAST_TURN)].append(p)
        overall = sum(map(sum, sums.values())) / len(self._seen.requests)
        return tuple((sum(sums[n]) + PRIOR_TURNS * overall) / (len(sums[n]) + PRIOR_TURNS) for n in range(1, LAST_TURN + 1))

    def predict(self, trace: Trace) -> Prediction:
        """Return what the think-time model says of each request of a trace."""
        category = np.array([request.category for request in trace.requests], np.str_)
        return self._head.predict(features(*known_of(trace).T), category)

    @cached_property
    def _head(self) -> ThinkTime:
        return fit_think_time(self._seen)


class Knowledge:
    """What has been learnt of the turns of a workload at each time; times (seconds) are those of the run.

    Args:
        workload: all of its requests are known with their times, but are learnt from only once they have arrived. In a closed
            loop they are not: there `arrived` adds them.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._requests: list[TracedRequest] = []
        self._own: defaultdict[str, list[TracedRequest]] = defaultdict(list)
        self._place: dict[Turn, int] = {}
        """Of a turn among the requests of its conversation."""
        self._fitted_at: list[float] = []
        self._stages: dict[int, _Stage] = {}
        self._outlooks: dict[tuple[int, Turn], Outlook] = {}
        if workload.loop is None:
            for arrival, turn in nominal_arrivals(workload):
                self._add(turn, arrival)

    def arrived(self, turn: Turn, now: float) -> None:
        """Learn of a request that arrives."""
        if self._workload.loop is not None:
            self._add(turn, now)

    def mean_gap(self, now: float) -> float:
        """Return the mean seconds between the turns of a conversation."""
        stage = self._stage(self._number(now))
        return MEAN_GAP_S if stage is None else stage.mean_gap

    def turn_probability(self, turn: int, now: float) -> float:
        """Return the probability of a next turn from the turn's number alone."""
        stage = self._stage(self._number(now))
        return NOTHING.p if stage is None else stage.by_turn[min(turn, LAST_TURN) - 1]

    def outlook(self, turn: Turn, now: float) -> Outlook:
        """Return what is known at the end of a turn that has arrived; its probability by the predictor, if that was asked."""
        number = self._number(now)
        known = self._outlooks.get((number, turn))
        if known is None:
            stage = self._stage(number)
            known = NOTHING if stage is None else self._predicted(stage, turn)
            if turn.probability is not None:
                known = replace(known, p=turn.probability)
            self._outlooks[number, turn] = known
        return known

    def _add(self, turn: Turn, arrival: float) -> None:
        trace = self._workload.trace
        if trace is None or turn.index < 0:
            request = TracedRequest(
                *(arrival, turn.input_tokens, turn.output_tokens, (), turn.conversation, turn.turn, turn.category)
            )
        else:
            request = replace(trace.requests[turn.index], arrival=arrival, conversation=turn.conversation)
        own = self._own[turn.conversation]
        self._place[turn] = len(own)
        own.append(request)
        self._requests.append(request)
        if len(self._requests) == FIRST_FIT * GROWTH ** len(self._fitted_at):
            self._fitted_at.append(arrival)

    def _number(self, now: float) -> int:
        """Return how many fits there have been."""
        return bisect_right(self._fitted_at, now)

    def _stage(self, number: int) -> _Stage | None:
        """Return the latest fit so far that had enough to learn from."""
        for each in range(number, 0, -1):
            stage = self._stages.get(each)
            if stage is None:
                stage = self._stages[each] = _Stage(self._trace(self._requests[: FIRST_FIT * GROWTH ** (each - 1)]))
            if stage.enough:
                return stage
        return None

    def _predicted(self, stage: _Stage, turn: Turn) -> Outlook:
        said = stage.predict(self._trace(self._own[turn.conversation][: self._place[turn] + 1]))
        return Outlook(float(said.p_continue[-1]), float(said.log_mean[-1]), float(said.log_sigma[-1]))

    def _trace(self, requests: list[TracedRequest]) -> Trace:
        return Trace(self._workload.name, self._workload.block_tokens, requests)


def knowledge_of(workload: Workload) -> Knowledge:
    """Return what can be learnt of a workload: one object for each workload, in a closed loop one for each call."""
    if workload.loop is not None:
        return Knowledge(workload)
    known = _known.get(workload)
    if known is None:
        known = _known[workload] = Knowledge(workload)
    return known


_known: "WeakKeyDictionary[Workload, Knowledge]" = WeakKeyDictionary()


def known_of(trace: Trace) -> Floats:
    """Return what is known when each request ends, [n, 6]: turn, input, new and output tokens, last gap, mean of ln gap."""
    turns = turns_in(trace)
    said = np.array([(r.turn, r.input_tokens, r.output_tokens) for r in trace.requests], np.float64)
    return np.column_stack([said[:, :2], turns.new_tokens, said[:, 2], turns.last_gap, turns.mean_log_gap])
