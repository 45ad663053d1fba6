"""Reuse classes and curves of the chunks on all nodes, learned from the turns of conversations.

As in an engine (:mod:`eviction_client.plugin`), a turn's chain is split into gap spans with similar gaps since the last use.
The group is predicted by the sidecar or derived from the number of new tokens. Gap and group form the reuse class. LMCache does
not report where a prompt ends and the reply begins, and the next prompt may render the reply differently. So the first chunk
of a new gap span is watched for reuse, not the deepest.
"""

from collections.abc import Generator, Sequence
from typing import Final

from eviction_client.policy import grouping
from eviction_client.policy.finished_request import ClassSpan
from eviction_client.policy.free_queue import Table
from eviction_client.policy.reuse_monitor import KINDS, GapSpan, ReuseMonitor, first_class
from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc_apps.lmcache.tree import Chunk

CLASSES: Final = grouping.WITH_PREDICTED * KINDS


class Classes:
    """Assigns reuse classes and learns their curves. Not thread-safe.

    Args:
        remembered: number of chunks whose last use is stored.

    Attributes:
        tables: value table of each class; None: unknown.
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
        """Number of classes with a curve of their own."""
        return self._monitor.seen if self.tables is not None else 0

    def use_sidecar_curves(self, curves: ReuseCurves | None) -> None:
        """Use the sidecar's curves of its groups as priors; None: no change."""
        if curves is not None:
            self._monitor.follow(curves.epoch, grouping.priors_of(curves.hazards))

    def ended(self, chain: Sequence[Chunk], group: int, began_at: float, ended_at: float) -> list[ClassSpan]:
        """Count the reuses of an ended turn; return the class of each gap span of its chain, from the start.

        Args:
            group: predicted group; 0: no prediction.
            began_at, ended_at: seconds since the epoch. The end counts as no earlier than that of turns counted before.
        """
        blocks = [chunk.block for chunk in chain]
        gap_spans = self._monitor.admitted(blocks, began_at)
        first = first_class(grouping.predicted(group) if group else grouping.group_of(gap_spans, len(chain[0].tokens)), 0)
        self._at = max(self._at, ended_at)
        self._monitor.finished(blocks, _watched(gap_spans), first, self._at)
        return [ClassSpan(end, first + gap) for end, gap in gap_spans]

    def refit(self, now: float) -> Generator[None, None, None]:
        """Fit the curves in steps of well under a millisecond. Between the steps no turn may be counted."""
        self.tables = yield from self._monitor.fitting(now)


def _watched(gap_spans: Sequence[GapSpan]) -> list[GapSpan]:
    """Return the gap spans, the new one shortened to its first chunk: the monitor watches the last chunk of a gap span."""
    if gap_spans[-1].gap:
        return list(gap_spans)
    start = gap_spans[-2].end if len(gap_spans) > 1 else 0
    return [*gap_spans[:-1], GapSpan(start + 1, 0)]
