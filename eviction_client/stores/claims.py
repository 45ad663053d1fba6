"""What the engines of a fleet share of a block: how likely its conversations continue, and when they last used it.

A *shared claim* is that of one conversation, the highest now: `at + gap * log_odds` orders claims at any time, because the
log-odds of all fall by the age over the mean gap between turns (LPC, 3.4.2 and 3.5).
"""

from typing import Final, NamedTuple

LOG_ODDS_STEP: Final = 0.0625
MOST_LOG_ODDS: Final = 8.0
"""Log-odds are multiples of the step from -MOST_LOG_ODDS to below MOST_LOG_ODDS: the classes of the rule `lpc`."""
STEPS: Final = round(2 * MOST_LOG_ODDS / LOG_ODDS_STEP)
TAGS: Final = 2**10
MOST_TURNS: Final = 7
MOST_HOLDERS: Final = 4
"""Conversations that hold a block: so many or more."""

REMEMBERED_S: Final = 3600.0
"""Stores forget older claims, since a day of a fleet's blocks would take tens of gigabytes in Redis. By then the probability
has decayed over dozens of mean gaps."""
AHEAD_S: Final = 300.0
"""A claim that is later than the reader's clock by more than this comes from a wrong clock and is ignored."""


class SharedClaim(NamedTuple):
    """The claim on a block that is the highest in the fleet.

    Attributes:
        conversation: tag of its conversation, in [0, TAGS).
        log_odds: log-odds of the probability that it continues, at ``at``.
        at: end of its latest turn, whole seconds since the epoch.
        turn: this turn, at most MOST_TURNS.
        predicted: whether a sidecar predicted the probability; else it is the share of such turns that were followed.
        holders: number of conversations that hold the block, as far as the writers could see; at most MOST_HOLDERS.
    """

    conversation: int
    log_odds: float
    at: float
    turn: int = 1
    predicted: bool = True
    holders: int = 1

    def score(self, gap_s: float) -> float:
        """Return the time that orders claims: a higher one is a higher probability at any time."""
        return self.at + gap_s * self.log_odds


def shared_claim(conversation: int, log_odds: float, at: float, turn: int, *, predicted: bool, holders: int) -> SharedClaim:
    """Return a claim with numbers as the stores keep them: rounded, and within their limits."""
    steps = round((log_odds + MOST_LOG_ODDS) / LOG_ODDS_STEP) if log_odds == log_odds else STEPS // 2
    steps = min(max(steps, 0), STEPS - 1)
    turn, holders = min(max(turn, 1), MOST_TURNS), min(max(holders, 1), MOST_HOLDERS)
    return SharedClaim(conversation, steps * LOG_ODDS_STEP - MOST_LOG_ODDS, float(at // 1), turn, predicted, holders)


def forgotten_below(now: float) -> float:
    """Return the time below which stores forget claims at time ``now`` (seconds since the epoch)."""
    return now - REMEMBERED_S
