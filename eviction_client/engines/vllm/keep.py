"""What a waiting request will hit in vLLM: the cached prefix that vLLM itself finds for it.

vLLM's look-up cannot stop half-way, so one request may exceed the budget: a prompt of 100,000 tokens takes about as long as
vLLM's own look-up of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from eviction_client.engines.vllm.queue import LearnedFreeQueue
from eviction_client.keep import Found, Keeper


class CachedPrefix:
    """Looks it up. See :class:`eviction_client.keep.Lookup`.

    Args:
        manager: the scheduler's KV-cache manager.
        queue: keeps the blocks; None: they are only looked at.
        hash_block_size: tokens of a block, as the engine hashes them.
    """

    def __init__(self, manager: Any, queue: LearnedFreeQueue | None, hash_block_size: int) -> None:
        self._queue = queue
        self._find_hit: Callable[..., tuple[Any, ...]] = manager.coordinator.find_longest_cache_hit
        self._hash_block_size = hash_block_size

    def find(self, request: Request, budget: int) -> tuple[int, Found]:  # noqa: ARG002
        """Return the blocks looked up, and what the request needs."""
        blocks: tuple[list[KVCacheBlock], ...] = ()
        tokens = 0
        if not request.skip_reading_prefix_cache:
            blocks, tokens, *_ = self._find_hit(request.block_hashes, request.num_tokens - 1)
        needed = [block.block_id for group in blocks for block in group if not block.is_null]
        needs: list[tuple[Keeper, Sequence[Any]]] = [] if self._queue is None else [(self._queue, needed)]
        return len(needed), Found(tokens, request.num_prompt_tokens, self.prompt(request), needs)

    def prompt(self, request: Request) -> Any:
        """Return the hashes of a prompt's full blocks."""
        return request.block_hashes[: request.num_prompt_tokens // self._hash_block_size]
