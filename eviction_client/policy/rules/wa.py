"""Workload-aware eviction."""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

from eviction_client.policy.queue.free_queue import Tables
from eviction_client.policy.request import CATEGORIES, NEW_GROUPS, TURN_GROUPS, Features
from eviction_client.policy.reuse_monitor import Counts, add, nothing
from eviction_client.policy.rules.base import Learned, Rule, Steps, scaled
from lpc.model import exponential
from lpc.model.curve import HORIZON_S, KNOTS

FEWEST_REUSES: Final = 20.0
"""Reuses of a class for a fit of its own."""


class Wa(Rule):
    """The probability of a reuse within a block's life in the cache, by an exponential law for each class.

    Per class an exponential fit of the reuse time: ``q (1 - exp(-life / tau)) exp(-a / tau)`` with the probability q of any
    reuse. The paper's categories are types of request. Where a caller names none, the number of new tokens stands for them.
    The table holds the logarithm, plus a constant that makes it positive.
    """

    name = "wa"
    source = "*KVCache Cache in the Wild*, USENIX ATC 2025, 4.2"
    formula = "`q (1 - exp(-life / tau)) exp(-a / tau)`"
    divided = "55, by category, without one by new tokens, and turn"
    classes = (NEW_GROUPS + CATEGORIES - 1) * TURN_GROUPS
    exact = True
    choosable = False

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the number of category, or without one of new-token group, and turn group."""
        del log_odds
        kind = NEW_GROUPS - 1 + features.category if features.category else features.new
        return kind * TURN_GROUPS + features.turn

    def known(self, categories: int) -> int:
        """Return the number of its classes, without those of categories that nobody names."""
        return (NEW_GROUPS + categories) * TURN_GROUPS

    def tables(self, learned: Learned) -> Steps:
        """Return the tables by category or new-token group, and turn group."""
        laws = yield from fitting_wa(learned.newest)
        return wa_tables(laws, learned.life_s)


def fitting_wa(counts: Mapping[int, tuple[Counts, Counts]]) -> Generator[None, None, list[tuple[float, float]]]:
    """Return the exponential law (q, tau in seconds) of each class, in steps.

    Args:
        counts: reuses and blocks at risk [INTERVALS] by class. A class with few reuses has the law of all together.
    """
    overall = nothing()
    for pair in counts.values():
        add(overall, pair)
    known = exponential.fit_counts(*overall) if sum(overall[0]) >= 1.0 else (0.5, 100.0)
    yield
    laws = []
    for number in range(Wa.classes):
        reuses, at_risk = counts.get(number, ((), ()))
        enough = sum(reuses) >= FEWEST_REUSES
        laws.append(exponential.fit_counts(reuses, at_risk) if enough else known)
        if enough:
            yield
    return laws


def wa_tables(laws: Sequence[tuple[float, float]], life_s: float) -> Tables:
    """Return the tables by class.

    Args:
        laws: q and tau (seconds) by class.
        life_s: age at which blocks are evicted, on average.
    """
    logs = {(q, tau): exponential.log_value(q, tau, life_s) for q, tau in laws}
    floor = 1.0 + max(HORIZON_S / tau - log for (_, tau), log in logs.items())
    tables = {law: [floor + log - age / law[1] for age in KNOTS] for law, log in logs.items()}
    return scaled([tables[law] for law in laws])
