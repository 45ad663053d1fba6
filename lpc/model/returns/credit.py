"""What a return curve is worth in a cache: seconds of credit beside an average conversation, for every lifetime of a cache.

``key = t_last + credit``; the smallest is evicted. The value of room at age ``a`` of a block is its Gittins index (1979)

    g(a) = max over h of  (F(a + h) - F(a)) / integral from a to a + h of (1 - F(s)) ds        returns per second of room

In a cache where blocks of average conversations live ``A`` seconds, room has the price ``g_average(A)``. Every other block is
worth its room until its own index first falls to that price, at age ``a*``; an average one until ``A``. Hence

    credit(A) = a*(g_average(A)) - a*_average(g_average(A))

which is 0 for an average block at every ``A``: the order is least recently used. With exponential think times it is
``tau (logit p - logit p_average)`` at every ``A``: the order of Learned Prefix Caching (NeurIPS 2025).

An index may stand still for a while (nobody returns before having read), and then the first age at a price would jump by that
while. So the logarithm of every index falls by TILT besides: of equal values the younger one is the higher. A block whose
index never reaches the price has the age at which it would, were its index to go on below age 0 by OVERDUE_S.

Credits are not bounded by the lifetime. A bound of the lifetime and two minutes was tried, since where an average curve stays
flat for an hour a small difference is worth an hour: without a guard `chat-bimodal` at 5% lost 6.9 points instead of 14.1,
agents 0.6 instead of 1.9. But the guard lets neither come into force; under it the bound made `day` at 1% with inverted
predictions, which then look harmless at first, lose 1.0 points instead of none, and the Mooncake trace at 1, 2, 3% 0.6, 0.2,
0.1.
"""

from typing import Final

import numpy as np

from lpc.model.returns import MAX_CREDIT_S
from lpc.model.returns.hazards import AGES, Floats

LIFETIMES: Final[Floats] = np.geomspace(1.0, 10_800.0, 24)
"""The grid of a credit table: lifetimes of caches, seconds. In every model info, so that a client need not know it."""
OVERDUE_S: Final = 20.0
"""Seconds by which a block goes earlier for each factor of e that its highest index lies below the price."""
TILT: Final = 1e-3
"""By which the logarithm of an index falls for each factor of e in (1 s + age)."""

_WIDTHS: Final[Floats] = np.diff(AGES)
_AT: Final[Floats] = np.append((AGES[1:] + AGES[:-1]) / 2, AGES[-1])
"""[ages] to which indices belong: the best time to keep on is often as short as the grid allows, one step."""
_FROM, _TO = np.triu_indices(len(AGES), 1)
"""[pairs] of ages, the second one later, in order of the first."""
_FIRST: Final = np.searchsorted(_FROM, np.arange(len(AGES) - 1))
"""[ages - 1] where the pairs of each age begin."""
_TILT: Final[Floats] = TILT * np.log1p(_AT)
_CHUNK: Final = 64
"""Curves worked on at once: all their pairs are 1 MiB."""
_LEAST: Final = 1e-12
"""Of room: everyone has returned, and nobody is gained any more."""


def log_index(returned: Floats) -> Floats:
    """Return ln of the index at AGES, never rising, [n, ages], of curves [n, ages]."""
    parts = [_log_index(returned[start : start + _CHUNK]) for start in range(0, len(returned), _CHUNK)]
    return np.concatenate(parts) if parts else np.zeros_like(returned)


class CreditLaw:
    """Credits beside one average. ``average``: [ages], its return curve at AGES."""

    def __init__(self, average: Floats) -> None:
        index = log_index(average[None, :])
        self._price = np.interp(LIFETIMES, _AT, index[0])
        self._average_age = _first_age(index, self._price)

    def table(self, returned: Floats) -> Floats:
        """Return the credits in seconds at LIFETIMES, [n, lifetimes], of return curves at AGES, [n, ages]."""
        return np.clip(_first_age(log_index(returned), self._price) - self._average_age, -MAX_CREDIT_S, MAX_CREDIT_S)


def gittins(returned: Floats) -> Floats:
    """Return the index at AGES, returns per second of room, [n, ages], of curves [n, ages]."""
    parts = [_gittins(returned[start : start + _CHUNK]) for start in range(0, len(returned), _CHUNK)]
    return np.concatenate(parts) if parts else np.zeros_like(returned)


def _log_index(returned: Floats) -> Floats:
    rate = _gittins(returned)
    index: Floats = np.minimum.accumulate(np.log(np.maximum(rate, 1e-12)), axis=1) - _TILT
    return index


def _gittins(returned: Floats) -> Floats:
    waiting = 1.0 - returned
    room = np.zeros_like(returned)
    np.cumsum((waiting[:, 1:] + waiting[:, :-1]) / 2 * _WIDTHS, axis=1, out=room[:, 1:])
    gained = returned[:, _TO]
    gained -= returned[:, _FROM]
    spent = room[:, _TO]
    spent -= room[:, _FROM]
    spent[spent <= _LEAST] = 1.0
    gained /= spent
    rate = np.empty_like(returned)
    rate[:, :-1] = np.maximum.reduceat(gained, _FIRST, axis=1)
    rate[:, -1] = rate[:, -2] * AGES[-2] / AGES[-1]
    return rate


def _first_age(index: Floats, price: Floats) -> Floats:
    """Return the age, seconds, at which each index [n, ages] first is at each price [k], [n, k]. Both are logarithms."""
    rows = np.arange(len(index))[:, None]
    reached = index[:, :, None] <= price[None, None, :]
    place = reached.argmax(axis=1)
    later = np.maximum(place, 1)
    high, low = index[rows, later - 1], index[rows, later]
    part = (high - price) / np.maximum(high - low, 1e-12)
    age = _AT[later - 1] + (_AT[later] - _AT[later - 1]) * part
    age = np.where(place == 0, _AT[0] + (index[:, :1] - price) * OVERDUE_S, age)
    result: Floats = np.where(reached.any(axis=1), age, _AT[-1] * (1.0 + index[:, -1:] - price))
    return result
