"""The gain of LMCache with the controller on a virtual clock."""

import pytest

from benchmarks.lmcache_counted import HABITS, WARM_UP, Memory, side

MEMORY = Memory(192, 1 << 18, 0.033)


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.nightly)])
def test_more_hits_are_in_memory_with_less_work_of_the_disk(seed: int) -> None:
    alone, ours = (side(HABITS, seed, WARM_UP, 240, memory=MEMORY, learned=learned) for learned in (False, True))
    assert ours["found_in_memory"] > 1.4 * alone["found_in_memory"]
    assert ours["ttft_mean_s"] < 0.95 * alone["ttft_mean_s"]
    assert ours["loaded_chunks"] < alone["loaded_chunks"]
    # The gain does not need more memory.
    assert ours["mean_memory"] < alone["mean_memory"] + 0.02
