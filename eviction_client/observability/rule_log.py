"""Logs each new rule of the guard, with the ghost caches' hits that led to it."""

import logging
import math
from typing import Any, Final, NamedTuple

from eviction_client.policy.ghosts import Ghosts
from eviction_client.policy.rules import RULES

logger = logging.getLogger(__name__)

EVERY_S: Final = 60.0
"""Least time between two lines."""
WINDOW_S: Final = 600.0
"""The figures are those of the last one to two windows."""


class _Counts(NamedTuple):
    """Counters of ghost caches at a time, seconds."""

    at: float
    asked: int
    hits: dict[str, int]


class RuleLog:
    """One line, at INFO, when the guard has chosen another rule; at most one in EVERY_S. Not thread-safe.

    Args:
        rule: rule in force at the start.
        shadow: a dry run, in which the choice orders nothing.
    """

    def __init__(self, rule: str, *, shadow: bool) -> None:
        self._rule = rule
        self._what = "dry run, the guard would change" if shadow else "the guard changes"
        self._logged_at = -math.inf
        self._switches = 0
        self._older = self._newer = _Counts(-math.inf, 0, dict.fromkeys(RULES, 0))

    def update(self, ghosts: Ghosts[Any], now: float) -> None:
        """Log the rule if it is another one. Call it often.

        Args:
            now: seconds; never goes back.
        """
        if now - self._newer.at >= WINDOW_S:
            counts = _Counts(now, ghosts.asked, dict(ghosts.hits))
            self._older = counts if math.isinf(self._newer.at) else self._newer
            self._newer = counts
        rule, switches = ghosts.guard.in_force, ghosts.guard.switches
        if rule == self._rule or now - self._logged_at < EVERY_S:
            return
        asked = ghosts.asked - self._older.asked
        shares = ", ".join(f"{name} {(ghosts.hits[name] - self._older.hits[name]) / max(asked, 1):.1%}" for name in RULES)
        logger.info(
            "learned prefix cache: %s the rule from %s to %s (change %d%s). Hits of %d sampled blocks in %.0f s: %s",
            *(self._what, self._rule, rule, switches),
            f", {missed} of them not logged" if (missed := switches - self._switches - 1) > 0 else "",
            *(asked, now - self._older.at, shares),
        )
        self._rule, self._switches, self._logged_at = rule, switches, now
