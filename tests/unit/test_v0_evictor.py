"""The evictor for vLLM's V0 engine around a plain LRU evictor; V0's own and its allocator are in tests/engine_v0."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm_v0 import register
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor
from eviction_client.hints import Retained
from eviction_client.value_queue import DONE
from lpc.model.curve import KNOTS

NOW = 1.8e9
TOKENS = 16
TABLES = [[value / (1.0 + age) for age in KNOTS] for value in (1e-6, 1e-3, 1.0)]


class Stock:
    """Evicts the least recently used block, of equal ones that with the most tokens, as V0's evictor."""

    def __init__(self) -> None:
        self.free: dict[int, tuple[float, int, int]] = {}

    def add(self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float) -> None:
        self.free[block_id] = (last_accessed, -num_hashed_tokens, content_hash)

    def remove(self, block_id: int) -> None:
        if block_id not in self.free:
            raise ValueError("Attempting to remove block that's not in the evictor")
        del self.free[block_id]

    def evict(self) -> tuple[int, int]:
        if not self.free:
            raise ValueError("No usable cache memory left")
        block_id = min(self.free, key=lambda block: (*self.free[block][:2], block))
        return block_id, self.free.pop(block_id)[2]


def evictor(hinted: int = 0) -> LearnedEvictor:
    return LearnedEvictor(Stock(), len(TABLES), block_size=TOKENS, retained=Retained(hinted), clock=lambda: NOW)


def finish(ours: LearnedEvictor, first: int, blocks: int, runs: list[Run], retain_s: float = 0.0) -> None:
    """Free a chain of blocks whose ids begin at ``first``, the root first, as V0 does."""

    def free() -> None:
        for place in range(blocks):
            ours.add(first + place, 1000 + first + place, TOKENS * (place + 1), NOW)

    ours.placing(Ended(None, None, (), 0, NOW, 0, runs, retain_s), free)


def evicted(ours: LearnedEvictor) -> list[int]:
    return [ours.evict()[0] for _ in range(ours.num_blocks)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_under_least_recent_use_it_evicts_what_stock_would_whatever_happened_before(seed: int) -> None:
    rng = random.Random(seed)
    ours, stock = evictor(), Stock()
    ours.queue.set_tables(TABLES)
    for number in range(200):
        kind = rng.choice(["add", "add", "finish", "evict", "evict", "remove", "update", "rule"])
        free = sorted(stock.free)
        if kind == "add" and number not in ours:
            ours.add(number, 7, TOKENS, NOW - rng.randrange(5))
            stock.add(number, 7, TOKENS, ours._stock.free[number][0])
        elif kind == "finish":
            first = 1000 * (number + 1)
            finish(ours, first, 3, [Run(1, rng.randrange(3)), Run(3, rng.randrange(3))])
            for place in range(3):
                stock.add(first + place, 1000 + first + place, TOKENS * (place + 1), NOW)
        elif kind == "rule":
            ours.queue.value_enabled = not ours.queue.value_enabled
        elif free and kind == "evict":
            if ours.queue.value_enabled:
                stock.remove(ours.evict()[0])
            else:
                assert ours.evict() == stock.evict()
        elif free and kind == "remove":
            ours.remove(block := rng.choice(free))
            stock.remove(block)
        elif free and kind == "update":
            ours.update(block := rng.choice(free), NOW + number)
            _, tokens, content = stock.free[block]
            stock.add(block, content, -tokens, NOW + number)
        assert ours._stock.free == stock.free and ours.num_blocks == ours.queue.num_free_blocks == len(stock.free)
        assert all(block in ours for block in stock.free)


def test_by_value_each_part_of_a_chain_leaves_in_the_order_of_its_class_the_deepest_first() -> None:
    ours = evictor()
    ours.queue.set_tables(TABLES)
    ours.queue.value_enabled = True
    finish(ours, 10, 3, [Run(3, 2)])
    finish(ours, 20, 3, [Run(1, 2), Run(3, 0)])
    finish(ours, 30, 2, [Run(2, 1)])
    assert evicted(ours) == [22, 21, 31, 30, 12, 11, 10, 20]


@pytest.mark.parametrize("value_enabled", [True, False])
def test_hints_order_blocks_under_either_rule_within_their_share(value_enabled: bool) -> None:
    ours = evictor(hinted=2)
    ours.queue.set_tables(TABLES)
    ours.queue.value_enabled = value_enabled
    finish(ours, 10, 2, [Run(2, 0)], retain_s=60.0)
    finish(ours, 20, 2, [Run(2, 1)], retain_s=60.0)  # more than hints may retain
    finish(ours, 30, 2, [Run(1, 2), Run(2, DONE)])
    assert evicted(ours) == [31, 21, 20, 30, 11, 10]


def test_the_entry_point_loads_nothing_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LPC_VLLM_V0", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    register()


def test_the_entry_point_raises_nothing_where_there_is_no_vllm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LPC_VLLM_V0", "true")
    monkeypatch.setitem(sys.modules, "vllm", None)
    register()
    assert len(caplog.records) == 1 and "cannot enable it" in caplog.text
