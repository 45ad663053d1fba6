"""What an application knows better than any predictor, sent with a request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PRIORITY_S: Final = 100.0
"""Seconds that one level of priority is worth: about a turn's think time."""


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one request.

    Attributes:
        retain_s: rank the blocks as if they had been used this many seconds later (negative: earlier).
        done: the conversation or branch is over.
        priority: levels, each worth PRIORITY_S.
    """

    retain_s: float = 0.0
    done: bool = False
    priority: float = 0.0

    def seconds(self, longest: float) -> float:
        """Return by how many seconds the blocks are to be ranked as if used later, within ``longest``."""
        return min(max(self.retain_s + self.priority * PRIORITY_S, -longest), longest)

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None) -> "Hints":
        """Read ``lpc_retain_seconds``, ``lpc_done`` and ``lpc_priority``; what cannot be understood is not a hint."""
        if not arguments:
            return NO_HINTS
        done = arguments.get("lpc_done", False)
        hints = cls(
            _number(arguments.get("lpc_retain_seconds")),
            done.strip().lower() in ("1", "true", "yes") if isinstance(done, str) else bool(done),
            _number(arguments.get("lpc_priority")),
        )
        return NO_HINTS if hints == NO_HINTS else hints


NO_HINTS: Final = Hints()


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0
