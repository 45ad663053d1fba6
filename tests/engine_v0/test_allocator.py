"""V0's real prefix-caching allocator under random operations: equal results with the stock evictor and with ours."""

import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from vllm.core.block.block_table import BlockTable
from vllm.core.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from vllm.utils import Device

from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor
from lpc.model.curve import KNOTS

pytestmark = pytest.mark.supports(
    engine="vLLM V0",
    tier="GPU pool",
    what="its allocator: content hashes, reference counts, computed blocks, hit rate and copy on write as stock",
)

BLOCKS, BLOCK = 48, 4
OPERATIONS = 4_000 if os.environ.get("LPC_TEST_SHORT") else 40_000


def allocators() -> tuple[Any, Any]:
    """The allocator that block tables use, and its GPU part."""
    both = CpuGpuBlockAllocator.create(
        allocator_type="prefix_caching", num_gpu_blocks=BLOCKS, num_cpu_blocks=BLOCKS, block_size=BLOCK
    )
    return both, both._allocators[Device.GPU]


TABLES = [[value / (1.0 + age) for age in KNOTS] for value in (1e-6, 1e-3, 1.0)]


def learned(*, value_enabled: bool) -> tuple[Any, Any]:
    both, gpu = allocators()
    gpu.evictor = LearnedEvictor(gpu.evictor, len(TABLES), block_size=BLOCK, clock=lambda: 2e9)
    gpu.evictor.queue.set_tables(TABLES)
    gpu.evictor.queue.value_enabled = value_enabled
    return both, gpu


class Seen(NamedTuple):
    """Return the observable state of an allocator, and its internal state."""

    operation: str
    tables: list[list[int]]
    contents: list[list[int | None]]
    references: list[int]
    computed: list[bool]
    cached: dict[int, int]
    free: int
    copies: list[tuple[int, int]]
    hit_rate: float


def course(both: Any, gpu: Any, seed: int) -> Iterator[Seen]:
    rng = random.Random(seed)
    tables: list[Any] = []
    families = [[rng.randrange(50) for _ in range(40)] for _ in range(5)]
    now = 1e9
    for _ in range(OPERATIONS):
        now += rng.choice([0.0, 0.0, 0.3, 5.0])
        free = gpu.get_num_free_blocks()
        choices = ["free"] * bool(tables)
        if free > 14:
            choices += ["allocate", "allocate"] + ["append", "append", "fork", "computed"] * bool(tables)
        operation = rng.choice(choices)
        copies: list[tuple[int, int]] = []
        if operation == "allocate":
            family = rng.choice(families)
            tokens = family[: rng.randrange(1, 40)] + [rng.randrange(50) for _ in range(rng.randrange(4))]
            table = BlockTable(block_size=BLOCK, block_allocator=both)
            table.allocate(token_ids=tokens, device=Device.GPU)
            tables.append(table)
        elif operation == "append":
            tokens = [rng.randrange(50) for _ in range(rng.randrange(1, 7))]
            rng.choice(tables).append_token_ids(token_ids=tokens, num_lookahead_slots=0)
            copies = both.clear_copy_on_writes()
        elif operation == "fork":
            tables.append(rng.choice(tables).fork())
        elif operation == "computed":
            gpu.mark_blocks_as_computed([])
        else:
            table = tables.pop(rng.randrange(len(tables)))
            gpu.mark_blocks_as_accessed(table.physical_block_ids, now)
            table.free()
        yield Seen(
            operation,
            [table.physical_block_ids for table in tables],
            [[block.content_hash for block in table.blocks] for table in tables],
            [gpu._refcounter.get(block) for block in range(BLOCKS)],
            [gpu.block_is_computed(block) for block in range(BLOCKS)],
            dict(gpu._cached_blocks),
            gpu.get_num_free_blocks(),
            copies,
            gpu.get_prefix_cache_hit_rate() if hasattr(gpu, "metric_data") else 0.0,
        )


@pytest.mark.parametrize("seed", [1, 2])
def test_under_lru_the_allocator_equals_stock_after_every_operation(seed: int) -> None:
    done: dict[str, int] = {}
    copied = evicted = hits = 0
    before: dict[int, int] = {}
    for stock, mine in zip(course(*allocators(), seed), course(*learned(value_enabled=False), seed), strict=True):
        assert mine == stock
        done[stock.operation] = done.get(stock.operation, 0) + 1
        copied += len(stock.copies)
        evicted += len(before.keys() - stock.cached.keys())
        hits = max(hits, max(stock.references))
        before = stock.cached
    assert min(done.values()) > OPERATIONS / 20 and len(done) == 5
    assert copied > OPERATIONS / 100 and evicted > OPERATIONS / 10 and hits > 2


def test_by_value_the_allocator_stays_consistent() -> None:
    both, gpu = learned(value_enabled=True)
    evicted = 0
    before: dict[int, int] = {}
    for seen in course(both, gpu, 3):
        free = {block for block in seen.cached.values() if not seen.references[block]}
        assert gpu.evictor.num_blocks == gpu.evictor.queue.num_free_blocks == len(free)
        assert all(block in gpu.evictor for block in free)
        evicted += len(before.keys() - seen.cached.keys())
        before = seen.cached
    assert evicted > OPERATIONS / 10


def chain(both: Any, tokens: list[int]) -> Any:
    table = BlockTable(block_size=BLOCK, block_allocator=both)
    table.allocate(token_ids=tokens, device=Device.GPU)
    return table


def test_by_value_the_lowest_goes_first_and_of_a_chain_its_deepest_block() -> None:
    both, gpu = learned(value_enabled=True)
    freed = {}
    runs = {"high": [Run(3, 2)], "low": [Run(3, 0)], "middle": [Run(3, 1)], "split": [Run(1, 2), Run(3, 0)]}
    for name in runs:
        table = chain(both, [ord(name[0])] * 12)
        freed[name] = table.physical_block_ids
        gpu.mark_blocks_as_accessed(freed[name], 1e9)
        gpu.evictor.placing(Ended(None, None, (), 0, 0.0, 0, runs[name]), table.free)
    order = [gpu.evictor.evict()[0] for _ in range(12)]
    low, middle, high, split = (freed[name][::-1] for name in ("low", "middle", "high", "split"))
    assert order == [*low, *split[:2], *middle, *high, split[2]]


def test_stock_loses_a_free_block_that_is_updated_and_ours_does_not() -> None:
    both, gpu = learned(value_enabled=False)
    table = chain(both, list(range(8)))
    first, second = table.physical_block_ids
    gpu.mark_blocks_as_accessed([first, second], 1e9)
    table.free()
    gpu.mark_blocks_as_accessed([second], 1e9 + 50)  # free by now
    assert [gpu.evictor.evict()[0] for _ in range(2)] == [first, second]
