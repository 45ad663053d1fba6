"""Policies that rank by when a conversation will return, not only by whether.

Blocks are kept in classes whose members age alike, and each class in one queue of the client's, ordered by time: at an eviction
only the ends of W queues are compared, O(W). Where the value of a block first rises and then falls with its age, its least
is at one of the two ends, so both are looked at.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from eviction_client.queue import FreeBlockQueue
from lpc.model.probability import logit
from lpc.simulator.blocks import CachedBlock, Use
from lpc.simulator.knowledge import AGES, Knowledge, Outlook, knowledge_of
from lpc.simulator.policies.base import Policy, PolicySettings, register
from lpc.simulator.workload import Workload

Floats = NDArray[np.float64]
ClassKey = tuple[int, ...]

LOG_ODDS_STEP: Final = 0.25
LOG_MEAN_STEP: Final = 0.25
LOG_SIGMA_STEP: Final = 0.2
"""Widths of the classes: log-odds of continuation, and mean and standard deviation of ln(seconds)."""
FIRST_AGE: Final = float(AGES[0])
LAST_AGE: Final = float(AGES[-1])
LOG_FIRST: Final = math.log(AGES[0])
LOG_STEP: Final = math.log(AGES[1] / AGES[0])
REFIT_S: Final = 60.0
FEWEST_GAPS: Final = 20
LIFE_RATE: Final = 0.01


class AgingClasses(Policy):
    """Free blocks in classes; the class decides how a block's value falls with age."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[ClassKey, FreeBlockQueue[CachedBlock]] = {}
        self.beta = 1.0
        self.tau = settings.tau or knowledge_of(workload).mean_gap
        self._class_of: dict[int, ClassKey] = {}  # content of a free block
        self._numbers: dict[ClassKey, int] = {}
        self._keys: list[ClassKey] = []

    def place(self, use: Use, now: float) -> ClassKey:
        """Return the class of a request's blocks as it ends."""
        raise NotImplementedError

    def value(self, key: ClassKey, age: float) -> float:
        """Return what a block of a class is worth ``age`` seconds after its request arrived. The least goes first."""
        raise NotImplementedError

    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Put blocks into the request's class; a block that others share stays in theirs while that is worth more."""
        key = self.place(use, now)
        mine: list[CachedBlock] = []
        for block in blocks:
            if block.owner is not None and block.owner != use.conversation:
                other = self._keys[block.level]
                if self.value(other, now - block.stamp) > self.value(key, now - use.arrival):
                    self._insert(other, [block], block.stamp)
                    continue
            block.owner, block.stamp, block.level = use.conversation, use.arrival, self._number(key)
            mine.append(block)
        if mine:
            self._insert(key, mine, use.arrival)

    def touch(self, block: CachedBlock, now: float) -> None:
        """Take the block out of its class."""
        self._queues[self._class_of.pop(block.block_id)].remove(block)

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Compare the ends of all classes; give up the chain that is worth least, deepest block first."""
        out: list[CachedBlock] = []
        while len(out) < count:
            key, newest = self._least(now)
            queue = self._queues[key]
            chain = self._chain(queue, newest, count - len(out))
            for block in chain:
                queue.remove(block)
                del self._class_of[block.block_id]
            if not len(queue):
                del self._queues[key]
            out += chain
        return out

    def _rank(self, key: ClassKey, age: float) -> float:
        """Return the value, drawn towards that of least recent use as beta falls."""
        value = self.value(key, age)
        if self.beta == 1.0:
            return value
        return self.beta * math.log(max(value, 1e-12)) - (1 - self.beta) * age / self.tau

    def _least(self, now: float) -> tuple[ClassKey, bool]:
        best, least, newest = None, math.inf, False
        for key, queue in self._queues.items():
            oldest, youngest = queue.head.next_free_block, queue.tail.prev_free_block
            assert oldest is not None
            assert youngest is not None
            value = self._rank(key, now - oldest.stamp)
            if value < least or best is None:
                best, least, newest = key, value, False
            if youngest.stamp != oldest.stamp:
                value = self._rank(key, now - youngest.stamp)
                if value < least:
                    best, least, newest = key, value, True
        assert best is not None
        return best, newest

    @staticmethod
    def _chain(queue: FreeBlockQueue[CachedBlock], newest: bool, count: int) -> list[CachedBlock]:
        """Return up to ``count`` blocks of one stamp from an end, deepest first (in a chain the deepest was inserted first)."""
        if newest:
            last = queue.tail.prev_free_block
            assert last is not None
            first = last
            while first.prev_free_block is not queue.head and first.prev_free_block.stamp == last.stamp:  # type: ignore[union-attr]
                first = first.prev_free_block  # type: ignore[assignment]
        else:
            first = queue.head.next_free_block  # type: ignore[assignment]
        chain: list[CachedBlock] = []
        block = first
        while block is not None and block is not queue.tail and len(chain) < count and block.stamp == first.stamp:
            chain.append(block)
            block = block.next_free_block  # type: ignore[assignment]
        return chain

    def _insert(self, key: ClassKey, blocks: Sequence[CachedBlock], stamp: float) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = FreeBlockQueue(CachedBlock(-1, 0), CachedBlock(-1, 0))
        # Within a class the score is the time, seconds, which the queue keeps in eighths.
        queue.insert(blocks, stamp)
        for block in blocks:
            self._class_of[block.block_id] = key

    def _number(self, key: ClassKey) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return number


class Indexed(AgingClasses):
    """Classes by what is known of a turn's return: probability, mean and spread of the logarithm of its time."""

    uses_predictor = True

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._knowledge = knowledge_of(workload)
        self._tables: dict[ClassKey, list[float]] = {}

    def outlook(self, use: Use) -> Outlook:
        """Return what is known of a turn as it ends."""
        known = self._knowledge.outlook(use)
        return Outlook(1 - known.p, known.log_mean, known.log_sigma) if self.settings.invert else known

    def place(self, use: Use, now: float) -> ClassKey:
        """Return the class of the turn's outlook, rounded."""
        known = self.outlook(use)
        return (
            round(logit(known.p) / LOG_ODDS_STEP),
            round(known.log_mean / LOG_MEAN_STEP),
            max(round(known.log_sigma / LOG_SIGMA_STEP), 1),
        )

    def value(self, key: ClassKey, age: float) -> float:
        """Look the index up."""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.index(AGES, self.returned(key)).tolist()
        if age <= FIRST_AGE:
            return table[0]
        place = (math.log(age) - LOG_FIRST) / LOG_STEP
        low = int(place)
        if low >= len(table) - 1:
            # Beyond the grid an index goes on falling, so that what is older still goes first.
            return table[-1] * LAST_AGE / age
        part = place - low
        return table[low] * (1 - part) + table[low + 1] * part

    def returned(self, key: ClassKey) -> Floats:
        """Return the probability that a turn of the class has been followed by the next at each age, [ages]."""
        p = 1 / (1 + math.exp(-key[0] * LOG_ODDS_STEP))
        return p * returned_share(key[1] * LOG_MEAN_STEP, key[2] * LOG_SIGMA_STEP, self._knowledge)

    def index(self, age: Floats, returned: Floats) -> Floats:
        """Return the value at each age, [n], from the probability to have returned by then, [n]."""
        raise NotImplementedError


