"""Reuse classes, and their reuse curves learned from this engine's own prompts.

A block's reuse class has three parts:

- a group of similar requests, from the sidecar or `eviction_client.policy.grouping`;
- how the reply ended: a tool call returns in seconds, a user only after reading;
- the *gap* between the block's last two uses.

The gap splits a prompt into gap spans: a system prompt used two seconds ago, the conversation's history used two minutes ago,
and new blocks. It needs no identity, so it also covers repeated prompts without a session: evaluation suites, retries,
documents, few-shot templates. The monitor remembers it beyond eviction, so that it does not depend on the policy.

The monitor watches the deepest block of each gap span of a finished request. A later prompt of any conversation that contains
the block counts as a reuse at the block's age. Blocks that still wait count for the ages they have reached (censoring; Kaplan
and Meier 1958). The hazard of an interval is (reuses + M x prior) / (at risk + M). The prior of a class is the sidecar's curve
for its group, or else the curve over all groups with its gap and reply end. A wrong prediction only groups badly: within
minutes the class has its own curve.

Measured on the Mooncake conversation trace, hit rate in %, no sidecar, no guard, caches of 2, 5 and 8% of the working set: LRU
7.9 20.5 26.8, gap classes 14.6 22.0 28.3, classes by "shared with another conversation" instead 11.2 20.7 26.9. On the
generated workload `loop` at 2, 8 and 20%: LRU 20.8 32.2 62.7, gap classes 25.8 54.5 71.3, shared or not 22.5 20.5 56.1. By
sharing, a suite's instructions, used every two seconds, get the curve of its prompts, used every eight minutes.

Pure Python: this runs inside the engine's process, in the background.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from eviction_client.pace import in_pieces
from eviction_client.recent import Recent
from lpc.model.curve import EDGES, HORIZON_S, INTERVALS, interval_of, values

GAPS: Final = (10.0, 60.0, 300.0, 1200.0)
"""Bounds of the gap classes, seconds. The first use of a block is a class of its own."""
GAP_CLASSES: Final = len(GAPS) + 2
REPLY_ENDS: Final = 4
"""Kinds of reply end, numbered from 0; kind 0 collects the infrequent ones."""
KINDS: Final = REPLY_ENDS * GAP_CLASSES
"""Reuse classes of a group."""
PRIOR_WEIGHT: Final = 100.0
"""Weight M of the prior, in blocks at risk per interval."""
HALF_LIFE_S: Final = 1800.0
"""Half-life of the counts."""
MIN_REUSES: Final = 30
"""Reuses needed for the first fit; until then the order is LRU."""
MIN_TRUSTED: Final = 10.0
"""Reuses that make the rate of an interval reliable. Beyond the last such interval the rate falls as 1 / age."""

Counts = list[float]
"""By interval of age."""


class GapSpan(NamedTuple):
    """Consecutive blocks of a prompt with the same gap class: from the previous span's end up to, without, depth ``end``."""

    end: int
    gap: int


EXPIRED_PER_STEP: Final = 500
"""Expired blocks that one step of a fit removes: about a third of a millisecond."""


def first_class(group: int, reply_end: int = 0) -> int:
    """Return the class of blocks used for the first time. Add the number of the gap class for other blocks."""
    return group * KINDS + reply_end * GAP_CLASSES


