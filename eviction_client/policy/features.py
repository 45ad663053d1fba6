"""The features of blocks, whose combinations are the reuse classes."""

from bisect import bisect_right
from functools import cache
from typing import Final, NamedTuple

GAPS: Final = (10.0, 60.0, 300.0, 1200.0)
"""Bounds of the gap classes, seconds between a block's last two uses. Gap class 0: the block was used for the first time."""
GAP_CLASSES: Final = len(GAPS) + 2

NEW_TOKENS: Final = (1024, 4096, 16384)
"""Bounds of the new-token groups: tokens at the end of a prompt that the cache has not seen before. They do not depend on the
rule: an evicted block is not new. A long new part is a new conversation or a pasted document, a short one a chat message or a
tool's result."""
NEW_GROUPS: Final = len(NEW_TOKENS) + 1

TURNS: Final = (2, 3, 4, 6)
"""First turns of the turn groups after the first one: 1, 2, 3, 4 and 5, 6 and more."""
TURN_GROUPS: Final = len(TURNS) + 1
LAST_TURN: Final = TURNS[-1]
"""Later turns count as this one."""

REPLY_ENDS: Final = 4
"""Kinds of reply end, numbered from 0; kind 0 collects the infrequent ones."""

LEVELS: Final = 4
"""Levels by the number of uses: 1, 2 and 3, 4 to 7, 8 and more. A fifth costs Mooncake 0.2 points at 1% and 0.1 at 8%."""
MOST_USES: Final = 2 ** (LEVELS - 1)
"""More uses count as this many."""

TENANTS: Final = 10
"""Tenants by number: 0 without a cache salt, 1 for all the infrequent ones."""

MOST_ODDS: Final = 3
"""Log-odds of the last groups on both sides of even odds. Groups are whole numbers, counted from 1; 0: unknown."""


class Features(NamedTuple):
    """The features of blocks. They are the key of a reuse class.

    Attributes:
        gap: gap class of the blocks' last two uses.
        new: new-token group of the request.
        turn: turn group of the request, as the cache recognises it.
        reply_end: kind of its reply's end.
        tenant: number of its tenant.
        level: level by the number of the blocks' uses, this one included.
        group: the sidecar's group of the request; 0: none, or old blocks. These are not split by it: that triples the number of
            classes, and changes hits on Mooncake and Chatbot Arena by 0.1 points.
        odds: group of the log-odds of the continuation probability now, the highest of the conversations that hold the blocks.
            Without it in the classes of old blocks, a good predictor is wasted: 33% hits instead of 44%
            (`docs/explanation/value-and-guard.md`).
    """

    gap: int = 0
    new: int = 0
    turn: int = 0
    reply_end: int = 0
    tenant: int = 0
    level: int = 0
    group: int = 0
    odds: int = 0


NOTHING_KNOWN: Final = Features()


@cache
def seen(gap: int, level: int) -> Features:
    """Return what is known of old blocks when a prompt with them arrives: gap class and level."""
    return Features(gap=gap, level=level)


def gap_class(seconds: float) -> int:
    """Return the gap class of blocks whose last two uses lie this far apart."""
    return 1 + bisect_right(GAPS, seconds)


def turn_group(turn: int) -> int:
    """Return the group of a turn, counted from 1."""
    return bisect_right(TURNS, turn)


def new_group(tokens: int) -> int:
    """Return the group of a number of new tokens."""
    return bisect_right(NEW_TOKENS, tokens)


def level_of(uses: int) -> int:
    """Return the level of blocks with this many uses, at least one."""
    return min(uses.bit_length(), LEVELS) - 1


def odds_group(log_odds: float | None) -> int:
    """Return the group of the log-odds of a continuation probability; None: unknown."""
    return 0 if log_odds is None else round(min(max(log_odds, -MOST_ODDS), MOST_ODDS)) + MOST_ODDS + 1


def log_odds_of(group: int) -> float:
    """Return the log-odds in the middle of a group, which is not 0."""
    return float(group - MOST_ODDS - 1)
