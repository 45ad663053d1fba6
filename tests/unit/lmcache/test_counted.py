"""The gain of prefetching in LMCache on a virtual clock."""

import pytest

from benchmarks.lmcache_counted import HABITS, WARM_UP, Memory, side

MEMORY = Memory(192, 1 << 18, 0.033)


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.nightly)])
def test_most_prefetched_bytes_are_used_and_more_hits_are_in_memory(seed: int) -> None:
    alone, ours = (side(HABITS, seed, WARM_UP, 240, memory=MEMORY, learned=learned) for learned in (False, True))
    assert ours["used"] > 0.55 * ours["prefetched"] > 100 * MEMORY.chunk_bytes
    assert ours["found_in_memory"] > 1.4 * alone["found_in_memory"]
    assert ours["ttft_mean_s"] < 0.95 * alone["ttft_mean_s"]
    # The gain does not need more memory, and not much more work of the disk.
    assert ours["mean_memory"] < alone["mean_memory"] + 0.02
    assert ours["loaded_chunks"] < 1.3 * alone["loaded_chunks"]
