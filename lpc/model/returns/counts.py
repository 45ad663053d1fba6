"""Hazards by counting turns in strata; each stratum is shrunk towards the next coarser one."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.facts import Stratum
from lpc.model.returns.hazards import FEWEST_RETURNS, INTERVALS, Floats, with_tail

WEIGHT: Final = 100.0
"""Weight of the coarser stratum's hazard, as a number of turns at risk."""


class Counts:
    """Hazards of strata.

    Attributes:
        average: [INTERVALS] hazards of all turns.
        returns, at_risk: [INTERVALS] weighted counts of all turns.
    """

    def __init__(
        self,
        strata: Sequence[list[Stratum]],
        interval: NDArray[np.int64],
        came: NDArray[np.bool_],
        weight: Floats,
    ) -> None:
        """Count turns.

        Args:
            strata: strata of each turn, from `facts.strata`; the first one is empty.
            interval: [n] interval in which the next turn arrived or observation ended.
            came: [n] whether the next turn arrived.
            weight: [n] weight of each turn.
        """
        numbers: dict[Stratum, int] = {}
        turn: list[int] = []
        stratum: list[int] = []
        for index, chain in enumerate(strata):
            for name in chain:
                turn.append(index)
                stratum.append(numbers.setdefault(name, len(numbers)))
        rows, of = np.array(stratum, np.int64), np.array(turn, np.int64)
        size = max(len(numbers), 1) * INTERVALS
        cell = rows * INTERVALS + interval[of]
        left = np.bincount(cell, weight[of], minlength=size).reshape(-1, INTERVALS)
        returns = np.bincount(cell[came[of]], weight[of][came[of]], minlength=size).reshape(-1, INTERVALS)
        # At risk in an interval: turns that left in a later one, those followed in it, and half of those censored in it.
        at_risk = left[:, ::-1].cumsum(axis=1)[:, ::-1] - left + returns + 0.5 * (left - returns)
        self.returns: Floats = returns[0]
        self.at_risk: Floats = at_risk[0]
        pooled = (returns[0] + 0.01) / (at_risk[0] + 0.5)
        self.average: Floats = with_tail(pooled[None, :], returns[0], at_risk[0])[0]
        self._hazard: dict[Stratum, Floats] = {(): self.average}
        for name in sorted(numbers, key=len):
            if name:
                above = self._hazard[name[:-1]]
                row = numbers[name]
                self._hazard[name] = (returns[row] + WEIGHT * above) / (at_risk[row] + WEIGHT)

    def hazard(self, chain: list[Stratum]) -> Floats:
        """Return the hazards of the finest known stratum, [INTERVALS]."""
        for name in reversed(chain):
            found = self._hazard.get(name)
            if found is not None:
                return found
        return self.average

    @property
    def believable(self) -> bool:
        """Whether there are enough returns for a curve."""
        return bool(self.returns.max(initial=0.0) >= FEWEST_RETURNS)
