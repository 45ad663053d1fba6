"""The return model of a sidecar: two forecasters that learn while it serves, mixed by how well each has predicted.

Counts by strata know something after minutes and follow what changes; the head knows which facts matter together and takes
longer. Their curves are mixed by the discounted log-likelihood of what happened since to turns that they had predicted.
Before FEWEST_TURNS turns, and while hardly anybody has returned, all turns are in group 0, of which nothing is known.
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
from lpc.model.returns.memory import CAPACITY, Arrived, Outcomes, TurnMemory

FEWEST_TURNS: Final = 200
KEEP: Final = 0.995
"""What an outcome's log-likelihood still counts after the next one, in the weights of the mixture."""
EVENLY: Final = 6.0
"""Bound of the log-odds between the forecasters: neither is ever quite given up."""
GIVEN_UP_S: Final = 600.0
"""Age at which a turn that nobody followed counts as predicted or not. Log-likelihood of the last 20 minutes of Mooncake's
trace: -2.486 with 1,800 s, -2.480 with 600 s, -2.479 with 300 s: the weights follow sooner."""
NEWS: Final = 100
"""The head is taught again when one in so many of the turns is new: in a quiet night it would learn them by heart."""
FORMAT: Final = 2


class Quality(NamedTuple):
    """How good the predictions were.

    Attributes:
        turns, returns: taken in since the start.
        head_share: of the head in the mixture, in [0, 1].
        nats: by which an outcome was more likely under the mixture than under the average curve; a discounted mean, NaN
            before the first.
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
        """Return [2, n, INTERVALS]: counts, head."""
        counted = np.array([self.counts.hazard(strata(fact)) for fact in facts])
        both = np.concatenate([counted, self.head.hazard(rows)])
        return with_tail(both, self.counts.returns, self.counts.at_risk).reshape(2, len(facts), INTERVALS)


class ReturnModel:
    """Thread-safe: :meth:`answer` for the thread that infers, :meth:`refit` for one in the background."""

    def __init__(self, capacity: int = CAPACITY, seed: int = 0) -> None:
        self._learning = threading.Lock()
        """Held while what was learnt changes. Taken before `_lock`, which is held for moments only."""
        self._lock = threading.Lock()
        self._memory = TurnMemory(capacity)
        self._head = HazardHead(seed)
        self._forecasters: _Forecasters | None = None
        self._groups = CurveGroups()
        self._balance = 0.0
        self._nats = math.nan
        self._judged = -1
        self._taught = 0

    def answer(self, turns: Sequence[Arrived]) -> NDArray[np.int64]:
        """Take turns in; return the groups [n] of their curves: 0 before there is enough to learn from."""
        with self._lock:
            memory, forecasters = self._memory, self._forecasters
            facts = [memory.facts(turn) for turn in turns]
            rows = inputs(facts)
            forecast = None if forecasters is None else forecasters.hazards(facts, rows)
            for place, (turn, fact) in enumerate(zip(turns, facts, strict=True)):
                memory.take(turn, fact, rows[place], None if forecast is None else forecast[:, place])
                self._follow(turn)  # its next one may have come while it was being answered
            if forecast is None or not turns:
                return np.zeros(len(turns), np.int64)
            return self._groups.join(mixed(forecast, self.head_share), max(turn.asked_at for turn in turns))

    def group_curves(self) -> GroupCurves:
        """Return the groups that turns have been answered with."""
        with self._lock:
            average = None if self._forecasters is None else self._forecasters.counts.average
            return self._groups.snapshot()._replace(average=average)

    def follow(self, turn: Arrived) -> None:
        """Note that a turn's next one has arrived."""
        with self._lock:
            self._follow(turn)

    def leave(self, turn: Arrived) -> None:
        """Note that a turn's next one will not be recognised."""
        with self._lock:
            self._memory.leave(turn)

    def forecast(self, turn: Arrived) -> tuple[Floats, float] | None:
        """Return hazards [2, INTERVALS], by counts and by head, and the head's share; the turn is not taken in.

        None before there is enough to learn from.
        """
        with self._lock:
            if self._forecasters is None:
                return None
            facts = [self._memory.facts(turn)]
            return self._forecasters.hazards(facts, inputs(facts))[:, 0], self.head_share

    def refit(self, now: float) -> None:
        """Learn from what has happened until ``now``, seconds since the epoch. Tenths of a second; serving goes on."""
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
        made = None
        if counts.believable:
            made = _Forecasters(counts, self._head.copy())
        with self._lock:
            self._forecasters = made
            self._judge_given_up(outcomes)

    @property
    def head_share(self) -> float:
        """The head's share of the mixture."""
        return expit(self._balance)

    @property
    def quality(self) -> Quality:
        """A snapshot."""
        return Quality(self._memory.number, self._memory.returns, self.head_share, self._nats)

    def state(self, now: float) -> "dict[str, NDArray[np.generic]]":
        """Return all that was learnt as arrays, without names and text."""
        with self._learning:
            with self._lock:
                memory, balance, groups = self._memory.state(now), self._balance, self._groups.state()
            head = self._head.state() if self._head.taught else {}
        return {"format": np.array(FORMAT), "balance": np.array(balance), **memory, **head, **groups}

    def restore(self, state: "dict[str, NDArray[np.generic]]", now: float) -> None:
        """Take what was kept, and learn from it at once. Raises KeyError, ValueError: it is of another form, or damaged."""
        if int(np.asarray(state["format"], np.int64)) != FORMAT:
            raise ValueError("another format")
        memory, head, groups = TurnMemory(self._memory.capacity), HazardHead(), CurveGroups()
        memory.restore(state)
        groups.restore(state)
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

    def _follow(self, turn: Arrived) -> None:
        """With the lock held."""
        gap, number = self._memory.follow(turn), turn.number
        if gap is not None and number is not None and not (number <= self._judged and gap >= GIVEN_UP_S):
            self._judge(np.array([number]), np.array([gap]), np.ones(1, np.bool_))

    def _judge(self, numbers: NDArray[np.int64], age: Floats, came: NDArray[np.bool_]) -> None:
        """Weigh the forecasters by what they had predicted of turns. With the lock held."""
        forecast = self._memory.forecast(numbers)
        known = ~np.isnan(forecast[:, 0, 0]) & (numbers >= self._memory.number - self._memory.capacity)
        if not known.any() or self._forecasters is None:
            return
        forecast, age, came = forecast[known], age[known], came[known]
        average = np.repeat(self._forecasters.counts.average[None, :], len(forecast), 0)
        forecasts = np.concatenate([forecast[:, 0], forecast[:, 1], average])
        found = log_likelihood(forecasts, np.tile(age, 3), np.tile(came, 3)).reshape(3, -1)
        share = self.head_share
        mixture = np.logaddexp(math.log(1 - share) + found[0], math.log(share) + found[1]) - found[2]
        for gained, mixed in zip((found[1] - found[0]).tolist(), mixture.tolist(), strict=True):
            self._balance = min(max(KEEP * self._balance + gained, -EVENLY), EVENLY)
            self._nats = mixed if math.isnan(self._nats) else KEEP * self._nats + (1 - KEEP) * mixed

    def _judge_given_up(self, outcomes: Outcomes) -> None:
        """Judge what nobody followed in time. With the lock held."""
        capacity = self._memory.capacity
        # In order of arrival, so those whose time is up come first; what has been overwritten since is passed over.
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
    """Return the mixture's curves at AGES, [n, ages], of hazards [2, n, INTERVALS]: by counts and by head."""
    by_counts, by_head = returned(hazards.reshape(-1, INTERVALS)).reshape(*hazards.shape[:2], -1)
    curves: Floats = (1.0 - head_share) * by_counts + head_share * by_head
    return curves
