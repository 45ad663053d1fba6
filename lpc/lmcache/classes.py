"""Reuse classes and curves of all nodes' chunks, learned from the turns of conversations: one for the fleet.

As in an engine (:mod:`eviction_client.plugin`): a turn's chain falls into stretches of like gap since their last use, its group
is the sidecar's or one by its new tokens, and the two are the reuse class. LMCache does not report where a prompt ends and its
reply begins, and a reply may be rendered otherwise in the next prompt. So of the stretch that is new the first chunk is
watched, not the deepest.
"""

from collections.abc import Generator, Sequence
from typing import Final

from eviction_client import grouping
from eviction_client.curve import reused_between
from eviction_client.ended import Run
from eviction_client.prior import ReuseCurves
from eviction_client.reuse import KINDS, ReuseMonitor, Stretch, first_class
from eviction_client.value_queue import Table
from lpc.lmcache.tree import Chunk

CLASSES: Final = grouping.WITH_PREDICTED * KINDS


class Classes:
    """Not thread-safe.

    Args:
        remembered: chunks whose last use is remembered.

    Attributes:
        tables: the classes' values; None: nothing is known.
    """

    def __init__(self, remembered: int) -> None:
        self._monitor = ReuseMonitor(grouping.WITH_PREDICTED, remembered=remembered)
        self._at = 0.0
        self.tables: Sequence[Table] | None = None

    @property
    def reuses(self) -> int:
        """Reuses counted so far."""
        return self._monitor.reused

    @property
    def fitted(self) -> int:
        """Classes with a curve of their own."""
        return self._monitor.seen if self.tables is not None else 0

    def chance(self, reuse_class: int, age: float, until: float) -> float:
        """Return the probability of a use between two ages, seconds, if there was none before."""
        return reused_between(self._monitor.curves[reuse_class], age, until)

    def follow(self, curves: ReuseCurves | None) -> None:
        """Take what the sidecar predicts for its groups; None: nothing."""
        if curves is not None:
            self._monitor.follow(curves.epoch, grouping.priors_of(curves.hazards))

    def ended(self, chain: Sequence[Chunk], group: int, began_at: float, ended_at: float) -> list[Run]:
        """Count the reuses in a turn that has ended; return the classes of its chain, from its start.

        Args:
            group: the sidecar's; 0: it has not answered, or knows nothing.
            began_at, ended_at: seconds. A turn that ended before one that was counted earlier counts as if it ended with it.
        """
        blocks = [chunk.block for chunk in chain]
        stretches = self._monitor.admitted(blocks, began_at)
        first = first_class(grouping.predicted(group) if group else grouping.group_of(stretches, len(chain[0].tokens)), 0)
        self._at = max(self._at, ended_at)
        self._monitor.finished(blocks, _watched(stretches), first, self._at)
        return [Run(end, first + gap) for end, gap in stretches]

    def refit(self, now: float) -> Generator[None, None, None]:
        """Fit the curves, in steps of well under a millisecond. No turn may be counted between them."""
        self.tables = yield from self._monitor.fitting(now)


def _watched(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return stretches that end with the chunk to be watched."""
    if stretches[-1].gap:
        return list(stretches)
    begins = stretches[-2].end if len(stretches) > 1 else 0
    return [*stretches[:-1], Stretch(begins + 1, 0)]
