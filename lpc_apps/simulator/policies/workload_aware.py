"""The workload-aware policy of *KVCache Cache in the Wild* (Wang et al., USENIX ATC 2025, arXiv 2506.02634).

The full text was not at hand. What is used is its section 4.2 as public descriptions and reimplementations quote it, and the
authors' own code: pull request 22236 of vLLM, whose `benchmarks/profiler_utils.py` counts and fits.

What is the paper's:

- class: category and turn of the latest request that used the block (`text_1`, `file_2`);
- reuse: the time since a block's last use, by anyone. Times of 0.3 s or less belong to system prompts and are left out;
- priority (4.2): (ReuseProb(t, life), -Offset) of a block that has waited for t; the lowest goes first;
- ReuseProb (4.2): the probability of a use in the `life` seconds after t, for which blocks of this cache last, by the
  exponential law of the class (section 3). With its share q of reused blocks: `q (1 - exp(-life / tau)) exp(-t / tau)`;
- cost: within a class the oldest block is always the lowest, so an eviction compares one block per class.

What is ours:

- ReuseProb is not conditional on having waited until t. An exponential law has no memory, so on this condition all blocks of a
  class would have one value, at any age.
- q and tau have maximum likelihood (`lpc.model.exponential`), with waiting blocks as censored. The authors take the mean time
  above the smallest, and reuses / blocks: so a short window makes tau too small, and a class without reuses needs a guess.
- Weights halve in `HALF_LIFE_S` and count from a block's use, for reuses and waiting blocks alike. Counted from the reuse,
  those that never return would outweigh the others. The authors take a sliding window of 600 s, or the whole hour before.
- A class with few data is shrunk to its category, and that to all classes. Turns from `TURNS` on share a class.
- life is a running mean of the evicted blocks' time since their last use.
- Offset decides between blocks of one request only. Two requests never have the same value, unless they arrive at once.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from lpc.model.curve import EDGES, HORIZON_S, INTERVALS, interval_of
from lpc.model.exponential import expected_counts, fit_counts, log_value
from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, EvictionPolicy, PolicySettings, give_up_first, register
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

CATEGORIES: Final = 32
"""Maximum number of categories; later ones share the last."""
TURNS: Final = 5
SYSTEM_PROMPT_S: Final = 0.3
"""Reuses after at most this time are not counted. The authors' `sp_reuse_limit`."""
HALF_LIFE_S: Final = 600.0
"""Half-life of the weight of a use."""
PRIOR_WEIGHT: Final = 1000.0
"""Weight of a class's parent, in blocks."""
PRIOR: Final = 0.5, 100.0
"""q and tau (seconds) before there are data."""
REMEMBERED: Final = 100_000
"""Maximum number of segments whose next use is awaited. The least recently used are censored first."""
REFIT_S: Final = 60.0
REFIT_TURN: Final = 40, 300
"""A refit waits for a turn per this number of awaited segments, and for this number of them per class: 20 us per turn."""
FLAT: Final = 1e-12
"""Fall per second of the logarithm of a value that is constant."""
LIFE_RATE: Final = 0.01
"""Weight of an eviction in the running mean of the blocks' life."""

Counts = tuple[Sequence[float], Sequence[float]]
"""Reuses and blocks at risk, by interval of `lpc.model.curve.EDGES`."""


class AgingPiece(Piece):
    """Blocks with the class and arrival (seconds) of the latest request that used them."""

    __slots__ = ("arrival", "class_key")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.class_key = 0
        self.arrival = 0.0


class _Class:
    """Free pieces of one class, by the arrival of the latest request that used them; of one request the deepest first."""

    def __init__(self) -> None:
        self.requests: dict[float, dict[int, AgingPiece]] = {}
        self.arrivals: list[float] = []
        """Sorted keys of ``requests``."""

    def add(self, piece: AgingPiece) -> None:
        pieces = self.requests.get(piece.arrival)
        if pieces is None:
            pieces = self.requests[piece.arrival] = {}
            insort(self.arrivals, piece.arrival)
        in_order = not pieces or next(reversed(pieces.values())).depth >= piece.depth
        pieces[piece.block_id] = piece
        if not in_order:  # two requests arrived at once
            deepest_first = sorted(pieces.values(), key=lambda each: -each.depth)
            pieces.clear()
            pieces.update((each.block_id, each) for each in deepest_first)

    def remove(self, piece: AgingPiece) -> None:
        del self.requests[piece.arrival][piece.block_id]
        self.drop_if_empty(piece.arrival)

    def drop_if_empty(self, arrival: float) -> None:
        if not self.requests[arrival]:
            del self.requests[arrival], self.arrivals[bisect_left(self.arrivals, arrival)]


