"""What a waiting request will hit in vLLM: the cached prefix that vLLM finds for it, and in the tier below what follows that.

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
        policies: of the tiers below, which keep what lies behind that prefix.
    """

    def __init__(
        self,
        manager: Any,
        queue: LearnedFreeQueue | None,
        hash_block_size: int,
        policies: Sequence[Any] = (),
    ) -> None:
        self._queue = queue
        self._find_hit: Callable[..., tuple[Any, ...]] = manager.coordinator.find_longest_cache_hit
        self._hash_block_size = hash_block_size
        self._policies = policies

    def find(self, request: Request, budget: int) -> tuple[int, Found]:  # noqa: ARG002
        """Return the blocks looked up, and what the request needs."""
        blocks: tuple[list[KVCacheBlock], ...] = ()
        tokens = 0
        if not request.skip_reading_prefix_cache:
            blocks, tokens, *_ = self._find_hit(request.block_hashes, request.num_tokens - 1)
        needed: Sequence[Any] = [block.block_id for group in blocks for block in group if not block.is_null]
        needs: list[tuple[Keeper, Sequence[Any]]] = [] if self._queue is None else [(self._queue, needed)]
        if self._policies and not request.skip_reading_prefix_cache:
            size = self._hash_block_size
            chain = request.block_hashes[: (request.num_tokens - 1) // size]
            needs += [(policy, policy.find(chain, tokens // size)) for policy in self._policies]
        looked_up = max(len(needed), sum(len(found) for _, found in needs))
        return looked_up, Found(tokens, request.num_prompt_tokens, self.prompt(request), needs)

    def prompt(self, request: Request) -> Any:
        """Return the hashes of a prompt's full blocks."""
        return request.block_hashes[: request.num_prompt_tokens // self._hash_block_size]
