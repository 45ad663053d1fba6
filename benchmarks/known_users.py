"""`python -m benchmarks users`: what perfect knowledge of the users gains on workload `users`.

The bounds order blocks as the plug-in's rule `value` does, by tables of retention values in the same queue, but their tables
come from the generator's true laws instead of counts. A class is a user and what a block holds: one conversation, a file that
several may ask about, or the user's instructions.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from operator import mul
from statistics import NormalDist, mean
from typing import Any, Final

from rich.table import Table as Shown

from eviction_client.policy.queue.free_queue import FreeQueue, Table
from lpc.model.curve import EDGES, values
from lpc.wire.terminal import console
from lpc_apps.simulator.amounts import in_tokens
from lpc_apps.simulator.blocks import EDGE, Piece
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.policy import EvictionPolicy, PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload
from lpc_apps.simulator.workloads.users import Truth, truth

SIZES: Final = (0.02, 0.03, 0.05)
"""Capacities, shares of the working set."""
LAST_TURN: Final = 6
"""Later turns count as this one."""
FILE, OWN, ENDED = range(LAST_TURN, LAST_TURN + 3)
"""Contents of a block, after numbers for the turns of a conversation that may go on: a file, instructions, what has ended."""
KINDS: Final = LAST_TURN + 3


@dataclass(frozen=True)
class Knowledge:
    """What a bound knows of each user. What it does not know is the average of all.

    Attributes:
        rate: whether it knows how often the user begins a conversation, and how often about the same file.
        p: probability of another turn; else the share by turn number.
        gaps: the law of the gaps.
        outcome: whether this conversation goes on.
    """

    rate: bool = True
    p: bool = True
    gaps: bool = False
    outcome: bool = False


KNOWN: Final = {
    "laws of all": Knowledge(rate=False, p=False),
    "and rate of each user": Knowledge(p=False),
    "and p of each user": Knowledge(),
    "and gaps of each user": Knowledge(gaps=True),
    "who goes on": Knowledge(outcome=True),
    "who goes on, and gaps of each user": Knowledge(gaps=True, outcome=True),
}
NAMES: Final = ("lru", "plugin", *KNOWN, "oracle", "belady")


def _tables(true: Truth, known: Knowledge) -> list[Table]:
    """Return the tables of all users' kinds."""
    everybody = list(true.users.values())
    normal = NormalDist()
    rates = [user.rate for user in everybody]
    own_of_all = [_mean([-math.expm1(-rate * edge) for rate in rates], rates) for edge in EDGES]
    files = [user.rate * user.files for user in everybody]
    file_of_all = [true.same_file * _mean([-math.expm1(-rate * edge) for rate in files], files) for edge in EDGES]
    tables: list[Table] = []
    for user in everybody:
        gap, sigma = (user.gap, true.within) if known.gaps else (true.gap, true.sigma)
        returned = [normal.cdf(math.log(edge / gap) / sigma) if edge else 0.0 for edge in EDGES]
        own = [-math.expm1(-user.rate * edge) for edge in EDGES] if known.rate else own_of_all
        again = user.rate * user.files
        same = [true.same_file * -math.expm1(-again * edge) for edge in EDGES] if known.rate else file_of_all
        shares = [user.continues] * LAST_TURN if known.p else [true.continues(turn) for turn in range(1, LAST_TURN + 1)]
        for p in shares:
            certain = 1.0 if known.outcome else p
            tables.append(_table([1.0 - certain * share for share in returned]))
        for other in (same, own):
            p = user.continues if known.p else true.continues(1)
            tables.append(_table([(1.0 - p * share) * (1.0 - used) for share, used in zip(returned, other, strict=True)]))
        tables.append([0.0] * len(tables[0]))
    return tables


def _table(left: Sequence[float]) -> Table:
    """Return retention values, given the probabilities that a block is not used again until EDGES."""
    return values([1.0 - later / max(now, 1e-300) for now, later in pairwise(left)])


