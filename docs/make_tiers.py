"""Write tiers.md and tiers.png in docs/benchmarks: vLLM's pool and CPU tier, LRU or the plug-in in each, on every workload.

`make tiers-table` runs it: 13 workloads, 3 sizes of the pool, each with tiers of 1, 2 and 4 pools; a quarter of an hour on two
cores, with `--pools 0.02` a third of that.
`--log mooncake=FILE` and the like (the formats of `lpc simulate`) put logs with times before them.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pages import head, small_pictures

from benchmarks.offloading import TIMES, Replay, rows_of
from lpc.simulator.run import WorkloadSpec
from lpc.simulator.workloads import WORKLOADS
from lpc.training.spread import Workers, spread

HERE: Final = Path(__file__).parent / "benchmarks"
POOLS: Final = (0.01, 0.02, 0.05)
BELOW_STOCK: Final = 0.3
"""Points of hit rate that the plug-in in both may be below LRU in both, ..."""
BELOW_BETTER: Final = 0.5
"""... and % of the cached tokens that it may be below the better of its two orders of the tier."""

Rows = dict[tuple[str, float, int, str], dict[str, Any]]
"""By workload, pool, tier, side."""


def rows_by_side(specs: Sequence[WorkloadSpec], pools: Sequence[float], jobs: int) -> Rows:
    """Run everything."""
    replays = [
        [
            replay
            for pool in pools
            for replay in (Replay(spec, pool, "lru"), Replay(spec, pool, "value"), Replay(spec, pool, "value", inverted=True))
        ]
        for spec in specs
    ]
    done = spread([(rows_of, (some,)) for some in replays], Workers(jobs))
    return by_side(row for _, some in done for rows in some for row in rows)


def by_side(rows: Iterable[dict[str, Any]]) -> Rows:
    """Return rows by workload, pool, tier, side."""
    return {(row["workload"], row["pool"], row["tier"], side_of(row)): row for row in rows}


def side_of(row: dict[str, Any]) -> str:
    """Return the name of a side: `stock`, `pool` (the tier is LRU), `both`; of inverted predictions with a mark."""
    side = "stock" if row["policy"] == "lru" else "both" if row["tier_policy"] == "value" else "pool"
    return f"{side}, inverted" if row["inverted"] else side


def cells_of(rows: Rows) -> list[tuple[float, int]]:
    """Return the pools and tiers that were run."""
    return [(pool, tier) for pool in sorted({pool for _, pool, *_ in rows}) for tier in TIMES]


def rate(rows: Rows, name: str, pool: float, tier: int, side: str) -> float:
    """Return the % of prompt tokens served by pool and tier."""
    row = rows[name, pool, tier, side]
    return float(100 * row["cached_tokens"] / max(row["prompt_tokens"], 1))


def above_stock(rows: Rows, name: str, pool: float, tier: int, inverted: str = "") -> float:
    """Return the points that the plug-in in both is above LRU in both."""
    return rate(rows, name, pool, tier, f"both{inverted}") - rate(rows, name, pool, tier, "stock")


def above_better(rows: Rows, name: str, pool: float, tier: int, inverted: str = "") -> float:
    """Return the % of cached tokens by which the plug-in in both is above itself with LRU in the tier."""
    other = rate(rows, name, pool, tier, f"pool{inverted}")
    return 100 * (rate(rows, name, pool, tier, f"both{inverted}") / other - 1) if other else 0.0


def page(rows: Rows, names: Sequence[str]) -> Iterator[str]:
    """Yield the page's lines."""
    cells = cells_of(rows)
    heads = [f"{pool:.0%}, {tier}" for pool, tier in cells]
    yield "# vLLM's CPU tier on every generated workload"
    yield ""
    yield "`make tiers-table` writes this page: pool and tier as vLLM's offloading has them"
    yield "([simulator](../explanation/simulator.md#a-tier-behind-the-cache)), with the shipped policies and guards."
    yield "`2%, 4` is a pool of 2% of the working set and a tier of 4 pools. Counted after the warm-up of `lpc simulate`,"
    yield "predictions learnt from the first request on. The workloads:"
    yield "[generated](../reference/policies.md#generated-workloads); on real vLLM: [figures](tiers-and-prefetch.md)."
    yield ""
    yield "![Pool and tier, the plug-in's distance from LRU in both](tiers.png)"
    for inverted, how in (("", "as learnt"), (", inverted", "inverted")):
        yield ""
        yield f"## The plug-in in both, predictions {how}"
        yield ""
        yield "Points of hit rate above LRU in both; in brackets the cached tokens above those with LRU in the tier, %."
        yield ""
        yield from head(heads)
        for name in names:
            said = (
                f"{above_stock(rows, name, *cell, inverted):+.2f} ({above_better(rows, name, *cell, inverted):+.1f})"
                for cell in cells
            )
            yield f"| `{name}` | " + " | ".join(said) + " |"
    every = [(name, *cell, inverted) for name in names for cell in cells for inverted in ("", ", inverted")]
    stock, better = ([of(rows, *one) for one in every] for of in (above_stock, above_better))
    yield ""
    yield (
        f"Worst: {min(stock):+.2f} points against LRU in both, {min(better):+.1f}% against LRU in the tier. Of {len(every)} "
        f"runs {sum(value < -BELOW_STOCK for value in stock)} are more than {BELOW_STOCK} points below LRU in both, "
        f"{sum(value < -BELOW_BETTER for value in better)} more than {BELOW_BETTER}% below LRU in the tier."
    )
    yield ""
    yield "## Hit rates"
    yield ""
    yield "In % of prompt tokens, from pool and tier: LRU in both / the plug-in, LRU in the tier / the plug-in in both."
    yield ""
    yield from head(heads)
    for name in names:
        said = (" / ".join(f"{rate(rows, name, *cell, side):.2f}" for side in ("stock", "pool", "both")) for cell in cells)
        yield f"| `{name}` | " + " | ".join(said) + " |"