class _Observed:
    """Observed blocks of a class, by the interval of age in which their observation ended."""

    def __init__(self) -> None:
        self.reused = [0.0] * INTERVALS
        self.censored = [0.0] * INTERVALS


class ReuseTimes:
    """Counts and fits the times until blocks are used again, by class. Memory is bounded by `REMEMBERED` and the classes.

    Attributes:
        laws: q and tau (seconds) by class, as of the latest fit.
        default: q and tau of a class that is not among them.
        awaited: class, time of the last use and number of blocks, by segment; the least recently used first.
    """

    def __init__(self) -> None:
        self.laws: dict[int, tuple[float, float]] = {}
        self.default = PRIOR
        self.awaited: dict[Segment, tuple[int, float, int]] = {}
        self._observed: dict[int, _Observed] = {}
        self._reference = 0.0
        """Time at which a use has the weight 1."""

    def used(self, segment: Segment, key: int, now: float) -> None:
        """Record a use by a request of a class."""
        before = self.awaited.pop(segment, None)
        if before is not None and now - before[1] > SYSTEM_PROMPT_S:
            self._end(*before, now, reused=True)
        self.awaited[segment] = key, now, segment.size

    def fit(self, now: float) -> None:
        """Fit the law of each class, with its category and all classes as priors."""
        self._forget(now)
        counts = self._counts(now)
        every = _shrunk(_sum(counts.values()), expected_counts(*PRIOR, blocks=PRIOR_WEIGHT))
        categories: dict[int, list[Counts]] = {}
        for key, of_class in counts.items():
            categories.setdefault(key // TURNS, []).append(of_class)
        of_category = {number: _shrunk(_sum(members), every) for number, members in categories.items()}
        self.default = fit_counts(*every)
        self.laws = {key: fit_counts(*_shrunk(own, of_category[key // TURNS])) for key, own in counts.items()}

    def cost(self) -> int:
        """Return the cost of a fit, in awaited segments."""
        return len(self.awaited) + REFIT_TURN[1] * len(self._observed)

    def _forget(self, now: float) -> None:
        """Age the counts; censor what is awaited beyond the horizon or the bound."""
        awaited = self.awaited
        while awaited:
            segment, (key, begun, size) = next(iter(awaited.items()))
            if now - begun < HORIZON_S and len(awaited) <= REMEMBERED:
                break
            del awaited[segment]
            self._end(key, begun, size, now, reused=False)
        keep = 0.5 ** ((now - self._reference) / HALF_LIFE_S)
        self._reference = now
        for observed in self._observed.values():
            observed.reused = [count * keep for count in observed.reused]
            observed.censored = [count * keep for count in observed.censored]

    def _end(self, key: int, begun: float, size: int, now: float, *, reused: bool) -> None:
        observed = self._observed.setdefault(key, _Observed())
        ended = observed.reused if reused else observed.censored
        ended[interval_of(now - begun)] += size * 2.0 ** ((begun - self._reference) / HALF_LIFE_S)

    def _counts(self, now: float) -> dict[int, Counts]:
        waiting: dict[int, list[float]] = {key: [0.0] * INTERVALS for key in self._observed}
        interval = INTERVALS - 1
        for key, begun, size in self.awaited.values():
            age = now - begun
            while age < EDGES[interval]:
                interval -= 1
            ages = waiting.get(key)
            if ages is None:
                ages = waiting[key] = [0.0] * INTERVALS
            ages[interval] += size * 0.5 ** (age / HALF_LIFE_S)
        nothing = _Observed()
        counts: dict[int, Counts] = {}
        for key, ages in waiting.items():
            observed = self._observed.get(key, nothing)
            ended = [sum(each) for each in zip(observed.reused, observed.censored, ages, strict=True)]
            reached = [*accumulate(reversed(ended))][::-1]
            # A block whose age is within an interval counts half in it.
            at_risk = [all_reached - 0.5 * age for all_reached, age in zip(reached, ages, strict=True)]
            counts[key] = observed.reused, at_risk
        return counts


@register
class WorkloadAware(EvictionPolicy[AgingPiece]):
    """Evicts by an exponential law of the reuse time per class."""

    name = "wa"
    title = "Workload-aware (ATC 2025)"
    rule = "the lowest q (1 - exp(-life / tau)) exp(-age / tau), deepest block first; q and tau by category and turn"
    source = "KVCache Cache in the Wild, USENIX ATC 2025, section 4.2; maximum likelihood, half-life of 10 minutes"
    piece_type = AgingPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.times = ReuseTimes()
        self.life = 100.0
        """Seconds for which a block stays without a use."""
        self._categories: dict[str, int] = {}
        self._fitted = 0.0
        self._turns = 0
        """Turns since the latest fit."""
        self._classes: dict[int, _Class] = {}

    def arrive(self, turn: Turn, now: float) -> None:
        """Record the use of the request's blocks."""
        key = self.class_of(turn)
        for segment in self.path(turn):
            self.times.used(segment, key, now)
        self._turns += 1
        if now - self._fitted > REFIT_S and self._turns * REFIT_TURN[0] >= self.times.cost():
            self._fitted, self._turns = now, 0
            self.times.fit(now)

    def free(self, pieces: Sequence[AgingPiece], turn: Turn, now: float) -> None:
        """Insert the pieces into the request's class."""
        key = self.class_of(turn)
        members = self._classes.setdefault(key, _Class())
        for piece in pieces:
            piece.class_key, piece.arrival = key, turn.arrival
            members.add(piece)

    def touch(self, piece: AgingPiece, now: float) -> None:
        """Remove the piece from its class."""
        self._classes[piece.class_key].remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict the oldest of a class, for the class where it has the lowest value; the deepest blocks first."""
        heads = []
        for key, members in self._classes.items():
            if members.arrivals:
                q, tau = self.times.laws.get(key, self.times.default)
                heads.append((members, *self.law(q, tau)))
        out: list[Chunk] = []
        while count:
            lowest, chosen = float("inf"), heads[0][0]
            for members, start, rate in heads:
                if members.arrivals and (value := start - (now - members.arrivals[0]) * rate) < lowest:
                    lowest, chosen = value, members
            arrival = chosen.arrivals[0]
            if not out:
                self.life += LIFE_RATE * (max(now - arrival, 1.0) - self.life)
            chunks = give_up_first(chosen.requests[arrival], count)
            chosen.drop_if_empty(arrival)
            count -= sum(map(len, chunks))
            out += chunks
        return out

    def law(self, q: float, tau: float) -> tuple[float, float]:
        """Return the logarithm of a class's value at age 0, and by how much it falls in a second."""
        return log_value(q, tau, self.life), 1.0 / tau

    def class_of(self, turn: Turn) -> int:
        """Return the number of a request's class."""
        number = self._categories.get(turn.category)
        if number is None:
            number = min(len(self._categories), CATEGORIES - 1)
            if number < CATEGORIES - 1:
                self._categories[turn.category] = number
        return number * TURNS + min(turn.turn, TURNS) - 1


@register
class WithoutLife(WorkloadAware):
    """Counts a reuse at any time, not only one within the blocks' life."""

    name = "wa-no-life"
    title = "Workload-aware, without life"
    rule = "the lowest q exp(-age / tau), deepest block first"
    source = "ablation of wa: a reuse counts even if the block will be evicted before it"

    def law(self, q: float, tau: float) -> tuple[float, float]:
        """Return the logarithm of q, and by how much the value falls."""
        return math.log(q), 1.0 / tau


@register
class WithoutDistribution(WorkloadAware):
    """Orders classes by the share of their blocks that are used again; the time of the reuse does not count."""

    name = "wa-no-distribution"
    title = "Workload-aware, without distribution"
    rule = "the class of lowest q, its oldest block first; deepest block first"
    source = "ablation of wa: the class's share of reused blocks, without the distribution of reuse times"

    def law(self, q: float, tau: float) -> tuple[float, float]:
        """Return the logarithm of q, which hardly falls: of classes with equal q the older block goes first."""
        del tau
        return math.log(q), FLAT


def _shrunk(own: Counts, parent: Counts) -> Counts:
    """Add a parent's counts, with a weight of at most `PRIOR_WEIGHT` blocks."""
    share = min(1.0, PRIOR_WEIGHT / max(parent[1][0], 1e-9))
    reuses, at_risk = ([a + share * b for a, b in zip(*each, strict=True)] for each in zip(own, parent, strict=True))
    return reuses, at_risk


def _sum(counts: Iterable[Counts]) -> Counts:
    every = list(counts)
    reuses, at_risk = ([sum(column) for column in zip(*each, strict=True)] for each in zip(*every, strict=True))
    return reuses, at_risk