def _mean(found: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, found, weights))) / sum(weights)


class KnownUsers(EvictionPolicy[Piece]):
    """The rule `value` with the true laws of the users."""

    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings, true: Truth, known: Knowledge) -> None:
        super().__init__(capacity, workload, settings)
        self._known = known
        self._user = {name: KINDS * number for number, name in enumerate(true.users)}
        self._kind = _kinds(workload)
        self._now = 0.0
        tables = _tables(true, known)
        self._system = len(tables)
        self._queue: FreeQueue[Piece] = FreeQueue(
            Piece(EDGE, 0, 0), Piece(EDGE, 0, 0), len(tables) + 1, clock=lambda: self._now
        )
        self._queue.set_tables([*tables, [1.0] * len(tables[0])])

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Insert each piece into the class of its user and its content."""
        self._now = now
        ended = self._known.outcome and turn.next is None
        own = ENDED if ended else min(turn.turn, LAST_TURN) - 1
        parts: list[tuple[list[Piece], int]] = []
        for piece in pieces:
            kind = self._kind.get(piece.segment, own)
            number = self._system if kind == KINDS else self._user[turn.user] + kind
            if parts and parts[-1][1] == number:
                parts[-1][0].append(piece)
            else:
                parts.append(([piece], number))
        self._queue.insert_chain(parts, now)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove the piece from the queue."""
        self._now = now
        self._queue.remove(piece)

    def first(self, now: float) -> Piece:
        """Return the piece of the lowest value."""
        self._now = now
        return self._queue.first()


def _kinds(workload: Workload) -> Mapping[Segment, int]:
    """Return what the segments of several conversations hold: FILE, OWN, or KINDS, the system prompt of all users."""
    users: defaultdict[Segment, set[str]] = defaultdict(set)
    conversations: defaultdict[Segment, set[str]] = defaultdict(set)
    types: defaultdict[Segment, set[str]] = defaultdict(set)
    for turn in workload.arrivals:
        for segment in workload.paths.of(turn):
            users[segment].add(turn.user)
            conversations[segment].add(turn.conversation)
            types[segment].add(turn.category)
    shared = [segment for segment, names in conversations.items() if len(names) > 1]
    return {s: KINDS if len(users[s]) > 1 else FILE if types[s] == {"file"} else OWN for s in shared}


def run(seeds: Sequence[int], sizes: Sequence[float] = SIZES) -> dict[str, Any]:
    """Simulate; print a table of hit rates, means of the seeds; return the rows."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        workload, working_set = build(WorkloadSpec(workload="users", seed=seed))
        true = truth(seed)
        for size, name in product(sizes, NAMES):
            result = simulated(name, workload, in_tokens(size, working_set), true)
            rows.append({"seed": seed, "capacity_fraction": size, "policy": name, "hit_rate": result.hit_rate})
            print(f"seed {seed}, {size:.0%}, {name}: {result.hit_rate:.2%}", flush=True)
    title = f"workload users, seeds {', '.join(map(str, seeds))}, means"
    shown = Shown("% of prompt tokens", *(f"{size:.0%}" for size in sizes), title=title)
    for name in NAMES:
        hits = [[row["hit_rate"] for row in rows if (row["policy"], row["capacity_fraction"]) == (name, s)] for s in sizes]
        shown.add_row(name, *(f"{100 * mean(found):.2f}" for found in hits))
    console().print(shown)
    return {"seeds": list(seeds), "rows": rows}


def simulated(name: str, workload: Workload, tokens: int, true: Truth) -> Result:
    """Simulate one of NAMES with a cache of so many tokens."""
    known, settings = KNOWN.get(name), PolicySettings()

    def policy(blocks: int) -> EvictionPolicy[Any]:
        if known is None:
            return REGISTRY[name](blocks, workload, settings)
        return KnownUsers(blocks, workload, settings, true, known)

    return simulate(workload, tokens, policy)
