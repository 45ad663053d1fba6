"""Eviction by retention value at the block's age, with the modules that run inside an engine (`eviction_client`).

`reuse` makes groups of requests as an engine without a sidecar does. Only the groups of `value` are the simulator's: it takes
them from the sidecar's model, which learns from the first request on. Refits run at once, not in the background.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from eviction_client import grouping
from eviction_client.ghost import Freed, Ghosts
from eviction_client.reuse import GAP_CLASSES, ReuseMonitor, Stretch
from eviction_client.value_queue import ValueQueue
from lpc.model.returns.groups import GROUPS, CurveGroups
from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.sidecar import curves_of
from lpc.simulator.workload import Turn, Workload

REFIT_S: Final = 30.0
REMEMBERED: Final = 4
"""Blocks whose last use is remembered, in caches."""


@register
class Reuse(Policy[CachedBlock]):
    """What an engine does without a sidecar: classes by gap and by the length of what is new, curves from its own reuse."""

    name = "reuse"
    rule = "the lowest retention value at the block's age, or least recently used while that hits more; no sidecar"
    source = "this project: eviction_client.reuse, eviction_client.value_queue; Gittins 1979"
    groups: ClassVar[int] = grouping.GROUPS

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.block_type = self._block
        self._now = 0.0
        classes = self.groups * GAP_CLASSES
        self.monitor = ReuseMonitor(self.groups, remembered=REMEMBERED * capacity)
        self.ghosts: Ghosts[int] = Ghosts(capacity, classes, _sampled, clock=self._clock)
        self.queue: ValueQueue[CachedBlock] = ValueQueue(CachedBlock(-1, 0), CachedBlock(-1, 0), classes, clock=self._clock)
        self.queue.value_enabled = not settings.guard
        self._fitted_at = -math.inf
        self._stretches: dict[Turn, list[Stretch]] = {}
        self._group_of: dict[Turn, int] = {}
        self._numbers: list[int] = []
        self._blocks = 0

    def group(self, turn: Turn) -> int:
        """Return the group of a turn whose stretches are known."""
        return grouping.group_of(self._stretches[turn], self.workload.block_tokens)

    def priors(self) -> Mapping[int, Sequence[float]]:
        """Return the predicted hazards by group."""
        return {}

    def start(self, turn: Turn, now: float) -> None:
        """Count reuses; find the turn's stretches and group; refit when it is time.

        A use is when a request takes its blocks, not when it joins the queue for them: blocks that were looked for and are
        still waited for would seem to have missed their time, and go just before they are hit.
        """
        self._now = now
        self._stretches[turn] = self.monitor.admitted(turn.contents, now)
        self._group_of[turn] = self.group(turn)
        if now - self._fitted_at >= REFIT_S:
            self._fitted_at = now
            self.monitor.priors = dict(self.priors())
            tables = self.monitor.fit(now)
            self.queue.set_tables(tables)
            self.ghosts.set_tables(tables)

    def finish(self, contents: Sequence[int], turn: Turn, now: float) -> None:
        """Note the last use; let the ghost caches decide which rule orders. A turn without a start starts now."""
        self._now = now
        if turn not in self._stretches:
            self.start(turn, now)
        self.monitor.finished(turn.contents, self._stretches[turn], self._group_of[turn], now)
        if self.settings.guard:
            freed = [Freed(contents[start:end], number) for start, end, number in self._runs(turn, len(contents))]
            self.queue.value_enabled = self.ghosts.observe(turn.contents, freed)

    def free(self, blocks: Sequence[CachedBlock], turn: Turn, now: float) -> None:
        """Put each stretch of blocks into its class."""
        self._now = now
        at, parts = 0, []
        for start, _, number in reversed(self._runs(turn, blocks[0].depth + 1)):
            begin = at
            while at < len(blocks) and blocks[at].depth >= start:
                at += 1
            parts.append((blocks[begin:at], number))
        self.queue.insert_chain(parts, now)
        del self._stretches[turn], self._group_of[turn]

    def touch(self, block: CachedBlock, now: float) -> None:
        """Take the block out of the queue."""
        self.queue.remove(block)

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Give up what the rule in force gives up."""
        self._now = now
        gone = self.queue.popleft_n(count)
        self._numbers += [block.block_id for block in gone]
        return gone

    def _runs(self, turn: Turn, blocks: int) -> list[tuple[int, int, int]]:
        """Return (start, end, reuse class) of a turn's stretches; its reply belongs to the last."""
        first = self._group_of[turn] * GAP_CLASSES
        runs, start = [], 0
        for end, gap in self._stretches[turn]:
            runs.append((start, end, first + gap))
            start = end
        if not runs:
            return [(0, blocks, first)]
        start, _, number = runs[-1]
        runs[-1] = start, max(blocks, start), number
        return runs

    def _block(self, content: int, depth: int) -> CachedBlock:
        """Return a block numbered as an engine numbers its blocks: from 0, used again when one is evicted."""
        block = CachedBlock(content, depth)
        if self._numbers:
            block.block_id = self._numbers.pop()
        else:
            block.block_id = self._blocks
            self._blocks += 1
        return block

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


def _sampled(content: int, every: int) -> bool:
    # Content ids are consecutive: mixed by a multiplicative hash (Knuth 1973, section 6.4).
    return not (content * 2654435761 >> 7) % every
