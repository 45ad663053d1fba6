"""Parses and formats capacities, times and shares for the command line and reports."""

import math
from typing import Final

from lpc.errors import UsageError

_SIZES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "K"))
_TIMES: Final = ((1, "s", 99.5), (60, "min", 5_970), (3600, "h", 172_800), (86_400, "days", math.inf))
"""Scale, unit, and the number of seconds from which the next unit is used."""


class SimulationError(UsageError):
    """The options of a simulation are invalid."""


def in_tokens(capacity: int | float, working_set: int) -> int:
    """Return a capacity in tokens. An int is tokens, a float a share of the working set."""
    return capacity if isinstance(capacity, int) else round(capacity * working_set)


def parse_capacity(text: str) -> int | float:
    """Parse `160K`, `2M`, `50000` as tokens (int), `2%` as a share (float). Raises SimulationError."""
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


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal: 5.4%."""
    return f"{100 * share:.1f}%"


def about(share: float) -> str:
    """Return a rounded percentage: 49%, 2%, 0.5%, <0.1%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}".removesuffix(".0") + "%"


def tokens(count: float) -> str:
    """Return a number of tokens: 512, 160K, 1.2M, 17.5M."""
    for scale, letter in _SIZES:
        if round(count / scale, 1) >= 1:
            value = count / scale
            return f"{value:.0f}{letter}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + letter
    return f"{count:.0f}"


def memory(count: float) -> str:
    """Return a number of bytes in GiB, below a tenth of one in MiB: 6.5 GiB, 12 MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.0f} MiB"


def seconds(value: float) -> str:
    """Return a time: 48 ms, 0.47 s, 4.2 s, 49 s, 6 min, 1.5 h, 2 days."""
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    if value < 0.995:
        return f"{value:.2f} s"
    scale, unit = next((scale, unit) for scale, unit, until in _TIMES if value < until)
    shown = f"{value / scale:.1f}" if value / scale < 9.95 else f"{value / scale:.0f}"
    return f"{shown.removesuffix('.0')} {unit}"
