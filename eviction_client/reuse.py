"""Reuse classes and curves, learned from what this engine's own prompts use again.

A block's reuse class is a pair: a group of requests that are alike (from the sidecar, or one group for all), and the *gap*
between the block's last two uses. A prompt falls into stretches of equal gap: a system prompt that was used two seconds ago,
the conversation's history that was used two minutes ago, and what is new. The gap needs no identity, so it also finds prompts
that repeat without one: evaluation suites, retries, documents, few-shot templates. It is remembered beyond eviction; a gap that
ended at eviction would depend on the policy.

For each stretch of a finished request the monitor watches the deepest block. If a later prompt contains a watched block,
whoever sends it, that is a reuse at the age that the block then has. Blocks that still wait count for the ages that they have
reached (censoring; Kaplan and Meier 1958). The hazard of an interval is (reuses + M x prior) / (at risk + M). The prior of a
class is the curve that the sidecar predicts for its group, or the curve over all classes with its gap. So a wrong prediction is
only a bad way of grouping: the class has its own curve after minutes.

Measured on the Mooncake conversation trace, hit rate in %, no sidecar, no guard, caches of 2, 5 and 8% of the working set: LRU
7.9 20.5 26.8, gap classes 14.6 22.0 28.3, classes by "shared with another conversation" instead 11.2 20.7 26.9. On the
generated workload `loop` at 2, 8 and 20%: LRU 20.8 32.2 62.7, gap classes 25.8 54.5 71.3, shared or not 22.5 20.5 56.1. There a
suite's instructions, used every two seconds, had the curve of its prompts, used every eight minutes.

Pure Python: this runs inside the engine's process, in the background.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from eviction_client.curve import EDGES, HORIZON_S, INTERVALS, interval_of, values

GAPS: Final = (10.0, 60.0, 300.0, 1200.0)
"""Bounds of the gap classes, seconds. A block used for the first time has a class of its own."""
GAP_CLASSES: Final = len(GAPS) + 2
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


class ReuseMonitor:
    """Finds stretches, watches blocks, and fits one curve per class. Not thread-safe.

    Args:
        groups: of requests, numbered from 0.
        remembered: blocks whose last use is remembered. The ones used longest ago are forgotten first.

    Attributes:
        priors: hazards [INTERVALS] by group, where the sidecar has predicted any.
    """

    def __init__(self, groups: int, *, remembered: int, prior_weight: float = PRIOR_WEIGHT) -> None:
        self.priors: dict[int, Sequence[float]] = {}
        self.classes = groups * GAP_CLASSES
        self._remembered = remembered
        self._weight = prior_weight
        self._last_use: dict[Hashable, float] = {}
        """In the order of last use."""
        self._class_of: dict[Hashable, int] = {}
        self._watched: list[dict[Hashable, float]] = [{} for _ in range(self.classes)]
        """By class the blocks that wait, with their last use, in its order."""
        self._reuses: dict[int, Counts] = {}
        self._at_risk: dict[int, Counts] = {}
        """Of blocks that do not wait any more."""
        self._fitted_at: float | None = None

    def admitted(self, prompt: Sequence[Hashable], now: float) -> list[Stretch]:
        """Count the reuses in a prompt that arrives; return its stretches of like gap, from its start."""
        class_of = self._class_of
        for block in prompt:
            number = class_of.pop(block, None)
            if number is not None:
                self._reused(number, now - self._watched[number].pop(block))
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

    def finished(self, prompt: Sequence[Hashable], stretches: Iterable[Stretch], group: int, now: float) -> None:
        """Note a request's last use of its blocks, and watch the deepest block of each stretch.

        Args:
            now: seconds; never goes back.
        """
        last_use = self._last_use
        for block in prompt:
            last_use.pop(block, None)
            last_use[block] = now
        while len(last_use) > self._remembered:
            del last_use[next(iter(last_use))]
        for end, gap in stretches:
            self._watch(prompt[end - 1], group * GAP_CLASSES + gap, now)

    def fit(self, now: float) -> list[list[float]] | None:
        """Return the values at `eviction_client.curve.KNOTS` of all classes; None before enough was seen."""
        if self._fitted_at is not None:
            keep = 0.5 ** ((now - self._fitted_at) / HALF_LIFE_S)
            for counts in (self._reuses, self._at_risk):
                for number, of_class in counts.items():
                    counts[number] = [count * keep for count in of_class]
        self._fitted_at = now
        self._give_up(now)
        nothing = [0.0] * INTERVALS
        seen = [number for number in range(self.classes) if number in self._at_risk or self._watched[number]]
        reuses = {number: self._reuses.get(number, nothing) for number in seen}
        at_risk = {number: _sum((self._at_risk.get(number, nothing), self._waiting(number, now))) for number in seen}
        every = _sum(reuses.values()), _sum(at_risk.values())
        if sum(every[0]) < FEWEST_REUSES:
            return None
        base = with_tail([(e + 0.01) / (n + 0.5) for e, n in zip(*every, strict=True)], *every)
        by_gap = [
            self._blend(
                _sum(reuses[number] for number in seen if number % GAP_CLASSES == gap),
                _sum(at_risk[number] for number in seen if number % GAP_CLASSES == gap),
                base,
            )
            for gap in range(GAP_CLASSES)
        ]
        unseen = [values(hazards) for hazards in by_gap]
        tables = []
        for number in range(self.classes):
            group, gap = divmod(number, GAP_CLASSES)
            prior = self.priors.get(group)
            if prior is None and number not in reuses:
                tables.append(unseen[gap])
                continue
            blended = self._blend(reuses.get(number, nothing), at_risk.get(number, nothing), prior or by_gap[gap])
            tables.append(values(blended))
        return tables

    def _watch(self, block: Hashable, number: int, now: float) -> None:
        before = self._class_of.pop(block, None)
        if before is not None:
            del self._watched[before][block]
        self._class_of[block] = number
        self._watched[number][block] = now

    def _reused(self, number: int, age: float) -> None:
        place = interval_of(age)
        self._reuses.setdefault(number, [0.0] * INTERVALS)[place] += 1.0
        at_risk = self._at_risk.setdefault(number, [0.0] * INTERVALS)
        for i in range(place + 1):
            at_risk[i] += 1.0

    def _give_up(self, now: float) -> None:
        """Stop watching blocks beyond the horizon: nobody used them."""
        for number, blocks in enumerate(self._watched):
            while blocks:
                block, last_use = next(iter(blocks.items()))
                if now - last_use < HORIZON_S:
                    break
                del blocks[block], self._class_of[block]
                at_risk = self._at_risk.get(number, [0.0] * INTERVALS)
                self._at_risk[number] = [count + 1.0 for count in at_risk]

    def _waiting(self, number: int, now: float) -> Counts:
        """Return the blocks of a class that still wait, by the intervals that they have reached."""
        last_uses = list(self._watched[number].values())
        reached = [bisect_right(last_uses, now - edge) for edge in EDGES]
        # A block whose age lies within an interval counts for half of it.
        return [0.5 * (begun + over) for begun, over in pairwise(reached)]

    def _blend(self, reuses: Counts, at_risk: Counts, prior: Sequence[float]) -> Counts:
        m = self._weight
        return [(e + m * p) / (n + m) for e, n, p in zip(reuses, at_risk, prior, strict=True)]


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
