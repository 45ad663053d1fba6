"""vLLM's waiting queue, warm first.

The queue is vLLM's deque, in vLLM's order. Only the choice of the next request differs: :meth:`peek_request` returns the next
request by :mod:`eviction_client.schedule.warm_first`, and :meth:`pop_request` removes it. Requests that vLLM prepends because
they have started (preempted, resumed) precede all others, in vLLM's order. Requests that vLLM skips in a step (structured
output, LoRA limits, transfers) return to their positions. vLLM's other queues are not changed.

Nothing here raises into the scheduler. After a failure the queue is first come, first served. No request is lost, because
vLLM's deque contains all of them.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from eviction_client.plugin import Plugin
from eviction_client.schedule.prefill import PrefillSpeed, cached_prefix
from eviction_client.schedule.warm_first import OVERTAKE_S, WarmFirst


class CachedPrompts:
    """Counts cached and free blocks in the block pool, without touching blocks or statistics.

    Args:
        find: ``BlockPool.get_cached_block``.
        group: KV-cache group whose blocks represent the prompt.
        block_size: tokens per block of the group.
        hash_block_size: tokens per block hash of a request.
        pool_blocks: blocks of the pool.
        free_blocks: returns those that no request uses.
    """

    def __init__(
        self,
        find: Callable[[Any, list[int]], object],
        group: int,
        block_size: int,
        hash_block_size: int,
        *,
        pool_blocks: int,
        free_blocks: Callable[[], int],
    ) -> None:
        self.capacity = pool_blocks * block_size
        """Capacity of the cache, tokens."""
        self._find = find
        self._free_blocks = free_blocks
        self._group = [group]
        self._size = block_size
        self._hash_size = hash_block_size

    @classmethod
    def of(cls, scheduler: Any) -> "CachedPrompts":
        """Return the counter for a scheduler.

        Raises:
            ValueError: no KV-cache group caches all blocks of a prompt.
        """
        manager = scheduler.kv_cache_manager
        for group in manager.coordinator.single_type_managers:
            if isinstance(group, FullAttentionManager):
                pool = manager.block_pool
                return cls(
                    *(pool.get_cached_block, group.kv_cache_group_id, group.block_size, scheduler.hash_block_size),
                    pool_blocks=pool.num_gpu_blocks,
                    free_blocks=pool.get_num_free_blocks,
                )
        raise ValueError("its model has no full attention")

    def blocks(self, request: Request, known: int) -> int:
        """Return the number of cached blocks from a prompt's start. ``known``: the previous result."""
        if request.skip_reading_prefix_cache:
            return 0
        hashes: Any = request.block_hashes
        if self._size != self._hash_size:
            hashes = BlockHashListWithBlockSize(hashes, self._hash_size, self._size)
        find, group = self._find, self._group
        return cached_prefix(lambda place: find(hashes[place], group) is not None, len(hashes), known)

    def missing(self, request: Request, blocks: int) -> int:
        """Return the tokens of a request that must be computed if this many blocks are cached."""
        missing: int = request.num_tokens - max(blocks * self._size, request.num_computed_tokens)
        return max(missing, 0)

    def room(self) -> int:
        """Return the tokens of the blocks that no request uses."""
        return self._free_blocks() * self._size


