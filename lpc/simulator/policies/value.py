"""Eviction by retention value at the block's age, with the modules that run inside an engine (`eviction_client`).

`reuse` makes groups of requests as an engine without a sidecar does. Only the groups of `value` are the simulator's: it takes
them from the sidecar's model, which learns from the first request on. Refits run at once, not in the background.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Final

from eviction_client import grouping
from eviction_client.ghost import Freed, Ghosts
from eviction_client.reuse import KINDS, ReuseMonitor, Stretch, first_class
from eviction_client.value_queue import ValueQueue
from lpc.model.returns.groups import GROUPS, CurveGroups
from lpc.simulator.blocks import EDGE, Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.segments import Path, Segment
from lpc.simulator.sidecar import curves_of
from lpc.simulator.workload import Turn, Workload

REFIT_S: Final = 30.0
REMEMBERED: Final = 4
"""Blocks whose last use is remembered, in caches."""


@register
class Reuse(Policy[Piece]):
    """What an engine does without a sidecar: classes by gap and by the length of what is new, curves from its own reuse."""

    name = "reuse"
    rule = "the lowest retention value at the block's age, or least recently used while that hits more; no sidecar"
    source = "this project: eviction_client.reuse, eviction_client.value_queue; Gittins 1979"
    groups: ClassVar[int] = grouping.GROUPS
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._now = 0.0
        classes = self.groups * KINDS
        self.monitor = _Monitor(self.groups, remembered=REMEMBERED * capacity)
        self.ghosts: Ghosts[int] = Ghosts(capacity, classes, _all, clock=self._clock)
        self.queue: ValueQueue[Piece] = ValueQueue(Piece(EDGE, 0, 0), Piece(EDGE, 0, 0), classes, clock=self._clock)
        self.queue.value_enabled = not settings.guard
        self._fitted_at = -math.inf
        self._stretches: dict[Turn, list[Stretch]] = {}
        self._first_class: dict[Turn, int] = {}
        """Of blocks that a turn has used for the first time, by turn."""
        self._reply_ends = grouping.ReplyEnds()
        self._followed: dict[Segment, tuple[int, ...]] = {}

    def group(self, turn: Turn) -> int:
        """Return the group of a turn whose stretches are known."""
        prompt = self._prompt(turn)
        stretches = [Stretch(prompt[end - 1].depth + prompt[end - 1].size, gap) for end, gap in self._stretches[turn]]
        return grouping.group_of(stretches, self.workload.block_tokens)

    def priors(self) -> Mapping[int, Sequence[float]]:
        """Return the predicted hazards by group."""
        return {}

    def start(self, turn: Turn, now: float) -> None:
        """Count reuses; find the turn's stretches; refit when it is time.

        A use is when a request takes its blocks, not when it joins the queue for them: blocks that were looked for and are
        still waited for would seem to have missed their time, and go just before they are hit.
        """
        self._now = now
        self._stretches[turn] = self.monitor.admitted(self._prompt(turn), now)
        if now - self._fitted_at >= REFIT_S:
            self._fitted_at = now
            self.monitor.priors = dict(self.priors())
            tables = self.monitor.fit(now)
            self.queue.set_tables(tables)
            self.ghosts.set_tables(tables)

    def finish(self, turn: Turn, now: float) -> None:
        """Note the last use; let the ghost caches decide which rule orders. A turn without a start starts now."""
        self._now = now
        if turn not in self._stretches:
            self.start(turn, now)
        prompt = self._prompt(turn)
        self._first_class[turn] = first_class(self.group(turn), self._reply_ends.number(turn.reply_end or None))
        self.monitor.finished(prompt, self._stretches[turn], self._first_class[turn], now)
        if self.settings.guard:
            path = self.path(turn)
            freed = [Freed(self._follow(path[start:end]), number) for start, end, number in self._runs(turn, len(path))]
            self.queue.value_enabled = self.ghosts.observe(self._follow(prompt), freed)

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Put each stretch of blocks into its class."""
        self._now = now
        path = self.path(turn)
        at, parts = 0, []
        for start, _, number in reversed(self._runs(turn, len(path))):
            begin, depth = at, path[start].depth
            while at < len(pieces) and pieces[at].depth >= depth:
                at += 1
            parts.append((pieces[begin:at], number))
        self.queue.insert_chain(parts, now)
        del self._stretches[turn], self._first_class[turn]

    def touch(self, piece: Piece, now: float) -> None:
        """Take the piece out of the queue."""
        self.queue.remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up what the rule in force gives up."""
        self._now = now
        out: list[Chunk] = []
        while count:
            piece = self.queue.first()
            if piece.size <= count:
                self.queue.remove(piece)
            chunk = piece.give_up(count)
            count -= len(chunk)
            out.append(chunk)
        return out

    def _prompt(self, turn: Turn) -> Path:
        """Return the segments of a turn's prompt."""
        path, end = self.path(turn), len(turn.contents)
        while path and path[-1].depth >= end:
            path = path[:-1]
        return path

    def _follow(self, path: Path) -> list[int]:
        """Return the blocks of segments that the ghost caches follow."""
        followed, every = self._followed, self.ghosts.every
        out: list[int] = []
        for segment in path:
            chosen = followed.get(segment)
            if chosen is None:
                chosen = followed[segment] = tuple(content for content in segment.contents if _sampled(content, every))
            out += chosen
        return out

    def _runs(self, turn: Turn, segments: int) -> list[tuple[int, int, int]]:
        """Return (start, end, reuse class) of a turn's stretches, in segments; its reply belongs to the last."""
        first = self._first_class[turn]
        runs, start = [], 0
        for end, gap in self._stretches[turn]:
            runs.append((start, end, first + gap))
            start = end
        if not runs:
            return [(0, segments, first)] if segments else []
        start, _, number = runs[-1]
        runs[-1] = start, max(segments, start), number
        return runs

    def _clock(self) -> float:
        return self._now


