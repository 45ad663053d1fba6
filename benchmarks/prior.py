"""Learns the shipped prior from open logs: `python -m benchmarks prior FORMAT:FILE...`.

Each log is replayed by the simulator, so that requests end when an engine would end them: a block's age counts from the end of
its use. The policy's monitor counts reuses by gap and new tokens. Each format counts for MOST reuses, its logs equally, so that
none decides alone. A cell with few reuses is shrunk to its gap class, and this to all.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from eviction_client.policy.classes import CELLS, cell_of, key_of
from eviction_client.policy.features import GAP_CLASSES, NEW_GROUPS
from eviction_client.policy.fit import with_tail
from eviction_client.policy.policy import Policy
from eviction_client.policy.prior import Prior
from eviction_client.policy.reuse_monitor import Arrival, Counts
from lpc.model.curve import INTERVALS
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies.lru import Lru
from lpc_apps.simulator.policies.plugin import SegmentUses, prompt_of, size_of
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.workload import Turn, Workload

FILE: Final = Path(__file__).parent.parent / "eviction_client/policy/prior.json"
MOST: Final = 5_000.0
"""Reuses for which the logs of one format count together."""
WEIGHT: Final = 100.0
"""Blocks at risk per interval for which the curve of a cell's gap class counts."""
NO_PRIOR: Final = Prior({(gap, new): (0.01,) * INTERVALS for gap in range(GAP_CLASSES) for new in range(NEW_GROUPS)})

Cell = tuple[Counts, Counts]


class Counting(Lru):
    """Counts reuses in an engine that evicts nothing."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.now = 0.0
        self.core: Policy[Any] = Policy(
            1,
            block_tokens=workload.block_tokens,
            clock=lambda: self.now,
            prior=NO_PRIOR,
            uses=SegmentUses(2**60),
            size_of=size_of,
        )
        self._arrivals: dict[Turn, Arrival] = {}

    def start(self, turn: Turn, now: float) -> None:
        """Count the reuses in a prompt."""
        super().start(turn, now)
        self.now = now
        self._arrivals[turn] = self.core.arrived(prompt_of(turn, self.workload.paths.of(turn)), now)

    def finish(self, turn: Turn, now: float) -> None:
        """Watch the request's blocks."""
        super().finish(turn, now)
        self.now = now
        path = self.workload.paths.of(turn)
        prompt = len(prompt_of(turn, path))
        finished = self.core.finished(turn, path, prompt, now, arrival=self._arrivals.pop(turn))
        numbers = [cell_of(key_of(each)) for each in finished.features]
        self.core._monitor.finished(path, prompt, finished.arrival, numbers, now)


def counted(workload: Workload) -> dict[int, Cell]:
    """Return reuses and blocks at risk [INTERVALS] by cell, of all requests of a log."""
    used: list[Counting] = []

    def policy(blocks: int) -> Counting:
        used.append(Counting(blocks, workload, PolicySettings()))
        return used[0]

    simulate(workload, sum(turn.input_tokens + turn.output_tokens + workload.block_tokens for turn in workload.turns()), policy)
    steps = used[0].core._monitor.counts(used[0].now)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[int, Cell] = end.value
            return found


def learn(logs: Sequence[tuple[str, dict[int, Cell]]]) -> dict[str, list[float]]:
    """Return hazards [INTERVALS] by "gap,new tokens", of logs with their formats."""
    nothing = [0.0] * INTERVALS
    cells: list[Cell] = [(nothing, nothing) for _ in range(CELLS)]
    formats = Counter(form for form, _ in logs)
    for form, log in logs:
        scale = MOST / formats[form] / max(sum(sum(reuses) for reuses, _ in log.values()), 1.0)
        for number, (reuses, at_risk) in log.items():
            cells[number] = _sum(cells[number], ([scale * n for n in reuses], [scale * n for n in at_risk]))
    every = (nothing, nothing)
    for cell in cells:
        every = _sum(every, cell)
    base = with_tail(_hazards(every, [0.01] * INTERVALS, 0.5), *every)
    found: dict[str, list[float]] = {}
    for gap in range(GAP_CLASSES):
        of_gap = (nothing, nothing)
        for new in range(NEW_GROUPS):
            of_gap = _sum(of_gap, cells[gap * NEW_GROUPS + new])
        parent = _hazards(of_gap, base, WEIGHT)
        for new in range(NEW_GROUPS):
            hazards = _hazards(cells[gap * NEW_GROUPS + new], parent, WEIGHT)
            found[f"{gap},{new}"] = [float(f"{hazard:.4g}") for hazard in hazards]
    return found


def _hazards(cell: Cell, parent: Sequence[float], weight: float) -> list[float]:
    return [(e + weight * p) / (n + weight) for e, n, p in zip(*cell, parent, strict=True)]


def _sum(one: Cell, other: Cell) -> Cell:
    return [a + b for a, b in zip(one[0], other[0], strict=True)], [a + b for a, b in zip(one[1], other[1], strict=True)]


def main(arguments: Sequence[str]) -> None:
    """Learn from the given logs, ``FORMAT:FILE``, and write the file."""
    logs = []
    for argument in arguments:
        form, _, name = argument.partition(":")
        log = counted(build(WorkloadSpec(trace=Path(name), format=form))[0])
        print(f"{name}: {sum(sum(reuses) for reuses, _ in log.values()):,.0f} reuses", flush=True)
        logs.append((form, log))
    sources = [Path(argument.partition(":")[2]).name for argument in arguments]
    FILE.write_text(json.dumps({"learned from": sources, "hazards": learn(logs)}, indent=1) + "\n")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
