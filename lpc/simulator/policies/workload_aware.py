"""The workload-aware policy of KVCache Cache in the Wild (ATC 2025)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from lpc.simulator.policies.aging import AgingClasses, ClassKey
from lpc.simulator.policy import PolicySettings, register
from lpc.simulator.workload import Turn, Workload

REFIT_S: Final = 60.0
GROWTH: Final = 1.1
"""From one fit to the next, in turns seen: so all fits together cost some ten times as much as the last one."""
FEWEST_GAPS: Final = 20
LIFE_RATE: Final = 0.01
"""Weight of an eviction in the running mean of the life of blocks."""


@register
class WorkloadAware(AgingClasses):
    """Per class an exponential fit of the reuse time."""

    name = "wa"
    rule = "the class head of lowest log(q (1 - exp(-life / tau))) - idle / tau; q and tau per class, deepest block first"
    source = "KVCache Cache in the Wild, ATC 2025, section 5, refitted every minute in which the turns have grown by a tenth"

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._numbers_of: dict[str, int] = {}
        self._waiting: defaultdict[int, dict[str, float]] = defaultdict(dict)
        self._gaps: defaultdict[int, list[float]] = defaultdict(list)
        self._last: dict[str, tuple[int, float]] = {}
        self._fit: dict[int, tuple[float, float]] = {}
        self._overall = (math.log(0.5), 100.0)
        self._life = 100.0
        self._fitted = 0.0
        self._turns = self._fitted_turns = 0

    def place(self, turn: Turn, now: float) -> ClassKey:
        """Return the request's class; learn from the gap since the conversation's turn before."""
        number = self._numbers_of.setdefault(turn.category, len(self._numbers_of))
        before = self._last.get(turn.conversation)
        if before is not None:
            self._gaps[before[0]].append(turn.arrival - before[1])
            self._waiting[before[0]].pop(turn.conversation, None)
        self._last[turn.conversation] = (number, turn.arrival)
        self._waiting[number][turn.conversation] = turn.arrival
        self._turns += 1
        if now - self._fitted > REFIT_S and self._turns >= GROWTH * self._fitted_turns:
            self._fitted, self._fitted_turns = now, self._turns
            self._refit(now)
        return (number,)

    def value(self, key: ClassKey, age: float) -> float:
        """Return the logarithm of the probability of reuse within a block's expected life."""
        log_q, tau = self._fit.get(key[0], self._overall)
        return log_q + math.log(-math.expm1(-self._life / tau)) - age / tau

    def gives_up(self, age: float) -> None:
        """Learn from the age of what goes how long blocks live."""
        self._life += LIFE_RATE * (max(age, 1.0) - self._life)

    def _refit(self, now: float) -> None:
        for number, gaps in self._gaps.items():
            if len(gaps) >= FEWEST_GAPS:
                self._fit[number] = _log(fit_exponential(gaps, [now - t for t in self._waiting[number].values()]))
        gaps = [gap for each in self._gaps.values() for gap in each]
        if len(gaps) >= FEWEST_GAPS:
            waiting = [now - t for each in self._waiting.values() for t in each.values()]
            self._overall = _log(fit_exponential(gaps, waiting))


def fit_exponential(gaps: Sequence[float], waiting: Sequence[float]) -> tuple[float, float]:
    """Return the probability of reuse and its mean time by maximum likelihood (expectation maximisation).

    Args:
        gaps: seconds, of those that were reused.
        waiting: seconds for which the others have been watched: they may yet be.
    """
    window = np.asarray(waiting, np.float64)
    count, total = len(gaps), sum(gaps)
    tau = max(total / count, 1.0)
    q = min((count + 1) / (count + len(window) + 2), 0.999)
    for _ in range(50):
        late = q * np.exp(-window / tau)
        late = late / (1 - q + late)
        returns = count + float(late.sum())
        q = min(max(returns / (count + len(window)), 1e-4), 0.999)
        tau = max((total + float((late * (window + tau)).sum())) / returns, 1.0)
    return q, tau


def _log(fit: tuple[float, float]) -> tuple[float, float]:
    return math.log(fit[0]), fit[1]
