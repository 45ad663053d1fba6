"""Amounts as they are written on the command line."""

from lpc.errors import UsageError


class SimulationError(UsageError):
    """A simulation cannot be run as asked. The message says why and what to do."""


def tokens(capacity: int | float, working_set: int) -> int:
    """Return a capacity in tokens: an int is that, a float a share of the working set."""
    return capacity if isinstance(capacity, int) else round(capacity * working_set)


def parse_capacity(text: str) -> int | float:
    """Read `160K`, `2M`, `50000` as tokens (int), `2%` as a share (float). Raises SimulationError."""
    try:
        if text.endswith("%"):
            value: int | float = float(text[:-1]) / 100
        else:
            scale = {"K": 1_000, "M": 1_000_000}.get(text[-1:].upper(), 1)
            value = round(float(text[:-1] if scale > 1 else text) * scale)
    except (ValueError, OverflowError):
        value = 0
    if not 0 < value < float("inf"):
        raise SimulationError(
            f"{text!r:.40} is not a capacity: give tokens (50000, 160K, 2M) or a share of the working set (2%)"
        )
    return value
