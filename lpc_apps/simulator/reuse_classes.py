"""Reuse classes of one engine's requests, by the monitor that runs inside an engine (`eviction_client.policy.reuse_monitor`).

Refits are synchronous.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from eviction_client.policy import grouping
from eviction_client.policy.free_queue import Table
from eviction_client.policy.ghosts import Freed
from eviction_client.policy.reuse_monitor import KINDS, GapSpan, ReuseMonitor, first_class
from lpc.model.returns.groups import GROUPS, CurveGroups
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.sidecar import curves_of
from lpc_apps.simulator.workload import Turn, Workload

REFIT_S: Final = 30.0
REMEMBERED: Final = 4
"""The monitor remembers the last use of this many times the capacity, in blocks."""


class ClassSpan(NamedTuple):
    """Segments [start, end) of a path, which have one reuse class."""

    start: int
    end: int
    reuse_class: int


class ReuseClasses:
    """Reuse classes of an engine without a sidecar: by gap, new tokens and reply end; curves from its own reuse.

    Args:
        capacity: blocks of the cache.

    Attributes:
        classes: number of classes.
        tables: retention values by class; None before the first fit.
        path, prompt, runs: segments, prompt segments and classes of the request that ended last.
    """

    groups: ClassVar[int] = grouping.GROUPS

    def __init__(self, capacity: int, workload: Workload) -> None:
        self.workload = workload
        self.classes = self.groups * KINDS
        self.tables: Sequence[Table] | None = None
        self.path: Path = ()
        self.prompt: Path = ()
        self.runs: Sequence[ClassSpan] = ()
        self._monitor = _Monitor(self.groups, remembered=REMEMBERED * capacity)
        self._fitted_at = -math.inf
        self._gap_spans: dict[Turn, list[GapSpan]] = {}
        """Stretches of running requests."""
        self._reply_ends = grouping.ReplyEnds()
        self._followed: dict[tuple[Segment, int], tuple[int, ...]] = {}

    def group(self, turn: Turn, gap_spans: Sequence[GapSpan], now: float) -> int:
        """Return the group of a turn. ``gap_spans`` are in blocks."""
        del turn, now
        return grouping.group_of(gap_spans, self.workload.block_tokens)

    def priors(self) -> Mapping[int, Sequence[float]]:
        """Return the predicted hazards by group."""
        return {}

    def start(self, turn: Turn, now: float) -> None:
        """Count reuses; compute the turn's gap spans; refit if due.

        A use is the allocation of blocks, not the arrival in the queue: otherwise the blocks of a waiting request would seem
        to have missed their next use, and be evicted just before it.
        """
        self._gap_spans[turn] = self._monitor.admitted(_prompt(turn, self.workload.paths.of(turn)), now)
        if now - self._fitted_at >= REFIT_S:
            self._fitted_at = now
            self._monitor.priors = dict(self.priors())
            self.tables = self._monitor.fit(now)

    def finish(self, turn: Turn, now: float) -> None:
        """Record the last use, and the turn's path and classes. A turn that was not started starts now."""
        if turn not in self._gap_spans:
            self.start(turn, now)
        self.path = self.workload.paths.of(turn)
        self.prompt = prompt = _prompt(turn, self.path)
        gap_spans = self._gap_spans.pop(turn)
        in_blocks = [GapSpan(prompt[end - 1].depth + prompt[end - 1].size, gap) for end, gap in gap_spans]
        first = first_class(self.group(turn, in_blocks, now), self._reply_ends.number(turn.reply_end or None))
        self._monitor.finished(prompt, gap_spans, first, now)
        self.runs = _runs(gap_spans, first, len(self.path))

    def sample(self, path: Path, every: int) -> list[int]:
        """Return the blocks of segments in the ghost caches' sample of one in ``every``."""
        followed = self._followed
        out: list[int] = []
        for segment in path:
            chosen = followed.get((segment, every))
            if chosen is None:
                chosen = tuple(content for content in segment.contents if _sampled(content, every))
                followed[segment, every] = chosen
            out += chosen
        return out

    def sampled_prompt(self, turn: Turn, every: int) -> list[int]:
        """Return the sampled blocks of a turn's prompt."""
        return self.sample(_prompt(turn, self.workload.paths.of(turn)), every)

    def freed(self, every: int) -> list[Freed[int]]:
        """Return the sampled blocks that the last ended request freed, by class."""
        return [Freed(self.sample(self.path[run.start : run.end], every), run.reuse_class) for run in self.runs]


class SidecarClasses(ReuseClasses):
    """Reuse classes with the sidecar's groups, and their curves as prior.

    Args:
        invert: invert the curves, as an adversary: returning conversations are predicted to end, and the reverse.
    """

    groups: ClassVar[int] = GROUPS

    def __init__(self, capacity: int, workload: Workload, *, invert: bool = False) -> None:
        super().__init__(capacity, workload)
        self._invert = invert
        self._curves = curves_of(workload)
        self._clusters = CurveGroups()

    def group(self, turn: Turn, gap_spans: Sequence[GapSpan], now: float) -> int:
        """Return the group of the turn's predicted curve; 0 without one."""
        del gap_spans
        curve = self._curves.get(turn)
        if curve is None:
            return 0
        if self._invert:
            curve = 1.0 - curve[::-1]
        return int(self._clusters.join(curve[None, :], now)[0])

    def priors(self) -> Mapping[int, Sequence[float]]:
        """Return the hazards of the groups' curves."""
        return dict(enumerate(self._clusters.snapshot().hazards.tolist(), 1))


class _Monitor(ReuseMonitor):
    """A monitor of segments instead of blocks. ``remembered`` is the limit in blocks."""

    def __init__(self, groups: int, *, remembered: int) -> None:
        super().__init__(groups, remembered=0)
        self._remembered = remembered
        self._by_use: dict[Hashable, float] = {}
        self._last_use = self._by_use.get
        self._blocks = 0

    def note_use(self, prompt: Sequence[Hashable], now: float) -> None:
        """Record the last use of a prompt's segments; drop the least recently used ones."""
        last_use = self._by_use
        for segment in prompt:
            if last_use.pop(segment, None) is None:
                self._blocks += _size(segment)
            last_use[segment] = now
        while self._blocks > self._remembered:
            oldest = next(iter(last_use))
            del last_use[oldest]
            self._blocks -= _size(oldest)


def _prompt(turn: Turn, path: Path) -> Path:
    """Return the segments of a turn's prompt."""
    end = len(turn.contents)
    while path and path[-1].depth >= end:
        path = path[:-1]
    return path


def _runs(gap_spans: Sequence[GapSpan], first: int, segments: int) -> list[ClassSpan]:
    """Return the classes of a turn's gap spans; the last one includes the reply. ``first``: see `first_class`."""
    runs, start = [], 0
    for end, gap in gap_spans:
        runs.append(ClassSpan(start, end, first + gap))
        start = end
    if not runs:
        return [ClassSpan(0, segments, first)] if segments else []
    start, _, number = runs[-1]
    runs[-1] = ClassSpan(start, max(segments, start), number)
    return runs


def _size(segment: Hashable) -> int:
    assert isinstance(segment, Segment)
    return segment.size


def _sampled(content: int, every: int) -> bool:
    # A multiplicative hash (Knuth 1973, section 6.4), because content ids are consecutive.
    return not (content * 2654435761 >> 7) % every
