"""Learns the shipped prior from open logs: `python -m benchmarks prior FORMAT:FILE...`.

Each log is replayed by the simulator, so that requests end when an engine would end them: a block's age counts from the end of
its use. The policy's monitor counts reuses by gap and new tokens. Each format counts for MOST reuses, its logs equally, so that
none decides alone. A cell with few reuses is shrunk to its gap class, and this to all.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from eviction_client.pace import finish
from eviction_client.policy.classes import CELLS
from eviction_client.policy.request import GAP_CLASSES, NEW_GROUPS, TrackedRequest, new_group
from eviction_client.policy.reuse_monitor import Counts, ReuseMonitor, add, nothing
from lpc.model.curve import EDGES, INTERVALS
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies.lru import LruPolicy
from lpc_apps.simulator.policies.plugin import SegmentUses, prompt_of, size_of
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

FILE: Final = Path(__file__).parent.parent / "eviction_client/policy/prior.json"
MIN_TRUSTED: Final = 10.0
"""Reuses that make the rate of an interval reliable. Beyond the last such interval the rate falls as 1 / age."""
MOST: Final = 5_000.0
"""Reuses for which the logs of one format count together."""
WEIGHT: Final = 100.0
"""Blocks at risk per interval for which the curve of a cell's gap class counts."""

Cell = tuple[Counts, Counts]


class Counting(LruPolicy):
    """Counts reuses in an engine that evicts nothing."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.now = 0.0
        self.monitor: ReuseMonitor[Segment] = ReuseMonitor(math.inf, SegmentUses(2**60), size_of=size_of, half_life_s=math.inf)
        self._requests: dict[Turn, TrackedRequest[Segment]] = {}

    def start(self, turn: Turn, now: float) -> None:
        """Count the reuses in a prompt."""
        super().start(turn, now)
        self.now = now
        prompt = prompt_of(turn, self.workload.paths.of(turn))
        request = self._requests[turn] = TrackedRequest(turn, prompt, started_at=now)
        self.monitor.started(request)

    def finish(self, turn: Turn, now: float) -> None:
        """Watch the request's blocks."""
        super().finish(turn, now)
        self.now = now
        request = self._requests.pop(turn)
        request.blocks, request.prompt_blocks, request.at = self.workload.paths.of(turn), len(request.prompt), now
        new = new_group(request.new_blocks * self.workload.block_tokens) if request.new_blocks else 0
        numbers = [gap * NEW_GROUPS + new for gap in (*(part.features.gap for part in request.known), 0)]
        self.monitor.finished(request, numbers)


def counted(workload: Workload) -> Mapping[int, Cell]:
    """Return reuses and blocks at risk [INTERVALS] by cell, of all requests of a log."""
    used: list[Counting] = []

    def policy(blocks: int) -> Counting:
        used.append(Counting(blocks, workload, PolicySettings()))
        return used[0]

    simulate(workload, sum(turn.input_tokens + turn.output_tokens + workload.block_tokens for turn in workload.turns()), policy)
    return finish(used[0].monitor.counts(used[0].now))


def learn(logs: Sequence[tuple[str, Mapping[int, Cell]]]) -> dict[str, list[float]]:
    """Return hazards [INTERVALS] by "gap,new tokens", of logs with their formats."""
    cells = [nothing() for _ in range(CELLS)]
    formats = Counter(form for form, _ in logs)
    for form, log in logs:
        scale = MOST / formats[form] / max(sum(sum(reuses) for reuses, _ in log.values()), 1.0)
        for number, (reuses, at_risk) in log.items():
            add(cells[number], ([scale * n for n in reuses], [scale * n for n in at_risk]))
    every = nothing()
    for cell in cells:
        add(every, cell)
    base = with_tail(_hazards(every, [0.01] * INTERVALS, 0.5), *every)
    found: dict[str, list[float]] = {}
    for gap in range(GAP_CLASSES):
        of_gap = nothing()
        for new in range(NEW_GROUPS):
            add(of_gap, cells[gap * NEW_GROUPS + new])
        parent = _hazards(of_gap, base, WEIGHT)
        for new in range(NEW_GROUPS):
            hazards = _hazards(cells[gap * NEW_GROUPS + new], parent, WEIGHT)
            found[f"{gap},{new}"] = [float(f"{hazard:.4g}") for hazard in hazards]
    return found


def _hazards(cell: Cell, parent: Sequence[float], weight: float) -> list[float]:
    return [(e + weight * p) / (n + weight) for e, n, p in zip(*cell, parent, strict=True)]


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


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """Learn from the given logs, ``FORMAT:FILE``; write the file, and return its contents."""
    logs = []
    for argument in arguments:
        form, _, name = argument.partition(":")
        log = counted(build(WorkloadSpec(trace=Path(name), format=form))[0])
        print(f"{name}: {sum(sum(reuses) for reuses, _ in log.values()):,.0f} reuses", flush=True)
        logs.append((form, log))
    sources = [Path(argument.partition(":")[2]).name for argument in arguments]
    found = {"learned from": sources, "hazards": learn(logs)}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    return found
