"""The return model of a sidecar: two online forecasters, mixed by the quality of their predictions.

Counts by strata are useful after minutes and adapt to changes; the head learns interactions of facts and takes longer. The
mixture weights follow the discounted log-likelihood of outcomes that both had predicted. Before FEWEST_TURNS turns, and while
there are hardly any returns, all turns have group 0 and no curve.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.probability import expit
from lpc.model.returns.counts import Counts
from lpc.model.returns.facts import Facts, inputs, strata
from lpc.model.returns.groups import CurveGroups, GroupCurves
from lpc.model.returns.hazards import INTERVALS, Floats, log_likelihood, returned, with_tail
from lpc.model.returns.head import HazardHead
from lpc.model.returns.memory import CAPACITY, Outcomes, TurnMemory, WatchedTurn

FEWEST_TURNS: Final = 200
DECAY: Final = 0.995
"""Discount of an outcome's log-likelihood per later outcome, in the mixture weights."""
EVENLY: Final = 6.0
"""Limit of the log-odds between the forecasters, so that no weight reaches 0."""
GIVEN_UP_S: Final = 600.0
"""Age at which a turn without a successor is judged. Log-likelihood of the last 20 minutes of Mooncake's trace: -2.486 with
1,800 s, -2.480 with 600 s, -2.479 with 300 s, because the weights adapt sooner."""
NEWS: Final = 100
"""The head is trained if at least one in this many turns is new. Otherwise it would overfit on a quiet night."""
CHECKED: Final = 256
"""Number of turns, about, for which the head's hazards are checked after each training."""
FORMAT: Final = 3


class Quality(NamedTuple):
    """Quality of the predictions.

    Attributes:
        turns, returns: numbers since the start.
        head_share: weight of the head in the mixture, in [0, 1].
        nats: log-likelihood of outcomes under the mixture minus that under the average curve; a discounted mean, NaN before
            the first outcome.
    """

    turns: int
    returns: int
    head_share: float
    nats: float


@dataclass(frozen=True)
class _Forecasters:
    counts: Counts
    head: HazardHead

    def hazards(self, facts: Sequence[Facts], rows: NDArray[np.float32]) -> Floats:
        """Return hazards [2, n, INTERVALS] of counts and head."""
        counted = np.array([self.counts.hazard(strata(fact)) for fact in facts])
        both = np.concatenate([counted, self.head.hazard(rows)])
        return with_tail(both, self.counts.returns, self.counts.at_risk).reshape(2, len(facts), INTERVALS)


