"""SidecarCurves of requests without a sidecar: by the new tokens of the prompt and by how the reply ended.

The new tokens are the blocks at the end of a prompt whose last use the reuse monitor does not remember. They do not depend on
the policy: an evicted block is not new. A long new part is a new conversation or a pasted document, a short one is a chat
message or a tool's result.

Measured on the Mooncake conversation trace, hit rate in %, no sidecar, no guard, caches of 2, 5 and 8% of the working set: one
group 14.61 21.99 28.27; by new tokens 15.11 24.09 29.52, with other bounds 15.1 to 15.3, 23.1 to 23.7 and 29.2 to 29.5; by
reply length 14.47 23.20 28.33; by prompt length 14.87 23.09 28.35; by hit share 14.99 23.42 29.04; by the turn number guessed
from earlier uses of the prefix 14.62 21.87 28.27. New tokens with reply length or that turn number were not better.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from eviction_client.policy.reuse_monitor import REPLY_ENDS, GapSpan
from eviction_client.transport.sidecar_curves import MOST_GROUPS

NEW_TOKENS: Final = (1024, 4096, 16384)
"""Bounds of the groups, new tokens."""
GROUPS: Final = len(NEW_TOKENS) + 1
WITH_PREDICTED: Final = GROUPS - 1 + MOST_GROUPS
"""Number of all groups: these, and the sidecar's."""


def predicted(group: int) -> int:
    """Return the number among all groups of a group of the sidecar, which counts from 1."""
    return GROUPS - 1 + group


def priors_of(hazards: Mapping[int, Sequence[float]]) -> dict[int, Sequence[float]]:
    """Return the sidecar's predicted hazards, keyed by the groups' numbers among all."""
    return {predicted(group): curve for group, curve in hazards.items()}


def group_of(gap_spans: Sequence[GapSpan], block_tokens: int) -> int:
    """Return the group, from 0, of a prompt with these gap spans of full blocks."""
    if not gap_spans or gap_spans[-1].gap:
        return 0
    begins = gap_spans[-2].end if len(gap_spans) > 1 else 0
    return bisect_right(NEW_TOKENS, (gap_spans[-1].end - begins) * block_tokens)


COUNTED: Final = 100
"""Replies per count."""
SHARE: Final = 0.1
"""Share of these replies that must have the same end for a number of its own."""


class ReplyEnds:
    """Numbers the frequent ends of replies from 1, without configuration; all others are 0.

    An end is any value that is equal for replies that end alike, such as the last token before the end-of-sequence token: a
    tool call ends with its closing tag. An end keeps its number.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._counts: Counter[Hashable] = Counter()

    def number(self, end: Hashable) -> int:
        """Return the number of an end, in [0, REPLY_ENDS), and count it. ``end`` is None if unknown."""
        if end is None:
            return 0
        known = self._numbers.get(end)
        if known is None and len(self._numbers) < REPLY_ENDS - 1:
            self._counts[end] += 1
            if self._counts.total() >= COUNTED:
                most, count = self._counts.most_common(1)[0]
                if count >= SHARE * COUNTED:
                    self._numbers[most] = len(self._numbers) + 1
                self._counts.clear()
        return known or 0
