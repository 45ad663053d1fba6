"""The paragraph about a cache in GiB."""

from typing import Any

import pytest

from lpc_apps.simulator.capacity import capacity_in_words, conversation_tokens, predictor_in_words
from lpc_apps.simulator.kv_memory import GIB, KvMemory, Memory
from lpc_apps.simulator.summary import derived
from lpc_apps.simulator.workload import Turn, Workload
from tests.unit.simulator.test_summary import row

KIB_64 = KvMemory("Tiny-1B", 1, per_token=64 * 1024)  # a GiB has 16,384 tokens


def said(memory: Memory, rates: dict[int, float], **more: Any) -> str:
    rows = derived([row("lru", size, rate, **more) for size, rate in rates.items()])
    return capacity_in_words(rows, memory, memory.marks(2048), 2048)


def test_the_cliff_and_the_conversations_that_fit() -> None:
    text = said(Memory(KIB_64, GIB, GIB), {8192: 0.02, 16_384: 0.05, 32_768: 0.6, 65_536: 0.62})
    assert text == (
        "Tiny-1B takes 64 KiB of KV cache per token. 1 GiB holds **16.4K tokens**: "
        "about 8.0 conversations of the median length, 2K. "
        "LRU serves 5.0% with the GPU alone (16.4K), 60.0% with the CPU tier (32.8K), 62.0% with twice that (65.5K). "
        "**The cliff** lies between 32.8K and 16.4K tokens (16 to 8.0 conversations): there LRU falls from 60.0% to 5.0%."
    )


def test_neighbouring_steep_steps_are_one_cliff_and_a_slope_is_none() -> None:
    steep = said(Memory(KIB_64, GIB, 0), {16_384: 0.1, 32_768: 0.4, 65_536: 0.8, 131_072: 0.81})
    assert "between 65.5K and 16.4K tokens (32 to 8.0 conversations): there LRU falls from 80.0% to 10.0%" in steep
    flat = said(Memory(KIB_64, GIB, 0), {16_384: 0.1, 32_768: 0.2, 65_536: 0.3})
    assert "no cliff" in flat
    close = said(Memory(KIB_64, GIB, 0), {16_384: 0.1, 16_400: 0.13, 32_768: 0.2})  # two sizes next to each other
    assert "no cliff" in close


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_return_of_more_memory_counts_the_price_of_all_gpus(gpus: int) -> None:
    memory = Memory(KvMemory("m", gpus, 64 * 1024), GIB, GIB * gpus, gpu_hour_price=3.0)
    loads = {16_384: 0.5, 32_768: 0.3, 65_536: 0.3}
    rows = derived([row("lru", size, 0.5, prefill_load=load) for size, load in loads.items()])
    text = capacity_in_words(rows, memory, memory.marks(2048), 2048)
    cost, saved = 1.5 * gpus, 0.6 * gpus
    assert (
        f"Prefill under LRU costs {cost:.2f} per hour of this traffic with the GPU alone; the CPU tier returns {saved:.2f}"
        in text
    )
    same = derived([row("lru", size, 0.5, prefill_load=0.5) for size in loads])
    assert "the CPU tier returns nothing" in capacity_in_words(same, memory, memory.marks(2048), 2048)


def test_without_lru_only_the_sizes_are_given() -> None:
    rows = derived([row("mq", size, 0.5) for size in (16_384, 32_768)])
    assert "LRU" not in capacity_in_words(rows, Memory(KIB_64, GIB, 0), Memory(KIB_64, GIB, 0).marks(2048), 2048)


def test_a_predictor_on_the_gpu_makes_the_cache_smaller_by_multiples_of_its_memory() -> None:
    memory = Memory(KIB_64, 4 * GIB, 0, predictor=GIB / 2)
    left = memory.left_by_predictor(2048)
    assert left == {0: 65_536, 1: 57_344, 2: 49_152, 4: 32_768}
    rows = [row("lru", 65_536, 0.3), *(row("plugin-sidecar", size, size / 100_000) for size in left.values())]
    assert predictor_in_words(derived(rows), memory, left) == (
        "The sidecar's model takes 0.5 GiB from the cache. LRU with the whole memory serves 30.0%. "
        "plugin-sidecar serves 65.5%, **57.3%**, 49.2%, 32.8% with a cache that is smaller by 0, 1, 2, 4 times that memory."
    )


def test_multiples_of_the_predictor_that_leave_no_room_are_named() -> None:
    memory = Memory(KIB_64, GIB, 0, predictor=0.4 * GIB)
    left = memory.left_by_predictor(2048)
    assert left == {0: 16_384, 1: 9_830, 2: 3_276}
    text = predictor_in_words(derived([row("lru", 1, 0.3)]), memory, left)
    assert text.endswith("4 times that memory leave no room for a conversation.") and "LRU" not in text
    assert Memory(KIB_64, GIB, 0).left_by_predictor(2048) == {}


def test_a_conversation_has_the_median_of_the_longest_turns() -> None:
    lengths = {"a": (1, 5), "b": (2, 3), "c": (9,)}
    turns = [
        Turn(name, number, "", 16 * blocks, 0, range(blocks), range(blocks))
        for name, all_of in lengths.items()
        for number, blocks in enumerate(all_of, 1)
    ]
    assert conversation_tokens(Workload("w", 16, turns, False, 0.0, 1.0)) == 5 * 16
    none = [Turn("a", 1, "", 3, 0, (), ())]
    assert conversation_tokens(Workload("w", 16, none, False, 0.0, 1.0)) == 16
