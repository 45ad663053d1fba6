"""Print what pooling is worth: two engines, their cache's hits without and with what the other engine knows of shared blocks.

`make pooling-table` runs it. Requests of a conversation go to one engine (sticky), or to both in turn. What engines pool:

- nothing: each engine learns from the requests that it serves.
- *at admission*: last uses and counts of reuse are those of both engines, as if each request asked the other engine about the
  blocks of its prompt when it is admitted.
- *at once*: that, and a request that ends on one engine also dates and classes the free blocks that the other has of its
  prompt. No engine could be told faster, so this is the bound.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lpc.simulator.blocks import Held, Piece
from lpc.simulator.engine import simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.policies.value import Reuse, Value
from lpc.simulator.run import WorkloadSpec, build
from lpc.simulator.segments import Path as Segments
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload

ENGINES: Final = 2
SHARES: Final = (0.02, 0.08)
"""Of the working set, for each engine."""


def pooling(base: type[Reuse], *, at_once: bool) -> type[Reuse]:
    """Return the policy whose instances pool what they know; for one run."""
    engines: list[Any] = []

    class Pooling(base):  # type: ignore[misc, valid-type]
        def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
            super().__init__(capacity, workload, settings)
            self.free_segments: dict[Segment, Held[Piece]] = {}
            if engines:
                self.reuse._monitor = engines[0].reuse._monitor
                if isinstance(self, Value):
                    self.reuse._clusters = engines[0].reuse._clusters
            else:
                self.reuse._monitor._remembered *= ENGINES
            engines.append(self)

        def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
            path, runs = self.reuse.path, self.reuse.runs
            super().free(pieces, turn, now)
            for piece in pieces:
                assert piece.held is not None
                self.free_segments[piece.segment] = piece.held
            for other in engines if at_once else ():
                if other is not self:
                    other.used_elsewhere(path, runs, now)

        def touch(self, piece: Piece, now: float) -> None:
            super().touch(piece, now)
            self.free_segments.pop(piece.segment, None)

        def used_elsewhere(self, path: Segments, runs: Sequence[tuple[int, int, int]], now: float) -> None:
            self._now = now
            parts = []
            for start, end, number in reversed(runs):
                held = [self.free_segments.get(segment) for segment in reversed(path[start:end])]
                free = [each for each in held if each is not None and not each.references]
                parts.append(([piece for each in free for piece in reversed(each.pieces)], number))
            for pieces, _ in parts:
                for piece in pieces:
                    self.queue.remove(piece)
            self.queue.insert_chain(parts, now)

    return Pooling


def hits(workload: Workload, capacity: int, policy: type[Any], settings: PolicySettings, *, sticky: bool) -> float:
    """Return the hit rate in %."""
    made = [policy(capacity // workload.block_tokens, workload, settings) for _ in range(ENGINES)]
    engines = iter(made)
    return 100 * simulate(workload, capacity, lambda _: next(engines), engines=ENGINES, sticky=sticky).hit_rate


def rows(specs: Sequence[WorkloadSpec], policies: Sequence[str], settings: PolicySettings) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| workload, cache of each engine | policy | sticky | not sticky | pooled at admission | pooled at once |"
    yield "|---|---|---|---|---|---|"
    for spec in specs:
        for share in SHARES:
            workload, working_set = build(spec)
            for name in policies:
                policy = REGISTRY[name]
                cells = [hits(workload, int(share * working_set), policy, settings, sticky=sticky) for sticky in (True, False)]
                if issubclass(policy, Reuse):
                    for at_once in (False, True):
                        pooled = pooling(policy, at_once=at_once)
                        cells.append(hits(workload, int(share * working_set), pooled, settings, sticky=False))
                shown = [f"{cell:.2f}" for cell in cells] + [""] * (4 - len(cells))
                yield f"| {workload.name}, {share:.0%} | `{name}` | " + " | ".join(shown) + " |"


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trace", type=Path, help="Mooncake's; default: generated workloads only")
    options.add_argument("--workloads", default="documents,agents")
    options.add_argument("--policies", default="lru,reuse,value")
    options.add_argument("--no-guard", action="store_true")
    asked = options.parse_args()
    specs = [WorkloadSpec(workload=name) for name in asked.workloads.split(",") if name]
    specs += [WorkloadSpec(trace=asked.trace)] if asked.trace else []
    for line in rows(specs, asked.policies.split(","), PolicySettings(guard=not asked.no_guard)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
