"""vLLM's waiting queue, cached first.

The queue is vLLM's deque, in vLLM's order. Only the choice of the next request differs: :meth:`peek_request` returns the first
request in the order of :mod:`eviction_client.policy.cached_first`, and :meth:`pop_request` removes it. Requests that vLLM
prepends because they have started (preempted, resumed) precede all others, in vLLM's order. Requests that vLLM skips in a step
(structured output, LoRA limits, transfers) return to their positions. vLLM's other queues are not changed.

Nothing here raises into the scheduler. After a failure the queue is first come, first served. No request is lost, because
vLLM's deque contains all of them.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from eviction_client.plugin import Plugin
from eviction_client.policy.cached_first import CachedFirst, Place
from eviction_client.policy.prefill import PrefillSpeed, cached_prefix


class CachedPrompts:
    """Counts a prompt's cached blocks in the block pool, without touching blocks or statistics.

    Args:
        find: ``BlockPool.get_cached_block``.
        group: KV-cache group whose blocks represent the prompt.
        block_size: tokens per block of the group.
        hash_block_size: tokens per block hash of a request.
    """

    def __init__(self, find: Callable[[Any, list[int]], object], group: int, block_size: int, hash_block_size: int) -> None:
        self._find = find
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
                find, number = manager.block_pool.get_cached_block, group.kv_cache_group_id
                return cls(find, number, group.block_size, scheduler.hash_block_size)
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

    def missing(self, request: Request, blocks: int) -> float:
        """Return the share of a request's tokens that must be computed if this many blocks are cached."""
        computed = max(blocks * self._size, request.num_computed_tokens)
        share: float = 1.0 - computed / max(request.num_tokens, 1)
        return min(max(share, 0.0), 1.0)


@dataclass(eq=False, slots=True)
class Waiting:
    """A waiting request.

    Attributes:
        prefill_s: prefill time of its whole prompt at the engine's speed at its arrival, seconds. Fixed, so that the bound on
            overtaking holds when the speed changes.
        blocks: cached blocks of its prompt at the latest count.
    """

    request: Request
    prefill_s: float
    blocks: int = 0


