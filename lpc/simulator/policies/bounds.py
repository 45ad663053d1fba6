"""What no policy can do: these look into the future. They say how much there is to gain."""

import math
from bisect import bisect_right
from collections import defaultdict
from typing import ClassVar, Final

from lpc.simulator.blocks import CachedBlock
from lpc.simulator.knowledge import Outlook
from lpc.simulator.policies.gittins import Gittins
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policies.scored import ScoredPolicy
from lpc.simulator.policy import PolicySettings, register
from lpc.simulator.workload import Turn, Workload

NEVER: Final = math.inf
CONTINUES: Final = 1e9
"""Seconds for which a conversation that goes on is kept: longer than any trace, so that all that end go first."""


@register
class Infinite(ScoredPolicy):
    """A cache that never evicts: the runner gives it room for the whole working set."""

    name = "infinite"
    rule = "nothing is evicted"
    source = "upper bound of any cache"
    bound: ClassVar[bool] = True

    def score(self, turn: Turn, now: float) -> float:
        """Return the time."""
        return now


@register
class Oracle(ScoredPolicy):
    """Knows whether a conversation goes on, not when."""

    name = "oracle"
    rule = "blocks of conversations that have ended, then least recently used"
    source = "Learned Prefix Caching, NeurIPS 2025: its perfect predictor"
    bound: ClassVar[bool] = True

    def score(self, turn: Turn, now: float) -> float:
        """Return the time, and much more where a next turn will come."""
        return now + (CONTINUES if turn.next is not None else 0.0)


@register
class OracleGittins(Gittins):
    """Knows whether a conversation goes on, and ranks those that do by the learnt think times."""

    name = "oracle-gittins"
    rule = "blocks of conversations that have ended, then the lowest Gittins index"
    source = "the paper's perfect predictor with this project's time"
    bound: ClassVar[bool] = True

    def outlook(self, turn: Turn) -> Outlook:
        """Return the learnt think time with p of 0 or 1."""
        known = super().outlook(turn)
        return Outlook(0.9999 if turn.next is not None else 1e-6, known.log_mean, known.log_sigma)


class AwaitedBlock(CachedBlock):
    """A block with its next use, in a closed workload.

    Attributes:
        owner: the conversation that used it last, None before the first use has ended.
        upcoming: when that or another conversation uses it next, seconds.
    """

    __slots__ = ("owner", "upcoming")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.owner: str | None = None
        self.upcoming = NEVER


@register
class Belady(KeyedPolicy[AwaitedBlock]):
    """The block whose next use is furthest away."""

    name = "belady"
    rule = "the block that is used again last, or never"
    source = "Belady 1966 (MIN)"
    bound: ClassVar[bool] = True
    block_type = AwaitedBlock

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._uses: defaultdict[int, list[float]] = defaultdict(list)
        if not workload.closed:
            for turn in workload.arrivals:
                for content in turn.contents:
                    self._uses[content].append(turn.arrival)

    def key(self, block: AwaitedBlock, turn: Turn, now: float) -> float:
        """Return minus the time of the next use. Of a closed workload it is that of the block's own conversation."""
        if self.workload.closed:
            upcoming = NEVER if turn.next is None else now + turn.next.gap
            if block.owner not in (None, turn.conversation) and block.upcoming > now:
                upcoming = min(upcoming, block.upcoming)
            block.owner, block.upcoming = turn.conversation, upcoming
            return -upcoming
        times = self._uses[block.content]
        place = bisect_right(times, now)
        return -times[place] if place < len(times) else -NEVER
