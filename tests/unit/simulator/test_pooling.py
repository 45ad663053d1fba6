"""The measurement of pooling: what an engine learns of blocks that another one uses."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from lpc.simulator.engine import simulate
from lpc.simulator.policies import PolicySettings
from lpc.simulator.policies.value import Reuse
from lpc.simulator.workload import Turn
from tests.unit.simulator.replay import BLOCK_TOKENS, workload


@pytest.fixture
def pooling() -> Any:
    spec = spec_from_file_location("make_pooling", Path(__file__).parents[3] / "docs" / "make_pooling.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pooling


@pytest.mark.parametrize(("at_once", "evicted"), [(None, 1), (False, 1), (True, 2)])
def test_a_use_on_the_other_engine_makes_a_block_younger_only_at_once(pooling: Any, at_once: bool | None, evicted: int) -> None:
    # The engines take turns: 1, 2, 3 run on the first, which has room for two blocks, and 1 twice on the second.
    turns = [
        Turn(f"{number}", 1, "", BLOCK_TOKENS, 0, [content], [content], arrival=10.0 * number)
        for number, content in enumerate([1, 1, 2, 1, 3])
    ]
    work = workload(turns)
    policy = Reuse if at_once is None else pooling(Reuse, at_once=at_once)
    gone: list[int] = []
    simulate(
        work,
        2 * BLOCK_TOKENS,
        lambda blocks: policy(blocks, work, PolicySettings()),
        engines=2,
        sticky=False,
        on_evict=lambda _, contents: gone.extend(contents),
    )

    assert gone == [evicted]
    if at_once is not None:
        one, other = (policy(2, work, PolicySettings()) for _ in range(2))
        assert one.reuse._monitor is other.reuse._monitor
