"""Engines of a fleet under the rule `lpc`, compared with engines that have each seen all requests of the fleet.

`Fleetwide` is the reference: the paper's policy, by the names of the conversations and without a store. A conversation's latest
turn on any engine replaces its claim at once, also on blocks that are free in another engine. `Compared` is the plug-in's own
policy on the simulator, which notes at each eviction whether the reference would evict the same.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lpc.model.probability import expit, logit
from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policies.plugin import PluginPolicy
from lpc_apps.simulator.policy import Chunk, EvictionPolicy, PolicySettings
from lpc_apps.simulator.segments import Copy, Segment
from lpc_apps.simulator.workload import Turn, Workload

MEAN_GAP_S: Final = 70.0
TIE_S: Final = 1.0 + MEAN_GAP_S / 16
"""Two blocks are as good as tied within this: a class is a sixteenth of the mean gap wide, and a record has whole seconds."""


@dataclass
class Seen:
    """What all engines of a fleet have seen.

    Attributes:
        scores: by segment and conversation, the time ``t + gap * logit(p)`` of the conversation's latest turn.
        evicted, equal: blocks evicted by engines that compare, and those that the reference evicts first as well.
    """

    scores: dict[Segment, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    engines: list["Fleetwide"] = field(default_factory=list)
    evicted: int = 0
    equal: int = 0

    def score(self, segment: Segment) -> float:
        """Return the highest score of the conversations that have used a segment."""
        return max(self.scores[segment.origin].values())

    def ended(self, turn: Turn, path: Sequence[Segment], now: float) -> None:
        """Note a turn that has ended on any engine."""
        score = now + MEAN_GAP_S * logit(turn.probability or 0.5)
        for segment in path:
            self.scores[segment][turn.conversation] = score
            for engine in self.engines:
                engine.changed(segment)


class Fleetwide(EvictionPolicy[Piece]):
    """The reference, for one engine."""

    name = "fleetwide"
    piece_type = Piece
    seen: Seen

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, Piece]] = []
        self._entry: dict[int, int] = {}
        self._pieces: dict[Segment, dict[int, Piece]] = defaultdict(dict)
        self._order: dict[int, int] = {}
        self._count = 0
        self.seen.engines.append(self)

    def finish(self, turn: Turn, now: float) -> None:
        """Note the turn for all engines."""
        self.seen.ended(turn, self.path(turn), now)

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Insert pieces."""
        for piece in pieces:
            self._pieces[piece.segment.origin][piece.block_id] = piece
            self._push(piece)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove a piece."""
        del self._entry[piece.block_id]
        del self._pieces[piece.segment.origin][piece.block_id]

    def changed(self, segment: Segment) -> None:
        """Value the free pieces of a segment again."""
        for piece in self._pieces.get(segment, {}).values():
            self._push(piece)

    def _push(self, piece: Piece) -> None:
        self._count += 1
        self._entry[piece.block_id] = self._count
        heapq.heappush(self._heap, (self.seen.score(piece.segment), self._count, piece))

    def first(self, now: float) -> Piece:
        """Return the piece with the lowest score."""
        while self._entry.get(self._heap[0][2].block_id) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def lowest(self) -> float:
        """Return the lowest score of a free piece."""
        return self.seen.score(self.first(0.0).segment)


class Compared(PluginPolicy):
    """The plug-in's policy with the predictions of the workload. At each eviction it asks the reference of its engine."""

    name = "compared"
    seen: Seen

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        kind = type("Reference", (Fleetwide,), {"seen": self.seen})
        self._reference: Fleetwide = kind(capacity, workload, settings)

    def finish(self, turn: Turn, now: float) -> None:
        """Also note the turn for the references of all engines."""
        super().finish(turn, now)
        self._reference.finish(turn, now)

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Also give the pieces to the reference."""
        super().free(pieces, turn, now)
        self._reference.free(pieces, turn, now)

    def touch(self, piece: Piece, now: float) -> None:
        """Also remove the piece from the reference."""
        super().touch(piece, now)
        self._reference.touch(piece, now)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict, and compare each piece with the reference's choice."""
        out: list[Chunk] = []
        while count:
            piece = self.first(now)
            taken = min(piece.size, count)
            self.seen.evicted += taken
            if self.seen.score(piece.segment) <= self._reference.lowest() + TIE_S:
                self.seen.equal += taken
            if piece.size <= count:
                self.touch(piece, now)
            chunk = piece.give_up(count)
            count -= len(chunk)
            out.append(chunk)
        return out

    def _prediction(self, turn: Turn, now: float) -> tuple[int, float | None]:
        del now
        return 0, None if turn.probability is None else logit(turn.probability)


def drawn(seed: int, *, conversations: int = 150, prompts: int = 4, every_s: float = 6.0) -> Workload:
    """Return conversations that share system prompts, with predictions that are somewhat right, on the grid of the classes."""
    rng = random.Random(seed)
    contents = iter(range(1, 10**9))
    systems = [[next(contents) for _ in range(rng.randint(2, 12))] for _ in range(prompts)]
    turns: list[Turn] = []
    for number in range(conversations):
        at = number * every_s * rng.uniform(0.8, 1.2)
        chain = list(rng.choice(systems))
        length = min(1 + int(rng.expovariate(0.4)), 8)
        for turn in range(1, length + 1):
            chain += [next(contents) for _ in range(rng.randint(1, 6))]
            prompt = tuple(chain)
            chain += [next(contents) for _ in range(rng.randint(1, 4))]
            goes_on = 1.0 if turn < length else -1.0
            odds = round(16 * (1.5 * goes_on + rng.gauss(0.0, 1.5))) / 16
            turns.append(
                Turn(
                    *(f"c{number}", turn, "", len(prompt) * 16 + 1, (len(chain) - len(prompt)) * 16, prompt, tuple(chain)),
                    arrival=at,
                    probability=expit(min(max(odds, -6.0), 6.0)),
                )
            )
            at += rng.expovariate(1 / 60.0) + 3.0
    turns.sort(key=lambda turn: turn.arrival)
    return Workload("drawn", 16, turns, closed=False, count_from=turns[len(turns) // 4].arrival, until=float("inf"), seed=seed)


def of_copy(segment: Segment) -> bool:
    """Return whether a segment is a copy of a block."""
    return isinstance(segment, Copy)


def kinds(seen: Seen) -> dict[str, Any]:
    """Return the policies of a fleet that share what they have seen."""
    return {one.name: type(one.__name__, (one,), {"seen": seen}) for one in (Fleetwide, Compared)}
