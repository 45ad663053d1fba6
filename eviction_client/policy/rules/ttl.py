"""Turn priority with a duration."""

from functools import cache
from typing import Final

from eviction_client.policy.queue.free_queue import Tables
from eviction_client.policy.request import TURN_GROUPS, Features
from eviction_client.policy.rules.base import FALLING, Learned, Rule, Steps, scaled
from lpc.model.curve import KNOTS

TTL_S: Final = 300.0
PRIORITIES: Final = (35.0, 50.0, 65.0, 80.0, 100.0)
"""By turn group."""


class Ttl(Rule):
    """The priority of the turn (0 to 100) for TTL_S, then that of a first turn as if just used.

    Priorities 0 to 100 with a duration are TensorRT-LLM's (default 35). There the caller sets them. Here each turn adds 15,
    because it shows that the user stays.
    """

    name = "ttl"
    source = "priorities with a duration: TensorRT-LLM's `KvCacheRetentionConfig`"
    formula = "the priority of the turn (35, 50, 65, 80, 100) for 300 s; then 35 as if just used"
    divided = "5, by turn"
    classes = TURN_GROUPS

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the turn group."""
        del log_odds
        return features.turn

    def tables(self, learned: Learned) -> Steps:
        """Return the tables by turn group, always the same."""
        del learned
        yield
        return ttl_tables()


@cache
def ttl_tables() -> Tables:
    """Return the tables by turn group."""
    after = [0.5 / (1.0 + max(age - TTL_S, 0.0)) for age in KNOTS]
    return scaled(
        [
            [
                priority + falls if age < TTL_S else PRIORITIES[0] + late
                for age, falls, late in zip(KNOTS, FALLING, after, strict=True)
            ]
            if turn
            else [priority + falls for falls in FALLING]
            for turn, priority in enumerate(PRIORITIES)
        ]
    )
