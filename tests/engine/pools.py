"""Real block pools of vLLM without a model, with the stock queue and with ours."""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from lpc.model.curve import KNOTS


def pool_of(blocks: int) -> BlockPool:
    return BlockPool(num_gpu_blocks=blocks, enable_caching=True, hash_block_size=16)


CLASSES = 4


def table(value: float, peak: float = 0.0) -> list[float]:
    """Return values that rise until an age, if given, and then fall."""
    return [value * (1.0 + min(age, peak)) / (1.0 + max(age - peak, 0.0)) for age in KNOTS]


TABLES = [table(1e-3), table(1e-2), table(1e-4, peak=30.0), table(1e-6)]


def adopt(pool: BlockPool, clock: Callable[[], float], *, by_value: bool = True) -> LearnedFreeQueue:
    queue = LearnedFreeQueue(pool.free_block_queue.get_all_free_blocks(), CLASSES, clock=clock)
    queue.set_tables(TABLES if by_value else None)
    pool.free_block_queue = queue
    return queue


def give_hash(pool: BlockPool, block: KVCacheBlock, content: int) -> None:
    key: Any = content.to_bytes(32, "big") + bytes(4)
    if hasattr(block, "set_block_hash"):
        block.set_block_hash(key, num_tokens=16)
    else:
        block.block_hash = key
    pool.cached_block_hash_to_block.insert(key, block)


def order(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def ids(blocks: Sequence[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]
