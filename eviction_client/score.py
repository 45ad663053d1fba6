"""Keys by which engines of a fleet compare a shared block: a time, at which its value falls below the price of room.

    key = end of the request + retain seconds of the block's reuse class      seconds since the Unix epoch

Times are the same in every engine of a fleet, since keys are compared across engines. At the present day they are near
1.8e9, where doubles are 2.4e-7 s apart.
"""

from typing import Final

from eviction_client.curve import HORIZON_S

REMEMBERED_S: Final = 3600.0
"""Stores forget a key that lies so long before now. An engine that holds blocks for longer loses a raise, but not a
block: a day of a fleet's blocks would be tens of gigabytes in Redis."""

OLDEST_S: Final = 30 * 86_400.0
"""A key that lies longer before now comes from another clock and does not count."""


def done_key(now: float) -> float:
    """Return the key of blocks whose only conversation is over: below all others."""
    return now - 2 * HORIZON_S


def forgotten_below(now: float) -> float:
    """Return the key under which a store forgets a block at time ``now``, seconds since the epoch."""
    return now - REMEMBERED_S