@register
class Hazard(Indexed):
    """The rate at which returns are due right now."""

    name = "hazard"
    rule = "the lowest probability per second that the next turn arrives now, given that it has not come yet"
    source = "this project: posterior by survival of the learnt think time; equals lpc where think times are exponential"

    def index(self, age: Floats, returned: Floats) -> Floats:
        """Return p f(a) / (1 - p F(a)), f over the interval that follows."""
        density = np.diff(returned, append=returned[-1]) / np.diff(age, append=age[-1] * 2)
        density[-1] = density[-2] / 2
        return density / np.maximum(1 - returned, 1e-9)


@register
class Gittins(Indexed):
    """The best rate of returns per second of keeping, over all times to keep on."""

    name = "gittins"
    rule = "the lowest Gittins index: max over h of P(returns within h) / expected seconds kept until then"
    source = "Gittins 1979, for the learnt think time with the learnt probability; DESIGN's policy"

    def index(self, age: Floats, returned: Floats) -> Floats:
        """Return max over b > a of p (F(b) - F(a)) / integral of 1 - p F from a to b."""
        remaining = 1 - returned
        step = np.diff(age, append=age[-1] * 2)
        kept = np.concatenate(([0.0], np.cumsum((remaining + np.append(remaining[1:], remaining[-1])) / 2 * step)[:-1]))
        gain = returned[None, :] - returned[:, None]
        cost = kept[None, :] - kept[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(cost > 0, gain / cost, 0.0)
        index: Floats = rate.max(axis=1)
        index[-1] = index[-2] / 2
        return index


def returned_share(log_mean: float, log_sigma: float, knowledge: Knowledge) -> Floats:
    """Return of those that continue the share that has returned at each age, [ages]."""
    if knowledge.share is not None:
        return knowledge.share
    share: Floats = ndtr((np.log(AGES) - log_mean) / log_sigma)
    return share


@register
class Learned(Gittins):
    """The Gittins index over learnt return curves; where there are none, over probability and think time."""

    name = "learned"
    rule = "the lowest Gittins index of the learnt return curve of the turn's class"
    source = "this project: `lpc/simulator/returns.py`"

    def place(self, use: Use, now: float) -> ClassKey:
        """Return the class of the turn's return curve."""
        label = self._knowledge.class_of.get(use.index)
        return super().place(use, now) if label is None else (label,)

    def returned(self, key: ClassKey) -> Floats:
        """Return the class's learnt curve, [ages]."""
        if len(key) > 1:
            return super().returned(key)
        curve: Floats = self._knowledge.curves[key[0]]
        if self.settings.invert:
            curve = curve * (1 - curve[-1]) / max(curve[-1], 1e-6)
        return curve


@register
class WorkloadAware(AgingClasses):
    """The workload-aware policy: per class an exponential fit of the reuse time."""

    name = "wa"
    rule = "the class head of lowest log(q (1 - exp(-life / tau))) - idle / tau; q and tau per class, deepest block first"
    source = "KVCache Cache in the Wild, ATC 2025, section 5, refitted every minute until hits are counted"

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._numbers_of: dict[str, int] = {}
        self._waiting: defaultdict[int, dict[str, float]] = defaultdict(dict)
        self._gaps: defaultdict[int, list[float]] = defaultdict(list)
        self._last: dict[str, tuple[int, float]] = {}
        self._fit: dict[int, tuple[float, float]] = {}
        self._overall = (math.log(0.5), 100.0)
        self._life = 100.0
        self._fitted = 0.0

    def place(self, use: Use, now: float) -> ClassKey:
        """Return the request's class; learn from the gap since the conversation's turn before."""
        number = self._numbers_of.setdefault(use.category, len(self._numbers_of))
        if now < self.workload.count_from:
            before = self._last.get(use.conversation)
            if before is not None:
                self._gaps[before[0]].append(use.arrival - before[1])
                self._waiting[before[0]].pop(use.conversation, None)
            self._last[use.conversation] = (number, use.arrival)
            self._waiting[number][use.conversation] = use.arrival
            if now - self._fitted > REFIT_S:
                self._fitted = now
                self._refit(now)
        return (number,)

    def value(self, key: ClassKey, age: float) -> float:
        """Return the logarithm of the probability of reuse within a block's expected life."""
        log_q, tau = self._fit.get(key[0], self._overall)
        return log_q + math.log(-math.expm1(-self._life / tau)) - age / tau

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Evict; the age of what goes tells how long blocks live."""
        out = super().evict(count, now)
        self._life += LIFE_RATE * (max(now - out[0].stamp, 1.0) - self._life)
        return out

    def _refit(self, now: float) -> None:
        for number, gaps in self._gaps.items():
            if len(gaps) >= FEWEST_GAPS:
                self._fit[number] = _log(fit_exponential(gaps, [now - t for t in self._waiting[number].values()]))
        gaps = [gap for each in self._gaps.values() for gap in each]
        if len(gaps) >= FEWEST_GAPS:
            waiting = [now - t for each in self._waiting.values() for t in each.values()]
            self._overall = _log(fit_exponential(gaps, waiting))


def fit_exponential(gaps: Sequence[float], waiting: Sequence[float]) -> tuple[float, float]:
    """Return the probability of reuse and its mean time by maximum likelihood (expectation maximisation).

    Args:
        gaps: seconds, of those that were reused.
        waiting: seconds for which the others have been watched: they may yet be.
    """
    window = np.asarray(waiting, np.float64)
    count, total = len(gaps), sum(gaps)
    tau = max(total / count, 1.0)
    q = min((count + 1) / (count + len(window) + 2), 0.999)
    for _ in range(50):
        late = q * np.exp(-window / tau)
        late = late / (1 - q + late)
        returns = count + float(late.sum())
        q = min(max(returns / (count + len(window)), 1e-4), 0.999)
        tau = max((total + float((late * (window + tau)).sum())) / returns, 1.0)
    return q, tau


def _log(fit: tuple[float, float]) -> tuple[float, float]:
    return math.log(fit[0]), fit[1]
