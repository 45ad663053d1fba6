"""When a conversation is due: what its blocks would be worth in a faster tier than the one they lie in.

Room in a cache whose blocks of average conversations live A seconds has the price g_average(A), returns per second of room
(`lpc.model.returns.credit`). A block that lies in a slower tier is worth room in that cache from the age on at which its own
index g rises above this price, until it falls below it again. Unlike eviction, which asks only when an index first falls to the
price, this needs the index as it is: it rises where nobody returns before having read, or before the bell.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.credit import gittins
from lpc.model.returns.hazards import AGES, Floats

Places = NDArray[np.int64]
_PARTS: Final[Floats] = np.linspace(0.0, 1.0, 31)[1:]
"""Of a stay, that are tried as its end."""
_LOG_FLOOR: Final = -60.0
"""Of an index: nobody returns any more."""


class Due:
    """Return curves with their indices.

    Args:
        returned: [n, ages] at AGES.
        index: [n, ages] `log_gittins` of them, where it is known already.
    """

    def __init__(self, returned: Floats, index: Floats | None = None) -> None:
        self._returned = returned
        self._index = log_gittins(returned) if index is None else index

    def over(self, rows: Places, age: Floats, log_price: float) -> Floats:
        """Return ln(index / price) of conversations, [m]: they are due where it is above 0.

        Args:
            rows: [m] places of their curves.
            age: [m] seconds since their turns arrived.
            log_price: of room in the cache, ln(returns per second).
        """
        return _at(self._index, rows, _place(age)) - log_price

    def chance(self, rows: Places, age: Floats, log_price: float, stay: float) -> tuple[Floats, Floats]:
        """Return what to expect of conversations that are brought into the cache now, [m] each.

        Args:
            rows, age, log_price: as of `over`.
            stay: seconds that the cache keeps them at most.

        Returns:
            The age at which the index falls to the price, or the stay ends; the probability of a return until then, given that
            there was none before.
        """
        below = (self._index[rows] <= log_price) & (AGES[None, :] > age[:, None])
        falls = np.where(below.any(axis=1), AGES[below.argmax(axis=1)], AGES[-1])
        until: Floats = np.minimum(falls, age + stay)
        now, then = (_at(self._returned, rows, _place(at)) for at in (age, until))
        chance: Floats = np.clip((then - now) / np.maximum(1.0 - now, 1e-9), 0.0, 1.0)
        return until, chance

    def gain(self, rows: Places, age: Floats, until: Floats, cost: float) -> Floats:
        """Return the most that bringing conversations in now gains, uses per second of room, [m].

        It is the index of a move that costs something: the maximum over h of (P(h) - cost) / R(h), with the probability P of a
        return within h and the room R that is held until then, or until the return. Below 0: it is not worth its cost.

        Args:
            rows, age: as of `over`.
            until: [m] age up to which they would stay.
            cost: of a move, in uses.
        """
        steps = np.maximum(until - age, 1.0)[:, None] * _PARTS[None, :]
        every = rows[:, None]
        here = _at(self._returned, every, _place(age[:, None]))
        left = (1.0 - _at(self._returned, every, _place(age[:, None] + steps))) / np.maximum(1.0 - here, 1e-9)
        before = np.concatenate([np.ones_like(here), left[:, :-1]], axis=1)
        room = np.cumsum((left + before) / 2 * np.diff(steps, prepend=0.0), axis=1)
        best: Floats = ((1.0 - left - cost) / np.maximum(room, 1e-9)).max(axis=1)
        return best


def log_gittins(returned: Floats) -> Floats:
    """Return ln of the index at AGES, [n, ages], of curves [n, ages]."""
    result: Floats = np.maximum(np.log(np.maximum(gittins(returned), 1e-300)), _LOG_FLOOR)
    return result


def log_price(average: Floats, lifetime: float) -> float:
    """Return ln of the price of room where average blocks live ``lifetime`` seconds.

    ``average``: [ages] `lpc.model.returns.credit.log_index` of their curve.
    """
    return float(np.interp(lifetime, AGES, average))


def _place(age: Floats) -> tuple[Places, Floats]:
    """Return the last of AGES that is not above each age, and the part of the way to the next one."""
    place = np.clip(np.searchsorted(AGES, age, side="right") - 1, 0, len(AGES) - 2)
    part: Floats = np.clip((age - AGES[place]) / (AGES[place + 1] - AGES[place]), 0.0, 1.0)
    return place, part


def _at(values: Floats, rows: Places, place: tuple[Places, Floats]) -> Floats:
    """Return what some rows of values [n, ages] are, each at an age, [m]."""
    below, part = place
    found: Floats = values[rows, below] * (1.0 - part) + values[rows, below + 1] * part
    return found
