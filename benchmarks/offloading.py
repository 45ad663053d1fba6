"""Pool and CPU tier of vLLM, whose order in which: the tier in several sizes and orders behind one and the same pool.

The pool is replayed once. Each tier is served as if it were alone behind it; what is loaded costs no time, so that the pool
sees the same requests at the same times whatever is below it, and tiers differ by what they hold and by nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from lpc.simulator.amounts import tokens
from lpc.simulator.cache import BlockCache
from lpc.simulator.engine import simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.policies.value import Reuse
from lpc.simulator.run import WorkloadSpec, build
from lpc.simulator.tier import Offload, TierFigures, TierSpec
from lpc.simulator.workload import Turn

TIMES: Final = (1, 2, 4)
"""Sizes of the tier, in pools."""

TierOrder = Literal["lru", "value"]


@dataclass(frozen=True)
class Replay:
    """One replay of a pool, with tiers of every size and order below it.

    Attributes:
        pool: share of the working set.
        policy: of the pool: `lru` as stock, `value`, `reuse`.
        inverted: the sidecar answers the opposite.
    """

    workload: WorkloadSpec
    pool: float
    policy: str
    inverted: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """Return what pool and each tier served. Tokens, of requests that arrived while hits were counted."""
        workload, working_set = build(self.workload)
        capacity = tokens(self.pool, working_set)
        below: list[_Beside] = []

        def tiers(cache: BlockCache[Any], figures: TierFigures) -> _Beside:
            below.append(_Beside(cache, workload.block_tokens, figures))
            return below[0]

        settings = PolicySettings(invert=self.inverted)
        result = simulate(workload, capacity, lambda blocks: REGISTRY[self.policy](blocks, workload, settings), tier=tiers)
        return [
            {
                "workload": self.workload.workload or workload.name,
                "pool": self.pool,
                "policy": self.policy,
                "inverted": self.inverted,
                "tier": times,
                "tier_policy": order,
                "prompt_tokens": result.prompt_tokens,
                "pool_tokens": result.hit_tokens,
                "tier_tokens": figures.loaded,
                "cached_tokens": result.hit_tokens + figures.loaded,
            }
            for (times, order), (offload, figures) in below[0].tiers.items()
        ]


def rows_of(replays: Sequence[Replay]) -> list[list[dict[str, Any]]]:
    """Return the rows of each replay: a task for `lpc.training.spread`."""
    return [replay.rows() for replay in replays]


class _Beside:
    """Tiers of every size and order behind one pool (`lpc.simulator.tier.Behind`). None of them takes time."""

    def __init__(self, cache: BlockCache[Any], block_tokens: int, figures: TierFigures) -> None:
        del figures  # each has its own
        self.tiers: dict[tuple[int, TierOrder], tuple[Offload, TierFigures]] = {}
        for times in TIMES:
            spec = TierSpec(times * cache.capacity * block_tokens)
            stock, ours = TierFigures(), TierFigures()
            self.tiers[times, "lru"] = Offload(spec, block_tokens, stock), stock
            if isinstance(cache.policy, Reuse):
                self.tiers[times, "value"] = Offload.by_value(spec, block_tokens, ours, cache.policy), ours

    def advance(self) -> None:
        for offload, _ in self.tiers.values():
            offload.advance()

    def load(self, turn: Turn, contents: Sequence[int], start: int, now: float, *, counted: bool) -> tuple[int, float]:
        for offload, _ in self.tiers.values():
            offload.load(turn, contents, start, now, counted=counted)
        return 0, 0.0

    def end(self, turn: Turn) -> None:
        for offload, _ in self.tiers.values():
            offload.end(turn)
