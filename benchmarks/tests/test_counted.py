"""The gain of LMCache with the controller, and of loading ahead, on a virtual clock."""

import pytest

from benchmarks.lmcache_counted import HABITS, WARM_UP, Memory, side
from benchmarks.prefetch_counted import Due, Law, measured

MEMORY = Memory(192, 1 << 18, 0.033)


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.nightly)])
def test_more_hits_are_in_memory_with_less_work_of_the_disk(seed: int) -> None:
    alone, ours = (side(HABITS, seed, WARM_UP, 240, memory=MEMORY, learned=learned) for learned in (False, True))
    assert ours["found_in_memory"] > 1.4 * alone["found_in_memory"]
    assert ours["ttft_mean_s"] < 0.95 * alone["ttft_mean_s"]
    assert ours["loaded_chunks"] < alone["loaded_chunks"]
    # The gain does not need more memory.
    assert ours["mean_memory"] < alone["mean_memory"] + 0.02


def test_only_who_knows_the_return_gains_by_loading_ahead_of_it() -> None:
    base, eager, due, law = (
        measured(5, 200, learned=True, **case)
        for case in ({}, {"eager": True}, {"foresight": Due(2.0)}, {"foresight": Law(10.0, 0.2)})
    )
    assert eager["ttft_mean_s"] < 1.02 * base["ttft_mean_s"]
    assert due["ttft_mean_s"] < 0.8 * base["ttft_mean_s"]
    assert law["ttft_mean_s"] > 0.95 * base["ttft_mean_s"]
    assert law["loaded_chunks"] > 2 * base["loaded_chunks"]
