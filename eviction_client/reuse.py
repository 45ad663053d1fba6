"""Reuse classes and curves, learned from what this engine's own prompts use again.

A block's reuse class has three parts: a group of requests that are alike (from the sidecar, or `eviction_client.grouping`), how
the reply ended (a tool call is answered in seconds, a turn's end when the user has read it), and the *gap* between the block's
last two uses. A prompt falls into stretches of equal gap: a system prompt that was used two seconds ago, the conversation's
history that was used two minutes ago, and what is new. The gap needs no identity, so it also finds prompts that repeat without
one: evaluation suites, retries, documents, few-shot templates. It is remembered beyond eviction; a gap that ended at eviction
would depend on the policy.

For each stretch of a finished request the monitor watches the deepest block. If a later prompt contains a watched block,
from any conversation, that is a reuse at the block's age. Blocks that still wait count for the ages that they have reached
(censoring; Kaplan and Meier 1958). The hazard of an interval is (reuses + M x prior) / (at risk + M). The prior of a
class is the curve that the sidecar predicts for its group, or the curve over all groups with its gap and reply end. A wrong
prediction is only a bad way of grouping: the class has its own curve after minutes.

Measured on the Mooncake conversation trace, hit rate in %, no sidecar, no guard, caches of 2, 5 and 8% of the working set: LRU
7.9 20.5 26.8, gap classes 14.6 22.0 28.3, classes by "shared with another conversation" instead 11.2 20.7 26.9. On the
generated workload `loop` at 2, 8 and 20%: LRU 20.8 32.2 62.7, gap classes 25.8 54.5 71.3, shared or not 22.5 20.5 56.1. There a
suite's instructions, used every two seconds, had the curve of its prompts, used every eight minutes.

Pure Python: this runs inside the engine's process, in the background.
"""

from bisect import bisect_right
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from eviction_client.curve import EDGES, HORIZON_S, INTERVALS, interval_of, values

GAPS: Final = (10.0, 60.0, 300.0, 1200.0)
"""Bounds of the gap classes, seconds. A block used for the first time has a class of its own."""
GAP_CLASSES: Final = len(GAPS) + 2
REPLY_ENDS: Final = 4
"""Ways in which replies end that have classes of their own; 0 stands for all others."""
KINDS: Final = REPLY_ENDS * GAP_CLASSES
"""Reuse classes of a group."""
PRIOR_WEIGHT: Final = 100.0
"""Blocks at risk that the prior counts for, in each interval."""
HALF_LIFE_S: Final = 1800.0
"""After so long what was counted weighs half."""
FEWEST_REUSES: Final = 30
"""Before so many reuses no curve is known, and the order is least recent use."""
FEWEST_BELIEVED: Final = 10.0
"""Reuses in an interval for its rate to be believed. Beyond the last such interval the rate falls as 1 / age."""

Counts = list[float]
"""By interval of age."""


class Stretch(NamedTuple):
    """Blocks of a prompt with like gaps: up to and without the block at depth ``end``."""

    end: int
    gap: int


GIVEN_UP_PER_STEP: Final = 500
"""Blocks that one step of a fit stops watching, about a third of a millisecond."""


def first_class(group: int, reply_end: int = 0) -> int:
    """Return the class of blocks that were used for the first time; that of others is this plus the gap's number."""
    return group * KINDS + reply_end * GAP_CLASSES


