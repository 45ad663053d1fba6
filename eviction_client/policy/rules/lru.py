"""Least recently used first."""

from eviction_client.policy.request import Features
from eviction_client.policy.rules.base import Learned, Rule, Steps


class Lru(Rule):
    """The engine's own order, which a queue without tables has."""

    name = "lru"
    source = "the engine's own order"
    formula = "falls with the age, the same for all blocks"
    divided = "one"
    classes = 1

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the only class."""
        del features, log_odds
        return 0

    def tables(self, learned: Learned) -> Steps:
        """Return None."""
        del learned
        yield
        return None
