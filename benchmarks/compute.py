"""`python -m benchmarks compute`: does weighting retention values by the compute of a block pay?

A block at depth d takes 1 + d / d0 times the operations of one at the start. At depth d0 attention takes as much as the weights
(`lpc_apps.simulator.compute`). The rule `value` with its values times this weight is compared with `value`,
without the guard, by hits and by seconds of prefill at a fixed rate of operations.

Each class of the policy becomes one class per depth group, because a queue compares only the ends of a class.
"""

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from eviction_client.policy.queue.free_queue import FreeQueue, Table, Tables, soon_of
from lpc_apps.simulator.amounts import in_tokens
from lpc_apps.simulator.blocks import EDGE, Piece
from lpc_apps.simulator.compute import DEFAULT
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies.plugin import PluginPolicy
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.workload import Turn, Workload

DEPTHS: Final = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
"""Bounds of the depth groups, tokens."""
FLOPS_PER_S: Final = 4e14
"""Operations per second, about an H100's in prefill."""


def weight(depth: float) -> float:
    """Return the operations of a token at a depth (tokens), in those of one at the start."""
    return 1.0 + DEFAULT.per_key * depth / DEFAULT.per_token


WEIGHTS: Final = tuple(weight((low * high) ** 0.5) for low, high in zip((1_000, *DEPTHS), (*DEPTHS, 256_000), strict=True))
"""Weights by depth group, in the middle of it."""


class _Weighted(Tables):
    """Tables by class and depth group, made when the queue asks for one; the policy's own tables grow."""

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__()
        self.of_policy = tables
        self.soon = [WEIGHTS[-1] * value for value in soon_of(tables)]
        self._made: dict[int, tuple[Table, Table]] = {}

    def __getitem__(self, number: Any) -> Any:
        table = self.of_policy[number // len(WEIGHTS)]
        made = self._made.get(number)
        if made is None or made[0] is not table:
            times = WEIGHTS[number % len(WEIGHTS)]
            self._made[number] = made = table, [times * value for value in table]
        return made[1]


class ByCompute(PluginPolicy):
    """The plug-in's rule with its values weighted by the compute of a block."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        classes = self.core.classes * len(WEIGHTS)
        self.queue = FreeQueue(Piece(EDGE, 0, 0), Piece(EDGE, 0, 0), classes, clock=self._clock)
        self._follow()

    def _follow(self) -> None:
        tables, current = self.core.tables, self.queue.tables
        if (current.of_policy if isinstance(current, _Weighted) else None) is not tables:
            self.queue.set_tables(None if tables is None else _Weighted(tables))

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Insert each span of blocks into its class at its depth."""
        del turn
        self._now = now
        assert self._finished is not None
        spans, size = self._finished.spans, self.workload.block_tokens
        bounds = [self._finished.blocks[span.end - 1].depth + self._finished.blocks[span.end - 1].size for span in spans]
        parts: list[tuple[list[Piece], int]] = []
        for piece in pieces:
            span = spans[bisect.bisect_right(bounds, piece.depth)]
            number = span.reuse_class * len(WEIGHTS) + bisect.bisect_right(DEPTHS, piece.depth * size)
            if parts and parts[-1][1] == number:
                parts[-1][0].append(piece)
            else:
                parts.append(([piece], number))
        self.queue.insert_chain(parts, now)


def _replayed(workload: Workload, tokens: int, policy: type[PluginPolicy]) -> Result:
    return simulate(workload, tokens, lambda blocks: policy(blocks, workload, PolicySettings(rule="value")))


def run(log: Path, form: str, sizes: Sequence[int | float], seed: int = 0) -> dict[str, Any]:
    """Return a row per size and rule: hit rate, share of the compute saved, and seconds of prefill of the counted requests."""
    workload, working_set = build(WorkloadSpec(trace=log, format=form, seed=seed))
    rows = []
    for size in sizes:
        tokens = in_tokens(size, working_set)
        for name, policy in (("value", PluginPolicy), ("value by compute", ByCompute)):
            result = _replayed(workload, tokens, policy)
            left = (result.prompt_flops - result.saved_flops) / FLOPS_PER_S
            row = {"capacity_tokens": tokens, "rule": name, "hit_rate": result.hit_rate, "prefill_s": left}
            rows.append({**row, "compute_saved": result.figures()["compute_saved"]})
            print(
                f"{tokens:>12,} {name:<18}{result.hit_rate:>8.2%}{rows[-1]['compute_saved']:>8.2%}{left:>10,.1f} s", flush=True
            )
    return {"log": workload.name, "rows": rows}