class Watch:
    """Blocks of one class that wait, with their last use, in its order. ``number``: the class that they count for."""

    __slots__ = ("blocks", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks: dict[Hashable, float] = {}


class ReuseMonitor:
    """Finds stretches, watches blocks, and fits one curve per class. Not thread-safe.

    Args:
        groups: of requests, numbered from 0.
        remembered: blocks whose last use is remembered. The ones used longest ago are forgotten first.

    Attributes:
        priors: hazards [INTERVALS] by group, where the sidecar has predicted any.
        curves: hazards [INTERVALS] by class, as of the latest fit.
        reused: reuses counted so far.
        seen: classes with a curve of their own, as of the latest fit.
    """

    def __init__(self, groups: int, *, remembered: int, prior_weight: float = PRIOR_WEIGHT) -> None:
        self.priors: Mapping[int, Sequence[float]] = {}
        self.curves: Sequence[Sequence[float]] = ()
        self.reused = self.seen = 0
        self.classes = groups * KINDS
        self._remembered = remembered
        self._weight = prior_weight
        self._last_use: dict[Hashable, float] = {}
        """In the order of last use."""
        self._watch_of: dict[Hashable, Watch] = {}
        self._watches = [Watch(number) for number in range(self.classes)]
        """By class; then those of earlier numberings of the groups."""
        self._reuses: dict[int, Counts] = {}
        self._at_risk: dict[int, Counts] = {}
        """Of blocks that do not wait any more."""
        self._fitted_at: float | None = None
        self._epoch: str | None = None

    def follow(self, epoch: str, priors: Mapping[int, Sequence[float]]) -> None:
        """Take the sidecar's predictions by group. ``epoch``: names the numbering of its groups; another one means others."""
        self.priors = priors
        if epoch != self._epoch:
            if self._epoch is not None:
                self.renumber()
            self._epoch = epoch

    def admitted(self, prompt: Sequence[Hashable], now: float) -> list[Stretch]:
        """Count the reuses in a prompt that arrives; return its stretches of like gap, from its start."""
        watch_of = self._watch_of
        for block in prompt:
            watch = watch_of.pop(block, None)
            if watch is not None:
                self._reused(watch.number, now - watch.blocks.pop(block))
        last_use = self._last_use
        stretches: list[Stretch] = []
        for depth, block in enumerate(prompt, 1):
            used = last_use.get(block)
            gap = 0 if used is None else 1 + bisect_right(GAPS, now - used)
            if stretches and stretches[-1].gap == gap:
                stretches[-1] = Stretch(depth, gap)
            else:
                stretches.append(Stretch(depth, gap))
        return stretches

    def finished(self, prompt: Sequence[Hashable], stretches: Iterable[Stretch], first: int, now: float) -> None:
        """Note a request's last use of its blocks, and watch the deepest block of each stretch.

        Args:
            first: as of :func:`first_class`.
            now: seconds; never goes back.
        """
        self.note_use(prompt, now)
        for end, gap in stretches:
            self._watch(prompt[end - 1], first + gap, now)

    def note_use(self, prompt: Sequence[Hashable], now: float) -> None:
        """Note the last use of blocks; forget the ones used longest ago beyond as many as are remembered."""
        last_use = self._last_use
        for block in prompt:
            last_use.pop(block, None)
            last_use[block] = now
        while len(last_use) > self._remembered:
            del last_use[next(iter(last_use))]

    def renumber(self) -> None:
        """The groups have new numbers: go on counting without them what was counted until now."""
        for counts in (self._reuses, self._at_risk):
            by_kind: dict[int, Counts] = {}
            for number, of_class in counts.items():
                other = self._ungrouped(number)
                by_kind[other] = _sum((by_kind[other], of_class)) if other in by_kind else of_class
            counts.clear()
            counts.update(by_kind)
        for watch in self._watches:
            watch.number = self._ungrouped(watch.number)
        self._watches = [Watch(number) for number in range(self.classes)] + [w for w in self._watches if w.blocks]

    def fit(self, now: float) -> list[list[float]] | None:
        """Return the values at `eviction_client.curve.KNOTS` of all classes; None before enough was seen."""
        steps = self.fitting(now)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                tables: list[list[float]] | None = end.value
                return tables

    def fitting(self, now: float) -> Generator[None, None, list[list[float]] | None]:
        """As :meth:`fit`, in steps of well under a millisecond. Nothing may be counted between them."""
        if self._fitted_at is not None:
            keep = 0.5 ** ((now - self._fitted_at) / HALF_LIFE_S)
            for counts in (self._reuses, self._at_risk):
                for number, of_class in counts.items():
                    counts[number] = [count * keep for count in of_class]
                    yield
        self._fitted_at = now
        yield from self._give_up(now)
        nothing = [0.0] * INTERVALS
        reuses: dict[int, Counts] = dict(self._reuses)
        at_risk: dict[int, Counts] = dict(self._at_risk)
        for watch in self._watches:
            if watch.blocks:
                at_risk[watch.number] = _sum((at_risk.get(watch.number, nothing), _waiting(watch, now)))
                yield
        every = nothing, nothing
        of_kind = [(nothing, nothing) for _ in range(KINDS)]
        for number, risk in at_risk.items():
            counted = reuses.get(number, nothing), risk
            kind = number % KINDS
            every = _sum((every[0], counted[0])), _sum((every[1], counted[1]))
            of_kind[kind] = _sum((of_kind[kind][0], counted[0])), _sum((of_kind[kind][1], counted[1]))
            yield
        if sum(every[0]) < FEWEST_REUSES:
            return None
        base = with_tail([(e + 0.01) / (n + 0.5) for e, n in zip(*every, strict=True)], *every)
        of_gap = [(nothing, nothing) for _ in range(GAP_CLASSES)]
        for kind, counted in enumerate(of_kind):
            gap = kind % GAP_CLASSES
            of_gap[gap] = _sum((of_gap[gap][0], counted[0])), _sum((of_gap[gap][1], counted[1]))
        by_gap = [self._blend(*counted, base) for counted in of_gap]
        yield
        by_kind, unseen = [], []
        for kind, counted in enumerate(of_kind):
            by_kind.append(self._blend(*counted, by_gap[kind % GAP_CLASSES]))
            unseen.append(values(by_kind[kind]))
            yield
        tables, curves = [], []
        self.seen = sum(number < self.classes for number in at_risk)
        for group in range(self.classes // KINDS):
            prior = self.priors.get(group)
            predicted = None if prior is None else values(prior)
            for kind in range(KINDS):
                number = group * KINDS + kind
                if number not in at_risk:
                    tables.append(predicted or unseen[kind])
                    curves.append(prior or by_kind[kind])
                    continue
                blended = self._blend(reuses.get(number, nothing), at_risk[number], prior or by_kind[kind])
                tables.append(values(blended))
                curves.append(blended)
                yield
        self.curves = curves
        return tables

    def _ungrouped(self, number: int) -> int:
        """Return the class that counts, beyond all others, for the gap and the reply end of a class."""
        return self.classes + number % KINDS

    def _watch(self, block: Hashable, number: int, now: float) -> None:
        before = self._watch_of.pop(block, None)
        if before is not None:
            del before.blocks[block]
        self._watch_of[block] = watch = self._watches[number]
        watch.blocks[block] = now

    def _reused(self, number: int, age: float) -> None:
        self.reused += 1
        place = interval_of(age)
        self._reuses.setdefault(number, [0.0] * INTERVALS)[place] += 1.0
        at_risk = self._at_risk.setdefault(number, [0.0] * INTERVALS)
        for i in range(place + 1):
            at_risk[i] += 1.0

    def _give_up(self, now: float) -> Generator[None, None, None]:
        """Stop watching blocks beyond the horizon: nobody used them."""
        for watch in self._watches:
            blocks, lost = watch.blocks, 0
            while blocks:
                block, last_use = next(iter(blocks.items()))
                if now - last_use < HORIZON_S:
                    break
                del blocks[block], self._watch_of[block]
                lost += 1
                if not lost % GIVEN_UP_PER_STEP:
                    yield
            if lost:
                at_risk = self._at_risk.get(watch.number, [0.0] * INTERVALS)
                self._at_risk[watch.number] = [count + lost for count in at_risk]
        self._watches[self.classes :] = [watch for watch in self._watches[self.classes :] if watch.blocks]

    def _blend(self, reuses: Counts, at_risk: Counts, prior: Sequence[float]) -> Counts:
        m = self._weight
        return [(e + m * p) / (n + m) for e, n, p in zip(reuses, at_risk, prior, strict=True)]


def _waiting(watch: Watch, now: float) -> Counts:
    """Return the blocks that still wait, by the intervals that they have reached."""
    last_uses = list(watch.blocks.values())
    reached = [bisect_right(last_uses, now - edge) for edge in EDGES]
    # A block whose age lies within an interval counts for half of it.
    return [0.5 * (begun + over) for begun, over in pairwise(reached)]


def with_tail(hazards: Sequence[float], reuses: Counts, at_risk: Counts) -> Counts:
    """Return hazards whose rate falls as 1 / age beyond the last interval with enough reuses.

    There a hazard is at most what one more reuse would make it: many blocks at risk and hardly a reuse is knowledge.
    """
    last = max((place for place, count in enumerate(reuses) if count >= FEWEST_BELIEVED), default=0)
    middles = [(low + high) / 2 for low, high in pairwise(EDGES)]
    widths = [high - low for low, high in pairwise(EDGES)]
    rate = hazards[last] / widths[last]
    tail = [
        min(rate * middles[last] / middles[place] * widths[place], (reuses[place] + 1.0) / (at_risk[place] + 1.0))
        for place in range(last + 1, INTERVALS)
    ]
    return [*hazards[: last + 1], *tail]


def _sum(rows: Iterable[Counts]) -> Counts:
    total = [0.0] * INTERVALS
    for row in rows:
        total = [a + b for a, b in zip(total, row, strict=True)]
    return total