@register
class Value(Reuse):
    """The same with the sidecar's groups and curves as prior."""

    name = "value"
    rule = "the lowest retention value at the block's age, or least recently used while that hits more"
    source = "this project: as reuse, with groups and prior from lpc/model/returns, which learns from the first request on"
    uses_predictor = True
    groups: ClassVar[int] = GROUPS

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._curves = curves_of(workload)
        self._clusters = CurveGroups()

    def group(self, turn: Turn) -> int:
        """Return the group of the turn's predicted curve; 0 without one."""
        known = self._curves.get(turn)
        if known is None:
            return 0
        # An adversary's curve: whoever returns is said not to, and the reverse.
        curve = 1.0 - known.curve[::-1] if self.settings.invert else known.curve
        return int(self._clusters.join(curve[None, :], self._now)[0])

    def priors(self) -> Mapping[int, Sequence[float]]:
        """Return the hazards of the groups' curves."""
        return dict(enumerate(self._clusters.snapshot().hazards.tolist(), 1))


class _Monitor(ReuseMonitor):
    """A monitor of segments, whose blocks are used together: it remembers as many as have so many blocks."""

    def __init__(self, groups: int, *, remembered: int) -> None:
        super().__init__(groups, remembered=remembered)
        self._blocks = 0

    def note_use(self, prompt: Sequence[Hashable], now: float) -> None:
        """Note the last use of a prompt's segments; forget the ones used longest ago."""
        last_use = self._last_use
        for segment in prompt:
            if last_use.pop(segment, None) is None:
                self._blocks += _size(segment)
            last_use[segment] = now
        while self._blocks > self._remembered:
            oldest = next(iter(last_use))
            del last_use[oldest]
            self._blocks -= _size(oldest)


def _size(segment: Hashable) -> int:
    assert isinstance(segment, Segment)
    return segment.size


def _all(content: int, every: int) -> bool:
    del content, every
    return True  # the blocks that are not followed have been left out


def _sampled(content: int, every: int) -> bool:
    # Content ids are consecutive: mixed by a multiplicative hash (Knuth 1973, section 6.4).
    return not (content * 2654435761 >> 7) % every