class WarmFirstQueue(FCFSRequestQueue):
    """vLLM's waiting queue with another choice of the next request. Only the scheduler's thread calls it.

    Invariant: the deque contains all waiting requests; each is either in ``_begun``, or in ``_blocks`` and the order.

    Args:
        prompts: counts cached blocks.
        failed: called with an exception, after which the queue is first come, first served.
        overtake_s: bound of overtaking, seconds of prefill.
        repeated: returns the share of the lately computed prompt tokens that the cache had before.
        now: returns the time in seconds. Never raises.
        fcfs_forced: returns whether first come, first served is forced now.
        prefill_every: vLLM computes prompts in one of this many steps.

    Attributes:
        busy: whether a step must call :meth:`step_begins` and :meth:`step_ends`.
        speed: speed of the engine's prefill.
        overtaking: requests served before an earlier one.
        seconds: time spent here since it was last set to 0.
    """

    def __init__(
        self,
        prompts: CachedPrompts,
        failed: Callable[[Exception], None],
        *,
        overtake_s: float = OVERTAKE_S,
        repeated: Callable[[], float] = float,
        now: Callable[[], float] = time.monotonic,
        fcfs_forced: Callable[[], bool] = lambda: False,
        prefill_every: int = 1,
    ) -> None:
        super().__init__()
        self.busy = False
        self.speed = PrefillSpeed(prefill_every)
        self.overtaking = 0
        self.seconds = 0.0
        self._prompts = prompts
        self._failed = failed
        self._now = now
        self._fcfs_forced = fcfs_forced
        self._order: WarmFirst[Request] | None = WarmFirst(
            self._missing,
            prompts.capacity,
            room=prompts.room,
            speed=lambda: self.speed.tokens_per_s,
            repeated=repeated,
            overtake_s=overtake_s,
        )
        self._blocks: dict[Request, int] = {}
        """Cached blocks of the waiting requests' prompts at the latest count."""
        self._begun: set[Request] = set()
        self._popped: dict[Request, bool] = {}
        """Requests popped in this step, and whether they overtook. vLLM may skip them and put them back."""
        self._next: Request | None = None
        """The choice until it is popped or the step ends: vLLM peeks, allocates and pops."""
        self._timed = False
        """The speed matters, and is measured, only while the order may differ from vLLM's."""
        self._step_began = 0.0
        self._prompt_tokens: int | None = None
        """Computed in the last step; None if nothing waited after it."""

    @property
    def warm_first(self) -> bool:
        """Whether the order is warm first while the engine thrashes; False after a failure."""
        return self._order is not None

    @property
    def tracked(self) -> int:
        """Requests that it remembers in addition to vLLM's deque."""
        return len(self._blocks) + len(self._begun) + len(self._popped)

    @property
    def overtaken(self) -> float:
        """Tokens by which the oldest waiting request has been overtaken."""
        return 0.0 if self._order is None else self._order.overtaken

    def add_request(self, request: Request) -> None:
        """Add a request that arrives now."""
        super().add_request(request)
        self.busy = True
        self._try(self._add, request)

    def peek_request(self) -> Request:
        """Return the next request, the same until it is popped or the step ends."""
        if self._next is None and len(self) > 1:
            self._next = self._try(self._choose)
        return super().peek_request() if self._next is None else self._next

    def pop_request(self) -> Request:
        """Remove and return the peeked request."""
        request, self._next = self._next, None
        if request is None:
            request = super().pop_request()
        else:
            super().remove_request(request)
        self._try(self._pop, request)
        return request

    def prepend_request(self, request: Request) -> None:
        """Prepend a request, or return it to its position if it was popped in this step."""
        super().prepend_request(request)
        self._next, self.busy = None, True
        self._try(self._put_back, request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend requests in reverse order, or return them to their positions if they were popped in this step."""
        returned = list(requests)
        super().prepend_requests(returned)
        self._next, self.busy = None, True
        for request in returned:
            self._try(self._put_back, request)

    def remove_request(self, request: Request) -> None:
        """Remove a request."""
        super().remove_request(request)
        self._try(self._forget, request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove the waiting ones of these requests."""
        removed = list(requests)
        super().remove_requests(removed)
        for request in removed:
            self._try(self._forget, request)

    def step_begins(self) -> None:
        """Discard the choice, and count the tokens of the last step."""
        self._next, self._timed = None, False
        if self._order is not None:
            self._order.step()
            self._timed = self._order.repeats
        if self._timed:
            now = self._now()
            if self._prompt_tokens is None:
                self.speed.paused()
            else:
                self.speed.note(self._prompt_tokens, now - self._step_began)
            self._step_began = now

    def step_ends(self, scheduled: Any) -> None:
        """Count the requests that have started and the prompt tokens of this step."""
        self._next = None
        self._prompt_tokens = None
        if self._popped:
            self._try(self._settle)
        self.busy = bool(self)
        if self.busy and self._timed:  # the engine has work until the next step, so the time until then is the step's
            self._try(self._count, scheduled)

    # All calls that may fail go through this.

    def _try(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._order is None:
            return None
        started = time.perf_counter()
        try:
            return function(*args)
        except Exception as error:
            self._order = self._next = None
            self._blocks.clear()
            self._begun.clear()
            self._popped.clear()
            self._failed(error)
            return None
        finally:
            self.seconds += time.perf_counter() - started

    def _add(self, request: Request) -> None:
        assert self._order is not None
        self._blocks[request] = 0
        self._order.add(request, request.num_tokens)

    def _choose(self) -> Request | None:
        assert self._order is not None
        if len(self._begun) + len(self._blocks) != len(self):
            raise RuntimeError("the engine has changed its waiting queue in an unknown way")
        if self._begun:
            return next(request for request in self if request in self._begun)
        return None if self._fcfs_forced() else self._order.first()

    def _pop(self, request: Request) -> None:
        assert self._order is not None
        if request in self._begun:
            self._begun.remove(request)
            return
        self._popped[request] = self._order.remove(request)
        del self._blocks[request]

    def _put_back(self, request: Request) -> None:
        assert self._order is not None
        if self._popped.pop(request, None) is None:
            self._begun.add(request)
        else:
            self._blocks[request] = 0
            self._order.restore(request)

    def _forget(self, request: Request) -> None:
        assert self._order is not None
        if request is self._next:
            self._next = None
        self._begun.discard(request)
        if self._blocks.pop(request, None) is not None:
            self._order.drop(request)

    def _settle(self) -> None:
        assert self._order is not None
        self.overtaking += sum(self._popped.values())
        self._popped.clear()
        self._order.settle()

    def _count(self, scheduled: Any) -> None:
        # A decoding request computes one token and the drafted ones.
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        self._prompt_tokens = scheduled.total_num_scheduled_tokens - len(scheduled.num_scheduled_tokens) - drafted

    def _missing(self, request: Request) -> int:
        """Return the prompt tokens that a request would compute if it started now."""
        blocks = self._blocks[request] = self._prompts.blocks(request, self._blocks[request])
        return self._prompts.missing(request, blocks)


def _prefill_every(scheduler: Any) -> int:
    """Return in one of how many steps vLLM computes prompts (``--prefill-schedule-interval``).

    Before vLLM 0.33 only ranks of data parallelism that run in step do so.
    """
    if scheduler.vllm_config.parallel_config.data_parallel_size > 1:
        return int(scheduler.scheduler_config.prefill_schedule_interval)
    return int(getattr(scheduler, "local_prefill_interval", 1))


def adopt(scheduler: Any, plugin: Plugin) -> WarmFirstQueue:
    """Replace the waiting queue of a scheduler that has passed the check (`conformance.why_fcfs`), and return the new one.

    Raises:
        Exception: the engine lacks these parts. Nothing has changed then.
    """
    queue = WarmFirstQueue(
        CachedPrompts.of(scheduler),
        plugin.failed,
        overtake_s=plugin.settings.overtake_s,
        repeated=lambda: plugin.misses.repeated_prefill.share,
        now=plugin.now,
        fcfs_forced=lambda: plugin.lru_forced,
        prefill_every=_prefill_every(scheduler),
    )
    for request in scheduler.waiting:
        queue.add_request(request)
    scheduler.waiting = queue
    return queue
