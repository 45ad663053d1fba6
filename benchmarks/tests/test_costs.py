"""The simulated side of benchmark `costs`: the same prompts as vLLM gets, at the speed that it has without hits."""

from pathlib import Path

import pytest

from benchmarks.costs import LENGTH, SHARES, simulated
from lpc_apps.tiny_llama import BLOCK


@pytest.mark.parametrize("share", SHARES)
def test_prefill_takes_the_time_of_the_tokens_that_are_not_cached(tmp_path: Path, share: float) -> None:
    cached = int(share * LENGTH) // BLOCK * BLOCK
    assert simulated(tmp_path / "log.jsonl", share, 8, 600.0) == pytest.approx(600 * LENGTH / (LENGTH - cached))