class Watch:
    """Watched blocks of one class, ordered by last use. ``number``: the class."""

    __slots__ = ("blocks", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks: dict[Hashable, float] = {}


class ReuseMonitor:
    """Splits prompts into gap spans, watches blocks, and fits one curve per class. Not thread-safe.

    Args:
        groups: number of request groups; they are numbered from 0.
        remembered: number of blocks whose last use is remembered. The least recently used are forgotten first.

    Attributes:
        priors: predicted hazards [INTERVALS] by group.
        curves: hazards [INTERVALS] by class, as of the latest fit.
        reused: reuses counted so far.
        seen: classes with a curve of their own, as of the latest fit.
    """

    def __init__(self, groups: int, *, remembered: int) -> None:
        self.priors: Mapping[int, Sequence[float]] = {}
        self.curves: Sequence[Sequence[float]] = ()
        self.reused = self.seen = 0
        self.classes = groups * KINDS
        self._last_uses: Recent[Hashable, float] = Recent(remembered)
        self._last_use: Callable[[Hashable], float | None] = self._last_uses.get
        self._watch_of: dict[Hashable, Watch] = {}
        self._watches = [Watch(number) for number in range(self.classes)]
        """One per class; then those of earlier group numberings that still hold blocks."""
        self._reuses: dict[int, Counts] = {}
        self._at_risk: dict[int, Counts] = {}
        """Of blocks that were reused or have expired."""
        self._fitted_at: float | None = None
        self._epoch: str | None = None

    def follow(self, epoch: str, priors: Mapping[int, Sequence[float]]) -> None:
        """Set the predicted hazards by group. ``epoch``: identifies the numbering; a new one renumbers the groups."""
        self.priors = priors
        if epoch != self._epoch:
            if self._epoch is not None:
                self.renumber()
            self._epoch = epoch

    def admitted(self, prompt: Sequence[Hashable], now: float) -> list[GapSpan]:
        """Count the reuses in an arriving prompt; return its gap spans, from its start."""
        watch_of = self._watch_of
        last_use = self._last_use
        gap_spans: list[GapSpan] = []
        depth, gap = 0, -1
        for piece in in_pieces(prompt):
            for block in piece:
                watch = watch_of.pop(block, None)
                if watch is not None:
                    self._reused(watch.number, now - watch.blocks.pop(block))
                used = last_use(block)
                before, gap = gap, 0 if used is None else 1 + bisect_right(GAPS, now - used)
                if depth and gap != before:
                    gap_spans.append(GapSpan(depth, before))
                depth += 1
        if depth:
            gap_spans.append(GapSpan(depth, gap))
        return gap_spans

    def finished(self, prompt: Sequence[Hashable], gap_spans: Iterable[GapSpan], first: int, now: float) -> None:
        """Record a finished request's use of its blocks, and watch the deepest block of each gap span.

        Args:
            first: the request's :func:`first_class`.
            now: seconds; never goes back.
        """
        self.note_use(prompt, now)
        for end, gap in gap_spans:
            self._watch(prompt[end - 1], first + gap, now)

    def note_use(self, prompt: Sequence[Hashable], now: float) -> None:
        """Record the last use of blocks, and forget the least recently used beyond the bound."""
        put = self._last_uses.put
        for piece in in_pieces(prompt):
            for block in piece:
                put(block, now)

    def renumber(self) -> None:
        """Merge the counts of all groups, since the groups get new numbers: only gap and reply end remain."""
        for counts in (self._reuses, self._at_risk):
            by_kind: dict[int, Counts] = {}
            for number, of_class in counts.items():
                other = self._ungrouped(number)
                by_kind[other] = _sum(by_kind[other], of_class) if other in by_kind else of_class
            counts.clear()
            counts.update(by_kind)
        for watch in self._watches:
            watch.number = self._ungrouped(watch.number)
        self._watches = [Watch(number) for number in range(self.classes)] + [w for w in self._watches if w.blocks]

    def fit(self, now: float) -> list[list[float]] | None:
        """Return the values of all classes at `lpc.model.curve.KNOTS`; None before MIN_REUSES reuses."""
        steps = self.fitting(now)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                tables: list[list[float]] | None = end.value
                return tables

    def fitting(self, now: float) -> Generator[None, None, list[list[float]] | None]:
        """Like :meth:`fit`, in steps of well under a millisecond. Call no other method between them."""
        if self._fitted_at is not None:
            keep = 0.5 ** ((now - self._fitted_at) / HALF_LIFE_S)
            for counts in (self._reuses, self._at_risk):
                for number, of_class in counts.items():
                    counts[number] = [count * keep for count in of_class]
                    yield
        self._fitted_at = now
        yield from self._expire(now)
        nothing = [0.0] * INTERVALS
        reuses: dict[int, Counts] = dict(self._reuses)
        at_risk: dict[int, Counts] = dict(self._at_risk)
        for watch in self._watches:
            if watch.blocks:
                at_risk[watch.number] = _sum(at_risk.get(watch.number, nothing), _waiting(watch, now))
                yield
        every = nothing, nothing
        of_kind = [(nothing, nothing) for _ in range(KINDS)]
        for number, risk in at_risk.items():
            counted = reuses.get(number, nothing), risk
            kind = number % KINDS
            every = _sum(every[0], counted[0]), _sum(every[1], counted[1])
            of_kind[kind] = _sum(of_kind[kind][0], counted[0]), _sum(of_kind[kind][1], counted[1])
            yield
        if sum(every[0]) < MIN_REUSES:
            return None
        base = with_tail([(e + 0.01) / (n + 0.5) for e, n in zip(*every, strict=True)], *every)
        of_gap = [(nothing, nothing) for _ in range(GAP_CLASSES)]
        for kind, counted in enumerate(of_kind):
            gap = kind % GAP_CLASSES
            of_gap[gap] = _sum(of_gap[gap][0], counted[0]), _sum(of_gap[gap][1], counted[1])
        by_gap = [_blend(*counted, base) for counted in of_gap]
        yield
        by_kind, unseen = [], []
        for kind, counted in enumerate(of_kind):
            by_kind.append(_blend(*counted, by_gap[kind % GAP_CLASSES]))
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
                blended = _blend(reuses.get(number, nothing), at_risk[number], prior or by_kind[kind])
                tables.append(values(blended))
                curves.append(blended)
                yield
        self.curves = curves
        return tables

    def _ungrouped(self, number: int) -> int:
        """Return the number, above all classes, that collects a class's gap and reply end over all groups."""
        return self.classes + number % KINDS

    def _watch(self, block: Hashable, number: int, now: float) -> None:
        before = self._watch_of.pop(block, None)
        if before is not None:
            del before.blocks[block]
        self._watch_of[block] = watch = self._watches[number]
        watch.blocks[block] = now

    def _reused(self, number: int, age: float) -> None:
        self.reused += 1
        interval = interval_of(age)
        self._reuses.setdefault(number, [0.0] * INTERVALS)[interval] += 1.0
        at_risk = self._at_risk.setdefault(number, [0.0] * INTERVALS)
        for i in range(interval + 1):
            at_risk[i] += 1.0

    def _expire(self, now: float) -> Generator[None, None, None]:
        """Stop watching blocks older than the horizon: they were not reused."""
        for watch in self._watches:
            blocks, expired = watch.blocks, 0
            while blocks:
                block, last_use = next(iter(blocks.items()))
                if now - last_use < HORIZON_S:
                    break
                del blocks[block], self._watch_of[block]
                expired += 1
                if not expired % EXPIRED_PER_STEP:
                    yield
            if expired:
                at_risk = self._at_risk.get(watch.number, [0.0] * INTERVALS)
                self._at_risk[watch.number] = [count + expired for count in at_risk]
        self._watches[self.classes :] = [watch for watch in self._watches[self.classes :] if watch.blocks]


def _blend(reuses: Counts, at_risk: Counts, prior: Sequence[float]) -> Counts:
    m = PRIOR_WEIGHT
    return [(e + m * p) / (n + m) for e, n, p in zip(reuses, at_risk, prior, strict=True)]


def _waiting(watch: Watch, now: float) -> Counts:
    """Return how many watched blocks have reached each interval."""
    last_uses = list(watch.blocks.values())
    reached = [bisect_right(last_uses, now - edge) for edge in EDGES]
    # A block whose age is within an interval counts half in it.
    return [0.5 * (begun + over) for begun, over in pairwise(reached)]


def with_tail(hazards: Sequence[float], reuses: Counts, at_risk: Counts) -> Counts:
    """Return hazards whose rate falls as 1 / age beyond the last interval with enough reuses.

    There a hazard is at most (reuses + 1) / (at risk + 1): many blocks at risk with hardly a reuse are evidence.
    """
    last = max((interval for interval, count in enumerate(reuses) if count >= MIN_TRUSTED), default=0)
    middles = [(low + high) / 2 for low, high in pairwise(EDGES)]
    widths = [high - low for low, high in pairwise(EDGES)]
    rate = hazards[last] / widths[last]
    tail = [
        min(rate * middles[last] / middles[i] * widths[i], (reuses[i] + 1.0) / (at_risk[i] + 1.0))
        for i in range(last + 1, INTERVALS)
    ]
    return [*hazards[: last + 1], *tail]


def _sum(one: Counts, other: Counts) -> Counts:
    return [a + b for a, b in zip(one, other, strict=True)]
