"""What is moved into the nearest tier before it is asked for, and when: by the queue, by retention values, by the future.

**Predicted.** A conversation whose blocks lie in a slower tier is *due* while their retention value is above the price of room
in the nearest tier: what the blocks are worth that have to go there (`lpc.simulator.tiers.order.Values`). Every TICK_S the
waiting conversations are looked at. Of those that are due, whose value does not rise any more, and that would be used often
enough at the rate of their value while they stay, those with the highest value are moved, once per turn, as far as the budget
of bytes goes. Moves use what demand leaves of the slower tier's link.

**Trust is earned**, as by the plug-in's guard: at the start, and after too many were useless, prefetches are only planned
(`Verdict`): what would be moved is noted and judged by whether the turn comes in time, and nothing is moved until that has
been right often enough. So wrong predictions cost a few dozen prefetches each time that the traffic turns, and none at all if
nothing returns.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from lpc.simulator.tiers.order import Values
from lpc.simulator.tiers.spec import PrefetchSpec
from lpc.simulator.tiers.tier import Tier, TierFigures
from lpc.simulator.workload import Turn, Workload

TICK_S: Final = 5.0
BURST_S: Final = 10.0
"""Seconds of a budget that may be spent at once."""
HORIZON_S: Final = 7_200.0
"""Age after which nobody is waited for any more."""
WITHIN_S: Final = 300.0
"""A prefetch is to be used within this: later, nobody would know in time that predictions have become wrong."""
KEEP: Final = 0.98
"""What a prefetch's outcome still counts after the next one."""
FEWEST: Final = 10.0
"""Outcomes, discounted, before prefetches are believed or given up."""

MoveIn = Callable[[Sequence[int], float, bool], None]
"""Moves blocks into the nearest tier: contents, now, and whether they are needed within seconds."""


@dataclass(eq=False)
class Job:
    """A prefetch under way.

    Attributes:
        turn: after which it was thought of, or for which.
        blocks: still to be moved, in order, each with the place of its tier.
        ready: when the first can be there, seconds.
        soon: as of `MoveIn`.
    """

    turn: Turn
    blocks: deque[tuple[int, int]]
    ready: float
    soon: bool


class Verdict:
    """Whether prefetches may be moved: used and useless ones, discounted.

    Attributes:
        open: they may; else they are only thought.
    """

    def __init__(self, useless: float) -> None:
        self.open = False
        self._wanted = 1.0 - useless
        self._used = self._tokens = self._count = 0.0

    def judge(self, tokens: int, used: bool) -> None:
        """Take in what became of one."""
        self._used = KEEP * self._used + tokens * used
        self._tokens = KEEP * self._tokens + tokens
        self._count = KEEP * self._count + 1.0
        if self._count < FEWEST:
            return
        share = self._used / self._tokens
        deviation = math.sqrt(share * (1.0 - share) / self._count)
        self.open = share >= self._wanted if self.open else share - deviation >= self._wanted


