"""How likely a request's conversation continues, without a prediction of its own."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

from eviction_client.policy.request import TURN_GROUPS, Features, log_odds_of
from eviction_client.policy.reuse_monitor import Counts
from lpc.model.curve import interval_of
from lpc.model.probability import logit

FOLLOWS: Final = 0.05
"""Weight of each request in the running mean of the log-odds of its classes."""
INTERVALS_GIVEN_UP: Final = interval_of(600.0)
"""Intervals of age up to 600 s, at which a conversation counts as continued or not."""


class Continuation:
    """Log-odds of continuation probabilities, by turn and by class.

    Attributes:
        by_turn: by turn group, for requests without a prediction: of the share of such turns that were followed.
    """

    def __init__(self) -> None:
        self.by_turn: Sequence[float] = [0.0] * TURN_GROUPS
        self._by_class: dict[int, float] = {}

    def of(self, number: int, key: Features) -> float:
        """Return the log-odds of a class: the running mean of its requests', or of a new one its group's."""
        return self._by_class.get(number, log_odds_of(key.odds) if key.odds else self.by_turn[key.turn])

    def observe(self, number: int, log_odds: float) -> None:
        """Add a request to the mean of its class."""
        before = self._by_class.get(number, log_odds)
        self._by_class[number] = before + FOLLOWS * (log_odds - before)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget classes."""
        for number in numbers:
            self._by_class.pop(number, None)

    def fitting(self, newest: Mapping[int, tuple[Counts, Counts]]) -> Generator[None, None, None]:
        """Set the log-odds by turn group that a block is used again within the intervals up to INTERVALS_GIVEN_UP; in steps.

        Args:
            newest: reuses and blocks at risk [INTERVALS] of blocks used once, by class of `wa`.
        """
        found = []
        for turn in range(TURN_GROUPS):
            own = [pair for number, pair in newest.items() if number % TURN_GROUPS == turn]
            stays = 1.0
            for i in range(INTERVALS_GIVEN_UP):
                stays *= 1.0 - (sum(pair[0][i] for pair in own) + 0.02) / (sum(pair[1][i] for pair in own) + 0.5)
            found.append(logit(1.0 - stays))
            yield
        self.by_turn = found