def draw(rows: Rows, names: Sequence[str], path: Path) -> None:
    """Draw the distance from LRU in both, a small picture for each workload."""
    cells = cells_of(rows)
    sides = (("plug-in, tier LRU", "pool"), ("plug-in in both", "both"), ("both, inverted", "both, inverted"))

    def one(axis: Any, name: str) -> None:
        for label, side in sides:
            gains = [rate(rows, name, *cell, side) - rate(rows, name, *cell, "stock") for cell in cells]
            axis.plot(range(len(cells)), gains, marker="o", markersize=3, label=label)
        axis.set_xticks(range(len(cells)), [f"{pool:.0%}\n{tier}" for pool, tier in cells], fontsize=7)

    across = "pool, share of the working set; tier, pools"
    small_pictures(path, names, one, up="points above LRU in both", across=across)


def main() -> None:
    """Run, write, and say how many runs are too far below."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workloads", default=",".join(WORKLOADS))
    options.add_argument("--log", action="append", default=[], help="FORMAT=FILE, several times")
    options.add_argument("--pools", default=",".join(map(str, POOLS)), help="shares of the working set")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--out", type=Path, default=HERE, help="folder of tiers.md and tiers.png")
    options.add_argument("--json", type=Path, help="file of all rows")
    asked = options.parse_args()
    logs = [log.partition("=") for log in asked.log]
    specs = [WorkloadSpec(trace=Path(path), format=form) for form, _, path in logs]
    specs += [WorkloadSpec(workload=name) for name in asked.workloads.split(",") if name]
    rows = rows_by_side(specs, [float(pool) for pool in asked.pools.split(",")], asked.jobs)
    if asked.json is not None:
        asked.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    names = list(dict.fromkeys(name for name, *_ in rows))
    lines = list(page(rows, names))
    (asked.out / "tiers.md").write_text("\n".join(lines) + "\n", "utf-8")
    draw(rows, names, asked.out / "tiers.png")
    print(next(line for line in lines if line.startswith("Worst:")))


if __name__ == "__main__":
    main()
