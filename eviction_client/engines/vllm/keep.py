"""Keep: what waiting requests will hit is evicted last, that of the first to come the very last.

Only the :data:`KEPT_REQUESTS` that came first count. A request needs the cached prefix that vLLM itself finds for it when it
begins to count, which is before a step of the scheduler. One that waits alone counts only if a step has passed it over, so that
nothing is done for an engine that serves at once. What a request has lost meanwhile is known when it starts: a dry run tells
what keeping would save.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from eviction_client.engines.vllm.queue import LearnedFreeQueue
from eviction_client.plugin import Plugin

KEPT_REQUESTS: Final = 256
"""Waiting requests whose blocks are kept."""
BLOCKS_PER_STEP: Final = 1024
"""Cached blocks of requests that begin to count in one step, after which the others have to wait for the next one: a prompt of
100,000 tokens takes about as long as vLLM's own look-up of it.
"""
WARM: Final = 0.5
"""Share of its prompt that is cached when a warm request begins to count."""


@dataclass(slots=True)
class _Waits:
    """What was seen when a request began to count: cached tokens, and cold requests that had started by then."""

    cached: int
    warm: bool
    cold_before: int


class Keep:
    """The waiting requests of one scheduler.

    Args:
        manager: the scheduler's KV-cache manager.
        queue: keeps the blocks; None: they are only looked at.
        hash_block_size: tokens of a block, as the engine hashes them.

    Attributes:
        waited: requests that have waited, ``warm`` and ``cold``; of the warm those that have lost cached blocks meanwhile
            (``evicted``), and those before which a cold one was served (``behind_cold``).
        lost_tokens: cached tokens that warm requests have lost meanwhile.
    """

    def __init__(self, plugin: Plugin, manager: Any, queue: LearnedFreeQueue | None, hash_block_size: int) -> None:
        self.waited = {"warm": 0, "cold": 0, "evicted": 0, "behind_cold": 0}
        self.lost_tokens = 0
        self._plugin = plugin
        self._enabled = plugin.settings.keep_waiting
        self._queue = queue
        self._find_hit: Callable[..., tuple[Any, ...]] = manager.coordinator.find_longest_cache_hit
        self._hash_block_size = hash_block_size
        self._waits: dict[str, _Waits] = {}
        self._beyond: dict[str, Request] = {}
        """Those that do not count, in the order in which they came."""
        self._passed_over = False

    def join(self, request: Request) -> None:
        """Take in a request that waits from now on."""
        self._beyond[request.request_id] = request

    def before_step(self) -> None:
        """Let the requests that came first count, unless there is only one and it may be served at once."""
        waits, beyond = self._waits, self._beyond
        if (
            not beyond
            or not self._enabled
            or len(waits) >= KEPT_REQUESTS
            or (len(waits) + len(beyond) == 1 and not self._passed_over)
        ):
            return
        budget = BLOCKS_PER_STEP
        while beyond and budget > 0 and len(waits) < KEPT_REQUESTS:
            budget -= self._count(beyond.pop(next(iter(beyond))))

    def started(self, scheduled: Any) -> None:
        """Note which requests a step has begun. ``scheduled``: what ``schedule`` returns."""
        if not self._beyond and not self._waits:
            return
        for new in scheduled.scheduled_new_reqs:
            request = self._beyond.pop(new.req_id, None)
            if request is not None:
                self._plugin.started(new.req_id, self._prompt(request))
            elif (waits := self._waits.get(new.req_id)) is not None:
                self._note(waits, new.num_computed_tokens)
                self.leave(new.req_id)
        self._passed_over = bool(self._beyond or self._waits)

    def leave(self, request_id: str) -> None:
        """Let go of a request that waits no more; nothing if it did not."""
        if self._waits.pop(request_id, None) is None:
            self._beyond.pop(request_id, None)
        elif self._queue is not None:
            self._queue.served(request_id)

    def _count(self, request: Request) -> int:
        """Have a request count from now on; return the cached blocks that it needs."""
        blocks: tuple[list[KVCacheBlock], ...] = ()
        tokens = 0
        if not request.skip_reading_prefix_cache:
            blocks, tokens, *_ = self._find_hit(request.block_hashes, request.num_tokens - 1)
        warm = tokens >= WARM * request.num_prompt_tokens
        self._waits[request.request_id] = _Waits(tokens, warm, self.waited["cold"])
        needed = [block for group in blocks for block in group if not block.is_null]
        if self._queue is not None:
            self._queue.wait(request.request_id, needed)
        self._plugin.started(request.request_id, self._prompt(request), kept=True)
        return len(needed)

    def _note(self, waits: _Waits, cached: int) -> None:
        if not waits.warm:
            self.waited["cold"] += 1
            return
        self.waited["warm"] += 1
        self.waited["evicted"] += cached < waits.cached
        self.waited["behind_cold"] += self.waited["cold"] > waits.cold_before
        self.lost_tokens += max(waits.cached - cached, 0)

    def _prompt(self, request: Request) -> Any:
        return request.block_hashes[: request.num_prompt_tokens // self._hash_block_size]
