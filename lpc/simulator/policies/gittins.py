"""The Gittins index: rank by when a conversation will return, not only by whether."""

import math
from typing import Final

import numpy as np
from scipy.special import ndtr

from lpc.model.probability import logit
from lpc.simulator.knowledge import AGES, Floats
from lpc.simulator.policies.aging import AgingClasses, ClassKey
from lpc.simulator.policy import PolicySettings, register
from lpc.simulator.workload import Turn, Workload

LOG_ODDS_STEP: Final = 0.25
LOG_MEAN_STEP: Final = 0.25
LOG_SIGMA_STEP: Final = 0.2
"""Widths of the classes: log-odds of continuation, and mean and standard deviation of ln(seconds)."""
FIRST_AGE: Final = float(AGES[0])
LAST_AGE: Final = float(AGES[-1])
LOG_FIRST: Final = math.log(AGES[0])
LOG_STEP: Final = math.log(AGES[1] / AGES[0])


@register
class Gittins(AgingClasses):
    """The best rate of returns per second of keeping, over all times to keep on.

    Classes by what is known of a turn's return: probability, mean and spread of the logarithm of its time.
    """

    name = "gittins"
    rule = "the lowest Gittins index: max over h of P(returns within h) / expected seconds kept until then"
    source = "Gittins 1979, Bandit processes and dynamic allocation indices; think times learnt from the requests so far"
    uses_predictor = True

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._tables: dict[ClassKey, list[float]] = {}

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn from the turn."""
        self.knowledge.arrived(turn, now)

    def place(self, turn: Turn, now: float) -> ClassKey:
        """Return the class of the turn's outlook, rounded."""
        known = self.knowledge.outlook(turn, now)
        return (
            round(logit(1 - known.p if self.settings.invert else known.p) / LOG_ODDS_STEP),
            round(known.log_mean / LOG_MEAN_STEP),
            max(round(known.log_sigma / LOG_SIGMA_STEP), 1),
        )

    def value(self, key: ClassKey, age: float) -> float:
        """Look the index up."""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.index(AGES, self.returned(key)).tolist()
        if age <= FIRST_AGE:
            return table[0]
        place = (math.log(age) - LOG_FIRST) / LOG_STEP
        low = int(place)
        if low >= len(table) - 1:
            # Beyond the grid an index goes on falling, so that what is older still goes first.
            return table[-1] * LAST_AGE / age
        part = place - low
        return table[low] * (1 - part) + table[low + 1] * part

    def returned(self, key: ClassKey) -> Floats:
        """Return the probability that a turn of the class has been followed by the next at each age, [ages]."""
        p = 1 / (1 + math.exp(-key[0] * LOG_ODDS_STEP))
        share: Floats = ndtr((np.log(AGES) - key[1] * LOG_MEAN_STEP) / (key[2] * LOG_SIGMA_STEP))
        return p * share

    def index(self, age: Floats, returned: Floats) -> Floats:
        """Return max over b > a of p (F(b) - F(a)) / integral of 1 - p F from a to b."""
        remaining = 1 - returned
        step = np.diff(age, append=age[-1] * 2)
        kept = np.concatenate(([0.0], np.cumsum((remaining + np.append(remaining[1:], remaining[-1])) / 2 * step)[:-1]))
        gain = returned[None, :] - returned[:, None]
        cost = kept[None, :] - kept[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(cost > 0, gain / cost, 0.0)
        index: Floats = rate.max(axis=1)
        index[-1] = index[-2] / 2
        return index