class CachedFirstQueue(FCFSRequestQueue):
    """vLLM's waiting queue with another choice of the next request. Only the scheduler's thread calls it.

    Invariant: the deque contains all waiting requests; each is either in ``_begun``, or in ``_waiting`` and the order.

    Args:
        prompts: counts cached blocks.
        now: returns monotonic seconds.
        failed: called with an exception, after which the queue is first come, first served.
        fcfs_forced: returns whether first come, first served is forced now.

    Attributes:
        overtaking: requests served before an earlier one.
        seconds: time spent here since it was last set to 0.
    """

    def __init__(
        self,
        prompts: CachedPrompts,
        now: Callable[[], float],
        failed: Callable[[Exception], None],
        fcfs_forced: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.overtaking = 0
        self.seconds = 0.0
        self.speed = PrefillSpeed()
        self._prompts = prompts
        self._now = now
        self._failed = failed
        self._fcfs_forced = fcfs_forced
        self._order: CachedFirst[Waiting] | None = CachedFirst(self._missing)
        self._waiting: dict[Request, Waiting] = {}
        self._begun: set[Request] = set()
        self._popped: dict[Request, tuple[Waiting, Place, bool]] = {}
        """Requests popped in this step, with position and whether they overtook. vLLM may skip them and put them back."""
        self._next: Request | None = None
        """The choice until it is popped or the step ends: vLLM peeks, allocates and pops."""
        self._refreshed = False
        """In this step."""
        self._step_began = 0.0
        self._prompt_tokens = 0
        """Prompt tokens of the last step if requests waited; otherwise 0."""

    @property
    def cached_first(self) -> bool:
        """Whether the order is cached first; False after a failure."""
        return self._order is not None

    def add_request(self, request: Request) -> None:
        """Add a request that arrives now."""
        super().add_request(request)
        self._try(self._add, request)

    def peek_request(self) -> Request:
        """Return the next request, the same until it is popped or the step ends."""
        if self._next is None and len(self) > 1:
            self._next = self._try(self._choose)
        return super().peek_request() if self._next is None else self._next

    def pop_request(self) -> Request:
        """Remove and return the peeked request."""
        request, self._next = self._next, None
        first = self[0] if self else None
        if request is None:
            request = super().pop_request()
        else:
            super().remove_request(request)
        self._try(self._pop, request, first)
        return request

    def prepend_request(self, request: Request) -> None:
        """Prepend a request, or return it to its position if it was popped in this step."""
        super().prepend_request(request)
        self._next = None
        self._try(self._put_back, request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend requests in reverse order, or return them to their positions if they were popped in this step."""
        returned = list(requests)
        super().prepend_requests(returned)
        self._next = None
        for request in returned:
            self._try(self._put_back, request)

    def remove_request(self, request: Request) -> None:
        """Remove a request."""
        super().remove_request(request)
        self._forget(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove the waiting ones of these requests."""
        removed = list(requests)
        super().remove_requests(removed)
        for request in removed:
            self._forget(request)

    def step_begins(self) -> None:
        """Discard the choice, and count the tokens of the last step."""
        self._next, self._refreshed = None, False
        if self or self._prompt_tokens:
            self._try(self._time)

    def step_ends(self, scheduled: Any) -> None:
        """Count the requests that have started and the prompt tokens of this step."""
        self._next = None
        for _, _, overtook in self._popped.values():
            self.overtaking += overtook
        self._popped.clear()
        self._prompt_tokens = 0
        if self:  # the engine then has work until the next step, so the time until then is the step's
            self._try(self._count, scheduled)

    # All calls that may fail go through this.

    def _try(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._order is None:
            return None
        started = time.perf_counter()
        try:
            return function(*args)
        except Exception as error:
            self._order = None
            self._waiting.clear()
            self._begun.clear()
            self._popped.clear()
            self._failed(error)
            return None
        finally:
            self.seconds += time.perf_counter() - started

    def _add(self, request: Request) -> None:
        assert self._order is not None
        waiting = Waiting(request, request.num_tokens / self.speed.tokens_per_s)
        self._order.add(waiting, self._now())
        self._waiting[request] = waiting

    def _choose(self) -> Request | None:
        assert self._order is not None
        if len(self._begun) + len(self._waiting) != len(self):
            raise RuntimeError("the engine has changed its waiting queue in an unknown way")
        if self._begun:
            return next(request for request in self if request in self._begun)
        if not self._refreshed:
            self._refreshed = True
            self._order.refresh()
        return self._order.first().request

    def _pop(self, request: Request, first: Request) -> None:
        assert self._order is not None
        if request in self._begun:
            self._begun.remove(request)
            return
        waiting, head = self._waiting[request], self._waiting.get(first)
        overtook = head is not None and self._order.came_before(head, waiting)
        self._popped[request] = waiting, self._order.remove(waiting), overtook
        del self._waiting[request]

    def _put_back(self, request: Request) -> None:
        assert self._order is not None
        popped = self._popped.pop(request, None)
        if popped is None:
            self._begun.add(request)
        else:
            waiting, place, _ = popped
            self._waiting[request] = waiting
            self._order.restore(waiting, place)

    def _forget(self, request: Request) -> None:
        if request is self._next:
            self._next = None
        self._begun.discard(request)
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            self._try(self._remove, waiting)

    def _remove(self, waiting: Waiting) -> None:
        assert self._order is not None
        self._order.remove(waiting)

    def _missing(self, waiting: Waiting) -> float:
        """Return the prefill that a request needs now, seconds; 0 for all if first come, first served is forced."""
        if self._fcfs_forced():
            return 0.0
        waiting.blocks = self._prompts.blocks(waiting.request, waiting.blocks)
        return waiting.prefill_s * self._prompts.missing(waiting.request, waiting.blocks)

    def _time(self) -> None:
        now = self._now()
        self.speed.note(self._prompt_tokens, now - self._step_began)
        self._step_began = now

    def _count(self, scheduled: Any) -> None:
        # A decoding request computes one token and the drafted ones.
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        self._prompt_tokens = scheduled.total_num_scheduled_tokens - len(scheduled.num_scheduled_tokens) - drafted


def adopt(scheduler: Any, plugin: Plugin) -> CachedFirstQueue:
    """Replace the waiting queue of a scheduler that has passed the check (`conformance.why_fcfs`), and return the new one.

    Raises:
        Exception: the engine lacks these parts. Nothing has changed then.
    """
    queue = CachedFirstQueue(CachedPrompts.of(scheduler), plugin.now, plugin.failed, lambda: plugin.lru_forced)
    for request in scheduler.waiting:
        queue.add_request(request)
    scheduler.waiting = queue
    return queue
