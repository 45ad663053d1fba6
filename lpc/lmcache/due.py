"""When a conversation that lies on disk is due: its return curve against the price of room in memory.

Let ``F(a)`` be the probability that a conversation returns within ``a`` seconds of its latest turn. Of one that has not
returned at age ``a``, memory for ``h`` seconds more will be used with probability

    P(h) = (F(a + h) - F(a)) / (1 - F(a))           for room        R(h) = integral from 0 to h of (1 - P(s)) ds    seconds,

since room is given back when it is used. ``max over h of P(h) / R(h)`` is the Gittins index at that age, uses per second of
room. Here it is the true index, which rises as the expected return comes near; credits need only its running minimum.

Memory is worth that to an average conversation as old as those that memory lets go: the price of room. A conversation is due
when its index passes the price, by a horizon within which it is also likely enough to return.
"""

from typing import Final, NamedTuple

import numpy as np

from lpc.model.returns.credit import log_index
from lpc.model.returns.hazards import AGES, Floats

HORIZONS: Final[Floats] = np.geomspace(1.0, 1800.0, 40)
"""[h] for which a conversation may be held in memory, seconds."""
_STEPS: Final[Floats] = np.diff(HORIZONS, prepend=0.0)


class Due(NamedTuple):
    """What speaks for having conversations in memory now, [n] each.

    Attributes:
        hold_s: the best time to hold them; NaN where there is none that is likely enough.
        likely: probability that they return within it.
        worth: their index, uses per second of room; 0 where there is no such time.
    """

    hold_s: Floats
    likely: Floats
    worth: Floats


def price(average: Floats, lifetime: float) -> float:
    """Return what a second of room is worth in a memory that lets average conversations go at this age.

    Args:
        average: [ages], the return curve of the average conversation at AGES.
        lifetime: seconds.
    """
    return float(np.exp(np.interp(lifetime, AGES, log_index(average[None, :])[0])))


def due(curves: Floats, age: Floats, needed: float, longest: float) -> Due:
    """Return what speaks for conversations.

    Args:
        curves: [n, ages], F at AGES.
        age: [n] seconds.
        needed: probability of a return below which a horizon does not count.
        longest: horizon, seconds.
    """
    here = at(curves, age[:, None])
    left = np.maximum(1.0 - here, 1e-9)
    likely = np.clip((at(curves, age[:, None] + HORIZONS[None, :]) - here) / left, 0.0, 1.0)
    before = np.concatenate([np.zeros_like(likely[:, :1]), likely[:, :-1]], axis=1)
    room = np.cumsum((1.0 - (likely + before) / 2) * _STEPS, axis=1)
    index = likely / np.maximum(room, 1e-9)
    fits = (likely >= needed) & (longest >= HORIZONS)[None, :]
    best = np.where(fits, index, -1.0).argmax(axis=1)
    rows = np.arange(len(curves))
    any_fits = fits.any(axis=1)
    return Due(np.where(any_fits, HORIZONS[best], np.nan), likely[rows, best], np.where(any_fits, index[rows, best], 0.0))


def at(curves: Floats, ages: Floats) -> Floats:
    """Return F of curves [n, ages at AGES] at other ages [n, k], linear between; constant beyond."""
    place = np.clip(np.searchsorted(AGES, ages, side="right") - 1, 0, len(AGES) - 2)
    low, high = np.take_along_axis(curves, place, 1), np.take_along_axis(curves, place + 1, 1)
    part = np.clip((ages - AGES[place]) / (AGES[place + 1] - AGES[place]), 0.0, 1.0)
    result: Floats = low + (high - low) * part
    return result
