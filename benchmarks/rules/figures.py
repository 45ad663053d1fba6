"""Arithmetic of the tables: means over seeds, differences paired by seed, and the best policy at a size."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

Row = dict[str, Any]
Size = int | float

CLASSIC: Final = ("lru", "fifo", "mru", "lfu", "gdsf", "arc", "s3-fifo", "mq", "turn-ttl")
"""Rules that learn nothing about requests to come."""


class Difference(NamedTuple):
    """A mean difference of hit rates in points, and its standard error over seeds; None with one seed."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


class Single(NamedTuple):
    """One run compared with LRU.

    Attributes:
        workload, size, seed, label: the run.
        lru, rate: hit rates of LRU and of the policy, %.
    """

    workload: str
    size: Size
    seed: int
    label: str
    lru: float
    rate: float

    @property
    def gain(self) -> float:
        """Points above LRU."""
        return self.rate - self.lru


def by_seed(rows: Iterable[Row], label: str, size: Size) -> dict[int, float]:
    """Return a policy's hit rates at one size by seed, %. The rows are of one workload."""
    return {row["seed"]: 100 * row["hit_rate"] for row in rows if row["label"] == label and row["share"] == size}


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value."""
    found = list(values)
    return sum(found) / len(found)


def paired(ours: dict[int, float], other: dict[int, float]) -> Difference:
    """Return the mean of the differences by seed, and its standard error: their sample deviation / sqrt(number of seeds).

    Raises:
        ValueError: the seeds differ, or there are none.
    """
    if not ours or ours.keys() != other.keys():
        raise ValueError(f"seeds of a paired difference differ: {sorted(ours)} and {sorted(other)}")
    each = [ours[seed] - other[seed] for seed in ours]
    middle, count = mean(each), len(each)
    if count == 1:
        return Difference(middle, None)
    return Difference(middle, math.sqrt(sum((one - middle) ** 2 for one in each) / (count - 1) / count))


def best_of(rows: Sequence[Row], labels: Sequence[str], size: Size) -> str:
    """Return the policy with the highest mean hit rate at a size; of equals the first."""
    return max(labels, key=lambda label: mean(by_seed(rows, label, size).values()))


def against_best(rows: Sequence[Row], label: str, others: Sequence[str], size: Size) -> tuple[str, Difference]:
    """Return the best of other policies at a size, and the difference of a policy from it.

    The best is chosen by its mean over the seeds. A choice for each seed would favour the others by their noise.
    """
    best = best_of(rows, others, size)
    return best, paired(by_seed(rows, label, size), by_seed(rows, best, size))


def singles(rows: Iterable[Row], *, other: str = "lru") -> list[Single]:
    """Return every run of another policy than LRU, compared with LRU on the same workload, size and seed.

    Args:
        other: the policy to compare with, in place of LRU. Runs without a counterpart are left out.
    """
    found = list(rows)
    lru = {_place(row): 100 * row["hit_rate"] for row in found if row["label"] == other}
    return [
        Single(*_place(row), row["label"], lru[_place(row)], 100 * row["hit_rate"])
        for row in found
        if row["label"] != other and _place(row) in lru
    ]


def _place(row: Row) -> tuple[str, Size, int]:
    return row["workload"], row["share"], row["seed"]


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. All columns but the first are aligned to the right."""
    cells = [list(heads), *map(list, lines)]
    width = [max(3, *(len(line[column]) for line in cells)) for column in range(len(heads))]
    padded = [
        [line[0].ljust(width[0]), *(cell.rjust(size) for cell, size in zip(line[1:], width[1:], strict=True))] for line in cells
    ]
    rule = ["-" * width[0], *("-" * (size - 1) + ":" for size in width[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
