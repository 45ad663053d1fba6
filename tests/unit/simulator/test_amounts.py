"""Sizes in messages."""

import json
from pathlib import Path

import pytest

from lpc_apps.simulator.amounts import SimulationError, memory
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, run_one


@pytest.mark.parametrize(
    ("count", "text"), [(7 << 30, "7.0 GiB"), (1 << 30, "1.0 GiB"), (200 << 20, "0.2 GiB"), (12 << 20, "12 MiB")]
)
def test_memory_is_told_in_the_unit_that_shows_it(count: int, text: str) -> None:
    assert memory(count) == text


def test_a_share_of_a_small_log_without_a_block_is_told_as_a_share(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}) + "\n")
    spec = WorkloadSpec(trace=log, format="mooncake")
    with pytest.raises(
        SimulationError, match=r"of 10 tokens, 1% of the 1,024 tokens of this log, leaves no block .* more of the log"
    ):
        run_one(SimulationRun(spec, "lru", 0.01))
    with pytest.raises(SimulationError, match=r"of 10 tokens leaves no block of 512 tokens: choose a larger one$"):
        run_one(SimulationRun(spec, "lru", 10))