class Prefetcher:
    """At arrival, as LMCache's lookup: while a request waits for room in the cache, its blocks come as near as they can.

    Its kinds say what else is moved, while the links have nothing to do that anybody waits for.
    """

    def __init__(
        self, workload: Workload, tiers: Sequence[Tier], cache: Container[int], move_in: MoveIn, figures: TierFigures
    ) -> None:
        self.workload = workload
        self.size: Final = workload.block_tokens
        self.tiers = tiers
        self.cache = cache
        self.figures = figures
        self._move_in = move_in
        self._jobs: deque[Job] = deque()
        self._left = 0.0
        self._brought: dict[int, bool] = {}
        """Content of blocks brought and not used yet -> whether that is counted."""
        self._ready: dict[Turn, float] = {}

    def advance(self, now: float) -> None:
        """Move what the links had time for until now."""
        spare = [tier.link.spare(now) for tier in self.tiers]
        if not self._jobs:
            self._left = 0.0
            return
        spare = [tokens + self._left for tokens in spare]
        while self._jobs:
            job = self._jobs[0]
            if job.ready > now:
                break
            moved = []
            while job.blocks and spare[job.blocks[0][1]] >= self.size:
                content, place = job.blocks.popleft()
                if content in self.tiers[place] and content not in self.tiers[0]:
                    spare[place] -= self.size
                    moved.append(content)
            self._bring(moved, now, job.soon)
            if job.blocks:
                break
            self._jobs.popleft()
        self._left = min(spare[1:]) if self._jobs and self._jobs[0].ready <= now else 0.0

    def arrive(self, turn: Turn) -> None:
        """Learn that a request has come: what is not there yet, it loads itself."""
        for job in self._jobs:
            if job.turn.conversation == turn.conversation:
                job.blocks.clear()

    def wait(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Load what a waiting request will need, with demand's right of way."""
        blocks = self._behind(contents)
        counts = [0] * len(self.tiers)
        for _, place in blocks:
            counts[place] += self.size
        done = max((self.tiers[place].link.load(count, now) for place, count in enumerate(counts) if count), default=now)
        self._ready[turn] = done
        self._bring([content for content, _ in blocks], now, True)

    def loaded(self, turn: Turn, contents: Sequence[int], now: float) -> float:
        """Learn what a request loads from the nearest tier; return when all that was begun for it is there."""
        for content in contents:
            if self._brought.pop(content, False):
                self.figures.used += self.size
        return max(self._ready.pop(turn, now), now)

    def gone(self, contents: Sequence[int]) -> None:
        """Learn what the nearest tier has given up."""
        for content in contents:
            self._brought.pop(content, None)

    def end(self, turn: Turn, now: float) -> None:
        """Learn that a request has ended."""

    def fetch(self, turn: Turn, blocks: Sequence[tuple[int, int]], now: float, *, soon: bool) -> None:
        """Move blocks when there is time."""
        latency = max(self.tiers[place].link.latency_s for _, place in blocks)
        self._jobs.append(Job(turn, deque(blocks), now + latency, soon))

    def _behind(self, contents: Sequence[int]) -> list[tuple[int, int]]:
        """Return a prompt's blocks in slower tiers, each with the place of its tier, up to the first that is nowhere."""
        found = []
        for content in contents:
            if content in self.cache or content in self.tiers[0]:
                continue
            place = next((place for place, tier in enumerate(self.tiers) if content in tier), None)
            if place is None:
                break
            found.append((content, place))
        return found

    def _bring(self, contents: Sequence[int], now: float, soon: bool) -> None:
        if not contents:
            return
        for place, tier in enumerate(self.tiers[1:], 1):
            tier.load([content for content in contents if content in self.tiers[place]], now)
        counted = self.workload.count_from <= now < self.workload.until
        self._brought.update(dict.fromkeys(contents, counted))
        self.figures.prefetched += counted * len(contents) * self.size
        self._move_in(contents, now, soon)


class Oracle(Prefetcher):
    """Knows when each next turn comes, and begins in time: a bound."""

    def __init__(
        self, workload: Workload, tiers: Sequence[Tier], cache: Container[int], move_in: MoveIn, figures: TierFigures
    ) -> None:
        super().__init__(workload, tiers, cache, move_in, figures)
        self._due: list[tuple[float, int, Turn]] = []
        self._number = 0

    def end(self, turn: Turn, now: float) -> None:
        """Note the next turn."""
        del now
        if turn.next is not None:
            rate = min(tier.link.tokens_s for tier in self.tiers[1:])
            lead = TICK_S + 2 * turn.next.input_tokens / rate + max(tier.link.latency_s for tier in self.tiers)
            self._number += 1
            heapq.heappush(self._due, (turn.next.arrival - lead, self._number, turn.next))

    def advance(self, now: float) -> None:
        """Begin what is due."""
        while self._due and self._due[0][0] <= now:
            at, _, turn = heapq.heappop(self._due)
            super().advance(at)
            blocks = self._behind(turn.contents) if turn.arrival > at else []
            if blocks:
                self.fetch(turn, blocks, at, soon=True)
        super().advance(now)


@dataclass(eq=False)
class Thought:
    """A prefetch that was moved, or would have been. ``used``: its conversation has returned in time."""

    tokens: int
    used: bool = False


class Predicted(Prefetcher):
    """By the retention values of waiting conversations' blocks.

    Attributes:
        verdict: whether what is due is moved.
    """

    def __init__(
        self,
        workload: Workload,
        tiers: Sequence[Tier],
        cache: Container[int],
        move_in: MoveIn,
        figures: TierFigures,
        spec: PrefetchSpec,
        values: Values,
    ) -> None:
        super().__init__(workload, tiers, cache, move_in, figures)
        self.verdict = Verdict(spec.useless)
        self._spec = spec
        self._values = values
        self._least_uses = -math.log(max(spec.useless, 1e-9))
        """Uses expected at a constant rate, so that none comes with the probability allowed."""
        self._waiting: dict[str, tuple[Turn, float]] = {}
        self._thoughts: dict[str, Thought] = {}
        self._deadlines: list[tuple[float, int, str, Thought]] = []
        self._numbers = 0
        self._purse = spec.tokens_s * BURST_S
        self._tick = TICK_S

    def arrive(self, turn: Turn) -> None:
        """Learn which conversation has returned."""
        super().arrive(turn)
        self._waiting.pop(turn.conversation, None)
        thought = self._thoughts.pop(turn.conversation, None)
        if thought is not None:
            thought.used = True

    def end(self, turn: Turn, now: float) -> None:
        """Wait for the conversation's next turn."""
        if len(turn.all_contents):
            self._waiting[turn.conversation] = turn, now

    def advance(self, now: float) -> None:
        """Look at the waiting conversations, every tick."""
        while self._tick <= now:
            at = self._tick
            super().advance(at)
            self._judge(at)
            self._purse = min(self._purse + TICK_S * self._spec.tokens_s, BURST_S * self._spec.tokens_s)
            if self._purse > 0 and self._values.price > 0:
                self._look(at)
            # In a silent night there is nothing to look at.
            self._tick = at + TICK_S if self._waiting or self._jobs or self._deadlines else max(now, at) + TICK_S
        super().advance(now)

    def _look(self, now: float) -> None:
        """Move what is due, or plan it."""
        value, stay = self._values.value, min(self.tiers[0].order.stay, WITHIN_S)
        least = max(self._values.price, self._least_uses / max(stay, TICK_S))
        due: list[tuple[float, Turn]] = []
        for conversation, (turn, ended) in list(self._waiting.items()):
            tail = turn.all_contents[-1]
            here = value(tail, now)
            if now - ended > HORIZON_S:
                del self._waiting[conversation]
            elif (
                here > least
                and value(tail, now + TICK_S) <= here  # else it would be given up before it is needed
                and tail not in self.cache
                and tail not in self.tiers[0]
            ):
                due.append((here, turn))
        for _, turn in sorted(due, key=lambda each: -each[0]):
            if self._purse <= 0:
                break
            # Once per turn: what came too early is not brought again.
            del self._waiting[turn.conversation]
            blocks = self._behind(turn.all_contents)
            if blocks:
                self._think(turn, blocks, now, now + stay)

    def _think(self, turn: Turn, blocks: list[tuple[int, int]], now: float, until: float) -> None:
        tokens = len(blocks) * self.size
        self._purse -= tokens
        self._numbers += 1
        thought = self._thoughts[turn.conversation] = Thought(tokens)
        heapq.heappush(self._deadlines, (until, self._numbers, turn.conversation, thought))
        if self.verdict.open:
            self.fetch(turn, blocks, now, soon=False)

    def _judge(self, now: float) -> None:
        """Judge what should have been used by now: all when their time is up, so that the late do not look like the useless."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, conversation, thought = heapq.heappop(self._deadlines)
            if self._thoughts.get(conversation) is thought:
                del self._thoughts[conversation]
            self.verdict.judge(thought.tokens, thought.used)


def prefetcher_of(
    spec: PrefetchSpec,
    workload: Workload,
    tiers: Sequence[Tier],
    cache: Container[int],
    move_in: MoveIn,
    figures: TierFigures,
    values: Values | None,
) -> Prefetcher | None:
    """Return the prefetcher of an engine's tiers; None without one. ``values``: of the nearest, for predicted ones."""
    match spec.kind:
        case "arrival":
            return Prefetcher(workload, tiers, cache, move_in, figures)
        case "oracle":
            return Oracle(workload, tiers, cache, move_in, figures)
        case "predicted":
            assert values is not None
            return Predicted(workload, tiers, cache, move_in, figures, spec, values)
    return None