class ReturnModel:
    """Thread-safe: the inference thread calls :meth:`answer`, a background thread :meth:`refit`.

    Attributes:
        resets: parts of the state that were reset, and outcomes that were ignored, because a number was not finite.
    """

    def __init__(self, capacity: int = CAPACITY, seed: int = 0) -> None:
        self._learning = threading.Lock()
        """Held during training. Acquired before `_lock`, which is held only briefly."""
        self._lock = threading.Lock()
        self._memory = TurnMemory(capacity)
        self._head = HazardHead(seed)
        self._forecasters: _Forecasters | None = None
        self._groups = CurveGroups()
        self._balance = 0.0
        self._nats = math.nan
        self._judged = -1
        self._taught = 0
        self.resets = 0

    def answer(self, turns: Sequence[WatchedTurn], facts: Sequence[Facts]) -> NDArray[np.int64]:
        """Add turns; return the groups [n] of their curves, or 0 before there is enough data.

        ``facts``: all about each turn but `openings`, which the memory adds.
        """
        with self._lock:
            memory, forecasters = self._memory, self._forecasters
            facts = list(map(memory.facts, turns, facts))
            rows = inputs(facts)
            forecast = None if forecasters is None else forecasters.hazards(facts, rows)
            for place, (turn, fact) in enumerate(zip(turns, facts, strict=True)):
                memory.take(turn, fact, rows[place], None if forecast is None else forecast[:, place])
                self._record_return(turn)  # the next turn may have arrived in the meantime
            if forecast is None or not turns:
                return np.zeros(len(turns), np.int64)
            return self._groups.join(mixed(forecast, self.head_share), max(turn.arrival.asked_at for turn in turns))

    def group_curves(self) -> GroupCurves:
        """Return a snapshot of the groups."""
        with self._lock:
            average = None if self._forecasters is None else self._forecasters.counts.average
            return self._groups.snapshot()._replace(average=average)

    def record_return(self, turn: WatchedTurn) -> None:
        """Record that a turn's next one has arrived."""
        with self._lock:
            self._record_return(turn)

    def leave(self, turn: WatchedTurn) -> None:
        """End the observation of a turn, because its next one would not be recognised."""
        with self._lock:
            self._memory.leave(turn)

    def forecast(self, turn: WatchedTurn, facts: Facts) -> tuple[Floats, float] | None:
        """Return hazards [2, INTERVALS] of counts and head, and the head's share, without adding the turn.

        None before there is enough data.
        """
        with self._lock:
            if self._forecasters is None:
                return None
            known = [self._memory.facts(turn, facts)]
            return self._forecasters.hazards(known, inputs(known))[:, 0], self.head_share

    def refit(self, now: float) -> None:
        """Learn from outcomes until ``now``, seconds since the epoch. Takes tenths of a second without blocking answers."""
        with self._learning:
            self._refit(now)

    def _refit(self, now: float) -> None:
        with self._lock:
            if self._memory.number < FEWEST_TURNS:
                return
            outcomes = self._memory.outcomes(now)
        counts = Counts(outcomes.strata, outcomes.interval, outcomes.came, outcomes.weight)
        if outcomes.number - self._taught >= len(outcomes.age) / NEWS:
            self._head.teach(outcomes.inputs, outcomes.interval, outcomes.came, outcomes.weight)
            self._taught = outcomes.number
        if not np.isfinite(self._head.hazard(outcomes.inputs[:: 1 + len(outcomes.inputs) // CHECKED])).all():
            self._head, self._taught = HazardHead(), 0
            self.resets += 1
        made = None
        if counts.believable:
            made = _Forecasters(counts, self._head.copy())
        with self._lock:
            self._forecasters = made
            if not self._groups.finite:
                self._groups = CurveGroups()
                self.resets += 1
            self._judge_given_up(outcomes)

    @property
    def head_share(self) -> float:
        """Weight of the head in the mixture."""
        return expit(self._balance)

    @property
    def quality(self) -> Quality:
        """A snapshot of the quality."""
        return Quality(self._memory.number, self._memory.returns, self.head_share, self._nats)

    def state(self, now: float) -> "dict[str, NDArray[np.generic]]":
        """Return the state as arrays, without names and text."""
        with self._learning:
            with self._lock:
                memory, balance, groups = self._memory.state(now), self._balance, self._groups.state()
            head = self._head.state() if self._head.taught else {}
        return {"format": np.array(FORMAT), "balance": np.array(balance), **memory, **head, **groups}

    def restore(self, state: "dict[str, NDArray[np.generic]]", now: float) -> None:
        """Load a state and refit. Raises KeyError, ValueError: it has another format, or is damaged."""
        if int(np.asarray(state["format"], np.int64)) != FORMAT:
            raise ValueError("another format")
        memory, head, groups = TurnMemory(self._memory.capacity), HazardHead(), CurveGroups()
        memory.restore(state)
        groups.restore(state, now)
        if any(name.startswith("head.") for name in state):
            head.restore({name: np.asarray(values, np.float32) for name, values in state.items() if name.startswith("head.")})
        balance = float(np.asarray(state["balance"], np.float64))
        with self._learning:
            with self._lock:
                self._memory, self._head, self._groups = memory, head, groups
                self._balance = min(max(balance, -EVENLY), EVENLY) if math.isfinite(balance) else 0.0
                self._judged = memory.number - 1
            self._taught = 0
            self._refit(now)

    def _record_return(self, turn: WatchedTurn) -> None:
        """Requires `_lock`."""
        gap, number = self._memory.record_return(turn), turn.number
        if gap is not None and number is not None and not (number <= self._judged and gap >= GIVEN_UP_S):
            self._judge(np.array([number]), np.array([gap]), np.ones(1, np.bool_))

    def _judge(self, numbers: NDArray[np.int64], age: Floats, came: NDArray[np.bool_]) -> None:
        """Update the mixture weights by the outcomes of turns. Requires `_lock`."""
        forecast = self._memory.forecast(numbers)
        known = ~np.isnan(forecast[:, 0, 0]) & (numbers >= self._memory.number - self._memory.capacity)
        if not known.any() or self._forecasters is None:
            return
        forecast, age, came = forecast[known], age[known], came[known]
        average = np.repeat(self._forecasters.counts.average[None, :], len(forecast), 0)
        forecasts = np.concatenate([forecast[:, 0], forecast[:, 1], average])
        found = log_likelihood(forecasts, np.tile(age, 3), np.tile(came, 3)).reshape(3, -1)
        usable = np.isfinite(found.sum(axis=0))
        self.resets += int(np.count_nonzero(~usable))
        found, share = found[:, usable], self.head_share
        mixture = np.logaddexp(math.log(1 - share) + found[0], math.log(share) + found[1]) - found[2]
        for gained, mixed in zip((found[1] - found[0]).tolist(), mixture.tolist(), strict=True):
            self._balance = min(max(DECAY * self._balance + gained, -EVENLY), EVENLY)
            self._nats = mixed if math.isnan(self._nats) else DECAY * self._nats + (1 - DECAY) * mixed

    def _judge_given_up(self, outcomes: Outcomes) -> None:
        """Judge the turns without a successor within GIVEN_UP_S. Requires `_lock`."""
        capacity = self._memory.capacity
        # In order of arrival, so that the oldest come first, without overwritten turns.
        numbers = np.arange(max(self._judged + 1, self._memory.number - capacity, 0), outcomes.number)
        places = numbers % capacity
        late = outcomes.age[places] >= GIVEN_UP_S
        undecided = np.flatnonzero(outcomes.waiting[places] & ~late)
        decided = int(undecided[0]) if len(undecided) else len(numbers)
        self._judged = max(self._judged, int(numbers[0]) + decided - 1 if len(numbers) else -1)
        due = numbers[:decided][(late & ~outcomes.came[places])[:decided]]
        if len(due):
            self._judge(due, np.full(len(due), GIVEN_UP_S), np.zeros(len(due), np.bool_))


def mixed(hazards: Floats, head_share: float) -> Floats:
    """Return the mixture's curves at AGES, [n, ages], for hazards [2, n, INTERVALS] of counts and head."""
    by_counts, by_head = returned(hazards.reshape(-1, INTERVALS)).reshape(*hazards.shape[:2], -1)
    curves: Floats = (1.0 - head_share) * by_counts + head_share * by_head
    return curves
