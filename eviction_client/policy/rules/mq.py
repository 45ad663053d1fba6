"""Multi-Queue."""

from typing import Final

from eviction_client.policy.queue.free_queue import Tables
from eviction_client.policy.request import LEVELS, Features
from eviction_client.policy.rules.base import Learned, Rule, Steps, scaled
from lpc.model.curve import HORIZON_S, KNOTS

LIFETIME_TOKENS: Final = 10_000 * 512
"""Prompt tokens after which a block falls one level."""
LIFETIME_S: Final = 150.0
"""The same in seconds, before requests have read any."""


class Mq(Rule):
    """The level, log2 of the uses, less the lifetimes without a use.

    Multi-Queue has one queue for each level. A block that is not used for a lifetime moves to the end of the next lower queue.
    So the block with the lowest ``level - age / lifetime`` is evicted. The table holds this, plus a constant that makes it
    positive.
    """

    name = "mq"
    source = "Multi-Queue: Zhou, Philbin and Li, USENIX ATC 2001"
    formula = "the level, log2 of the uses (at most 3), less the lifetimes without a use"
    divided = "4, by uses"
    classes = LEVELS

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the level."""
        del log_odds
        return features.level

    def tables(self, learned: Learned) -> Steps:
        """Return the tables by level."""
        yield
        return mq_tables(LIFETIME_TOKENS * learned.read_s / learned.read_tokens if learned.read_tokens else LIFETIME_S)


def mq_tables(lifetime_s: float) -> Tables:
    """Return the tables by level. ``lifetime_s``: time in which requests read LIFETIME_TOKENS."""
    floor = HORIZON_S / lifetime_s + 1.0
    return scaled([[floor + level - age / lifetime_s for age in KNOTS] for level in range(LEVELS)])
