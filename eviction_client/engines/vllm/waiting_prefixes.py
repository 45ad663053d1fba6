"""Keeps the cached prefixes of waiting requests: they are evicted last, that of the oldest request last of all.

Only the :data:`KEPT_REQUESTS` oldest waiting requests count. A request counts from a step of the scheduler on, with the prefix
that is cached then, in the block pool and in the tiers below. A request that waits alone counts only after a step has passed it
over, so that nothing is done for an engine that serves at once. When a request starts, its lost tokens are counted: in a dry
run, those that keeping would save.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from vllm.v1.request import Request

from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.engines.vllm.requests import id_of, prompt_blocks_of
from eviction_client.observability.waiting_stats import KEPT_REQUESTS, WaitingStats, WaitStart
from eviction_client.plugin import Plugin

BLOCKS_PER_STEP: Final = 1024
"""Blocks looked up before one step; the remaining requests are looked up before later steps. vLLM's look-up cannot stop
half-way, so one request may exceed it: a prompt of 100,000 tokens takes about as long as vLLM's own look-up of it."""


class WaitingPrefixes:
    """The waiting requests of one scheduler.

    Args:
        scheduler: vLLM's.
        queue: keeps the blocks; None: they are only looked up.
        policies: policies of the tiers below, which keep the chunks that follow the prefix in the pool.

    Attributes:
        waited: statistics of the requests that have waited.
        counted: the requests that count.
        beyond: the other waiting requests, oldest first.
    """

    def __init__(
        self,
        plugin: Plugin,
        scheduler: Any,
        queue: LearnedFreeQueue | None,
        policies: Sequence[Any] = (),
    ) -> None:
        self.waited = WaitingStats()
        self.counted: dict[str, WaitStart] = {}
        self.beyond: dict[str, Request] = {}
        self._plugin = plugin
        self._queue = queue
        self._find_hit: Callable[..., tuple[Any, ...]] = scheduler.kv_cache_manager.coordinator.find_longest_cache_hit
        # vLLM 0.33: a hit also ends where outputs of layers are lost. To ask refreshes them, so a dry run does not.
        outputs = None if queue is None else getattr(scheduler, "aux_output_connector", None)
        self._longest_hit: Callable[[Request], int] | None = getattr(outputs, "max_cache_hit", None)
        self._block_tokens: int = scheduler.hash_block_size
        self._lookahead: int = getattr(scheduler, "num_hash_lookahead_tokens", 0)  # since vLLM 0.33
        self._policies = policies
        self._enabled = plugin.settings.keep_waiting
        self._passed_over = False
        self._kept = False

    def join(self, request: Request) -> None:
        """Add a request that starts to wait."""
        self.beyond[id_of(request)] = request

    def before_step(self) -> None:
        """Look up and count the oldest waiting requests, unless there is only one and it may be served at once.

        While LRU is forced, nothing is kept for any of them.
        """
        counted, beyond = self.counted, self.beyond
        if self._plugin.lru_forced:
            if self._kept:
                self._kept = False
                for request_id in counted:
                    self._release(request_id)
            return
        if not beyond or not self._enabled or (len(counted) + len(beyond) == 1 and not self._passed_over):
            return
        budget = BLOCKS_PER_STEP
        while beyond and budget > 0 and len(counted) < KEPT_REQUESTS:
            budget -= self._count(beyond.pop(next(iter(beyond))))

    def started(self, requests: Iterable[tuple[str, int]]) -> None:
        """Record the requests that a step has started, with the cached tokens of their prompts. Ignores unknown requests."""
        for request_id, cached in requests:
            request = self.beyond.pop(request_id, None)
            if request is not None:
                self._plugin.started(request_id, self._prompt(request), cached=cached)
            elif (waits := self.counted.get(request_id)) is not None:
                self.waited.served(waits, cached)
                self._plugin.served(request_id, cached)
                self.leave(request_id)
        self._passed_over = bool(self.beyond or self.counted)

    def reset(self) -> None:
        """Note that the block pool has been emptied: waiting requests have not lost what they cannot hit any more."""
        for waits in self.counted.values():
            waits.cached = 0

    def leave(self, request_id: str) -> None:
        """Remove a request if it waits."""
        self.beyond.pop(request_id, None)
        if self.counted.pop(request_id, None) is not None:
            self._release(request_id)

    def _release(self, request_id: str) -> None:
        if self._queue is not None:
            self._queue.release(request_id)
        for policy in self._policies:
            policy.release(request_id)

    def _count(self, request: Request) -> int:
        """Keep what a request will hit; return the number of blocks looked up."""
        request_id, size = id_of(request), self._block_tokens
        blocks: Sequence[int] = ()
        chunks: list[Sequence[Any]] = [() for _ in self._policies]
        cached = 0
        if not request.skip_reading_prefix_cache:
            longest = request.num_tokens - 1 if self._longest_hit is None else self._longest_hit(request)
            groups, cached, *_ = self._find_hit(request.block_hashes, longest)
            blocks = [block.block_id for group in groups for block in group if not block.is_null]
            chain = request.block_hashes[: (request.num_tokens - 1) // size]
            chunks = [policy.find(chain, cached // size) for policy in self._policies]
        self._kept = True
        self.counted[request_id] = WaitStart(cached, request.num_prompt_tokens, self.waited.requests["cold"])
        if self._queue is not None:
            self._queue.wait(request_id, blocks)
        for policy, found in zip(self._policies, chunks, strict=True):
            policy.wait(request_id, found)
        self._plugin.started(request_id, self._prompt(request), kept=True)
        return len(blocks) + sum(map(len, chunks))

    def _prompt(self, request: Request) -> Any:
        """Return the hashes of a prompt's full blocks."""
        return request.block_hashes[: prompt_blocks_of(request, self._block_tokens, self._lookahead)]
