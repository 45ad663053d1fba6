"""Learned Prefix Caching."""

from typing import Final

from eviction_client.policy.queue.free_queue import Tables
from eviction_client.policy.request import Features
from eviction_client.policy.rules.base import Learned, Rule, Steps, scaled
from lpc.model.curve import HORIZON_S, KNOTS

LOG_ODDS_STEP: Final = 0.0625
"""A sixteenth of a mean gap between turns. With a quarter two of eight runs on ShareGPT differ from the paper's policy by 0.75
and 0.95 points."""
MOST_LOG_ODDS: Final = 8.0
BINS: Final = 1 + round(2 * MOST_LOG_ODDS / LOG_ODDS_STEP)


class Lpc(Rule):
    """The continuation probability, which decays with the age.

    A block's probability p falls with its age a as ``p d / (p d + 1 - p)`` with ``d = exp(-a x scale)``, ``scale = 1 / mean gap
    between turns``. In log-odds this is ``logit(p) - a x scale``: the table, plus a constant that makes it positive.
    """

    name = "lpc"
    source = "*Learned Prefix Caching*, NeurIPS 2025, 3.4.2 and 3.5"
    formula = "`logit(p) - a * scale`, which orders as `p d / (p d + 1 - p)` with `d = exp(-a * scale)`"
    divided = "65, by the log-odds of `p`"
    classes = BINS
    exact = True
    by_claim = True

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the bin of the log-odds."""
        del features
        return round((min(max(log_odds, -MOST_LOG_ODDS), MOST_LOG_ODDS) + MOST_LOG_ODDS) / LOG_ODDS_STEP)

    def tables(self, learned: Learned) -> Steps:
        """Return the tables by bin."""
        yield
        return lpc_tables(learned.mean_gap_s)


def lpc_tables(mean_gap_s: float) -> Tables:
    """Return the tables by bin of log-odds."""
    floor = MOST_LOG_ODDS + HORIZON_S / mean_gap_s + 1.0
    falls = [age / mean_gap_s for age in KNOTS]
    # Mapped, not in a loop: the interpreter is held for as long.
    return scaled([list(map((floor + number * LOG_ODDS_STEP - MOST_LOG_ODDS).__sub__, falls)) for number in range(BINS)])
