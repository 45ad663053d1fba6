"""Retain-until times, which the engines of a fleet compare: when a block's value falls below the price.

    time = end of the request + retain seconds of the block's reuse class      seconds since the Unix epoch

Times now are near 1.8e9, where doubles are 2.4e-7 s apart.
"""

from typing import Final

from lpc.model.curve import HORIZON_S

REMEMBERED_S: Final = 3600.0
"""Stores forget times older than this, since a day of a fleet's blocks would take tens of gigabytes in Redis. An engine that
holds blocks for longer keeps them, but misses that another engine raised their time."""

OLDEST_S: Final = 30 * 86_400.0
"""Older times come from a wrong clock and are ignored."""


def done_until(now: float) -> float:
    """Return the time of blocks whose only conversation is over, below all others."""
    return now - 2 * HORIZON_S


def forgotten_below(now: float) -> float:
    """Return the time below which stores forget blocks at time ``now`` (seconds since the epoch)."""
    return now - REMEMBERED_S
