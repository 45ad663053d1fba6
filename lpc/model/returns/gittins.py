"""What a return curve is worth in a cache at each age: its Gittins index (1979), in vectors.

    g(a) = max over h of  (F(a + h) - F(a)) / integral from a to a + h of (1 - F(s)) ds        returns per second of room

The same rule as :mod:`eviction_client.curve`, on the grid of ages of this package.
"""

from typing import Final

import numpy as np

from lpc.model.returns.hazards import AGES, Floats

_WIDTHS: Final[Floats] = np.diff(AGES)
_FROM, _TO = np.triu_indices(len(AGES), 1)
"""[pairs] of ages, the second one later, in order of the first."""
_FIRST: Final = np.searchsorted(_FROM, np.arange(len(AGES) - 1))
"""[ages - 1] where the pairs of each age begin."""
_CHUNK: Final = 64
"""Curves worked on at once: all their pairs are 1 MiB."""
_LEAST: Final = 1e-12
"""Of room: everyone has returned, and nobody is gained any more."""


def gittins(returned: Floats) -> Floats:
    """Return the index at AGES, returns per second of room, [n, ages], of curves [n, ages]."""
    parts = [_gittins(returned[start : start + _CHUNK]) for start in range(0, len(returned), _CHUNK)]
    return np.concatenate(parts) if parts else np.zeros_like(returned)


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
