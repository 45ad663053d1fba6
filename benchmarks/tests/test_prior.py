"""The recipe of the shipped prior, on a log small enough to count by hand."""

import pytest

from benchmarks.prior import counted, learn
from eviction_client.policy.classes import CELLS
from eviction_client.policy.request import gap_class
from lpc.model.curve import HORIZON_S, INTERVALS, interval_of
from lpc_apps.simulator.workload import Turn, Workload

NEW = 0
AGAIN = gap_class(50.0) * (CELLS // 6)
"""Cells of new blocks, and of blocks used again after 50 s, of short prompts."""


def log_of(prompts: int, again_after: float, ends_at: float) -> Workload:
    """Return prompts of a block each, all used twice, and a last request long after them."""
    uses = [(100.0 * n + wait, n) for n in range(prompts) for wait in (0.0, again_after)]
    turns = [Turn(f"{n}", 1, "", 16, 0, (n,), (n,), arrival=at) for at, n in sorted([*uses, (ends_at, prompts)])]
    return Workload("log", 16, turns, False, 0.0, float("inf"), decodes=False)


def test_each_use_counts_once_whatever_its_age() -> None:
    cells = counted(log_of(20, 50.0, 3 * HORIZON_S))
    reuses, at_risk = cells[NEW]
    assert reuses[interval_of(49.0)] == sum(reuses) == 20
    # All were new once and 20 used again; the last request's block waits in the first interval, so it counts half.
    assert at_risk[0] == 20.5
    reuses, at_risk = cells[AGAIN]
    assert sum(reuses) == 0 and at_risk == pytest.approx([20.0] * INTERVALS), "older than the horizon, and not used again"


def test_every_cell_has_a_curve_and_no_format_decides_alone() -> None:
    often, seldom = counted(log_of(200, 50.0, 25_000.0)), counted(log_of(20, 700.0, 25_000.0))
    hazards = learn([("mooncake", often), ("agents", seldom)])
    assert len(hazards) == CELLS and all(len(curve) == INTERVALS for curve in hazards.values())
    assert all(0.0 <= hazard < 1.0 for curve in hazards.values() for hazard in curve)
    new = hazards["0,0"]
    assert new[interval_of(49.0)] > 0.3 and new[interval_of(699.0)] > 0.3
