"""Hooks that the plug-in installs on a vLLM scheduler.

- ``kv_cache_manager.block_pool.free_block_queue`` becomes a :class:`LearnedFreeQueue` with the same blocks;
- ``kv_cache_manager.free`` becomes :meth:`Hooks.free`. Finish, abort, preemption, failed load: every free of a request that
  is carried out at once passes there, and its reuse classes go with the call;
- ``kv_cache_manager.pop_blocks_for_free`` becomes :meth:`Hooks.pop_blocks_for_free`. There a free begins that vLLM puts off
  while a step in flight may still write the blocks: the list that vLLM keeps is a :class:`FreedLater`, which brings the
  request's classes to ``block_pool.free_blocks``, now :meth:`Hooks.free_blocks`;
- ``block_pool.reset_prefix_cache`` becomes :meth:`Hooks.reset_prefix_cache`, which empties the plug-in's records as well;
  the scheduler's own becomes :meth:`Hooks.reset_all`;
- the scheduler's ``add_request`` calls :meth:`Hooks.admitted` once vLLM has taken the request; ``schedule`` becomes
  :meth:`Steps.schedule`, which calls :meth:`Hooks.step` and :meth:`Hooks.started`; ``shutdown`` closes the plug-in last. From
  its admission to its start a request waits, and what it will hit is kept (:class:`WaitingPrefixes`).

Only these instances are patched; vLLM's classes, and with them every other engine of the process, are untouched.

A reuse class travels with a call or batch, never on a block, and cannot outlive the free that it is meant for. Frees without a
request (sliding windows, copy on write, unpinned blocks) go to the class of blocks used once, as just used. Blocks of a request
that goes on (preempted, failed load) go last, as in stock vLLM, and sink if it does not resume.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and the blocks lie in the class of
blocks used once.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from eviction_client.engines.vllm.free_queue import FlooredFreeQueue, FreedLater, LearnedFreeQueue
from eviction_client.engines.vllm.preemptions import Preemptions
from eviction_client.engines.vllm.requests import (
    category_of,
    completed,
    hints_of,
    id_of,
    kind_of,
    prompt_blocks_of,
    reply_end_of,
    resendable,
    session_of,
    some_layers_of,
    tenant_of,
    user_of,
)
from eviction_client.engines.vllm.waiting import WarmFirstQueue
from eviction_client.engines.vllm.waiting_prefixes import WaitingPrefixes
from eviction_client.engines.vllm_cpu.loads import TierLoads
from eviction_client.engines.vllm_cpu.placing import Tiers
from eviction_client.plugin import Plugin
from eviction_client.policy.queue.free_queue import RENEWED_S
from eviction_client.policy.request import TrackedRequest
from lpc.wire.session import key_of

STEP_S: Final = 1.04 * RENEWED_S
"""Seconds between two runs of the pending work unless requests wait: slightly more than the interval at which values are
renewed."""


class Hooks:
    """What is attached to one scheduler. All methods belong to its thread.

    Args:
        adopt: put our queue into the block pool; else (dry run) the engine's own order stays.
        tiers: below the block pool, in which our policy is.

    Raises:
        Exception: the engine has no such parts. Then nothing was attached.

    Attributes:
        queue: ours, in the block pool; None in a dry run.
        keep: the waiting requests.
        preemptions: what they cost.
        loads: load or compute, for each tier.
        steps: the scheduler's ``schedule``.
    """

    def __init__(
        self,
        scheduler: Any,
        plugin: Plugin,
        *,
        adopt: bool,
        tiers: Tiers | None = None,
    ) -> None:
        self.plugin = plugin
        self.tiers = tiers or Tiers()
        self.loads: Sequence[TierLoads] = ()
        self.queue: LearnedFreeQueue | None = None
        self._hash_block_size: int = scheduler.hash_block_size
        self._lookahead: int = getattr(scheduler, "num_hash_lookahead_tokens", 0)  # since vLLM 0.33
        manager = scheduler.kv_cache_manager
        pool = manager.block_pool
        self._free_blocks_of: Callable[[], int] = pool.get_num_free_blocks
        self._blocks: int = pool.num_gpu_blocks
        self._requests: Mapping[str, Any] = scheduler.requests
        self._stock_add_request: Callable[..., None] = scheduler.add_request
        self._stock_shutdown: Callable[..., None] = scheduler.shutdown
        self._stock_reset_all: Callable[..., bool] = scheduler.reset_prefix_cache
        self._stock_free: Callable[[Request], None] = manager.free
        self._stock_pop: Callable[[Request], list[KVCacheBlock]] = manager.pop_blocks_for_free
        self._stock_free_blocks: Callable[[Iterable[KVCacheBlock]], None] = pool.free_blocks
        self._stock_reset: Callable[..., bool] = pool.reset_prefix_cache
        groups = manager.coordinator.single_type_managers
        scales = [max(group.block_size // self._hash_block_size, 1) for group in groups]
        if adopt:
            # From here on nothing fails: the stock queue has given its blocks away.
            self.queue = self._adopt(pool, scales)
        self.keep = WaitingPrefixes(plugin, scheduler, self.queue, self.tiers.policies)
        self.preemptions = Preemptions(scheduler)
        self.steps = Steps(scheduler.schedule, self)
        self._wrap(scheduler)

    def _adopt(self, pool: Any, scales: list[int]) -> LearnedFreeQueue:
        """Put our queue into the block pool and return it. ``scales``: see :class:`LearnedFreeQueue`."""
        plugin = self.plugin
        free = pool.free_block_queue.get_all_free_blocks()
        shares = plugin.settings.tenant_floors
        kind = FlooredFreeQueue if shares else LearnedFreeQueue
        policy = plugin.policy
        queue = kind(
            *(free, policy.classes),
            scales=scales,
            plain=policy.plain,
            retained=plugin.retained,
            below=self.tiers.holds if self.tiers.policies else None,
            clock=plugin.now_or_latest,
        )
        if isinstance(queue, FlooredFreeQueue):
            queue.set_floors(shares, self._blocks)
        plugin.set_rule(queue)
        pool.free_block_queue = queue
        pool.free_blocks = self.free_blocks
        return queue

    def _wrap(self, scheduler: Any) -> None:
        """Replace the methods of the scheduler and of its KV-cache manager."""
        manager = scheduler.kv_cache_manager
        manager.free = self.free
        manager.pop_blocks_for_free = self.pop_blocks_for_free
        manager.block_pool.reset_prefix_cache = self.reset_prefix_cache
        scheduler.add_request, scheduler.shutdown = self.add_request, self.shutdown
        scheduler.schedule = self.steps.schedule
        scheduler.reset_prefix_cache = self.reset_all

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.add_request``, which also asks the predictor."""
        self._stock_add_request(request, *args, **kwargs)
        self.admitted(request)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.shutdown``, which also closes predictor and store."""
        self._stock_shutdown(*args, **kwargs)
        self.plugin.close()

    def reset_all(self, *args: Any, **kwargs: Any) -> bool:
        """``Scheduler.reset_prefix_cache``, which preempts the running requests if it is asked to."""
        self.preemptions.resetting = True
        try:
            return self._stock_reset_all(*args, **kwargs)
        finally:
            self.preemptions.resetting = False

    def admitted(self, request: Request) -> None:
        """Note a request, and ask the predictor if it has token ids; unless its input is streamed, which changes it.

        The continuation and the end of streamed input also pass ``add_request``, as a request with the id of the first one.
        vLLM does not admit these, so no later call would end what is stored of them here.
        """
        started = time.perf_counter()
        try:
            new = self._requests.get(request.request_id) is request
            if new and not request.is_finished() and not request.resumable:
                if request.prompt_token_ids:
                    self.plugin.admitted(
                        *(id_of(request), request.prompt_token_ids),
                        session=session_of(request),
                        category=kind_of(request),
                        user=user_of(request),
                    )
                self.keep.join(request)
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += time.perf_counter() - started

    def started(self, scheduled: Any) -> None:
        """Have the prompts of those requests looked at that a step has begun."""
        started = time.perf_counter()
        try:
            self.keep.started((key_of(new.req_id), new.num_computed_tokens) for new in scheduled.scheduled_new_reqs)
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += time.perf_counter() - started

    def resumed(self, scheduled: Any) -> None:
        """Count what preempted requests that a step resumes compute again."""
        try:
            self.preemptions.scheduled(scheduled)
        except Exception as error:
            self.plugin.failed(error)

    def step(self) -> bool:
        """Run the pending work before a step of the scheduler: take over rule and values, end retentions, renew values.

        Return whether retentions are left that are over.
        """
        plugin, more = self.plugin, False
        started = time.perf_counter()
        if self.queue is not None:
            plugin.set_rule(self.queue)  # first: what fails below must not keep a rule in force
        try:
            if self.queue is not None:
                plugin.place_again(self.queue)
                more = self.queue.step()
            self.keep.before_step()
        except Exception as error:
            plugin.failed(error)
        for policy in self.tiers.policies:
            more |= policy.step()
        plugin.seconds += time.perf_counter() - started
        return more

    def free(self, request: Request) -> None:
        """``KVCacheManager.free``, whose blocks get the request's classes."""
        finished = self.finished(request)
        if self.queue is None:
            self._stock_free(request)
        else:
            self.queue.placing(finished, self._stock_free, request)

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        """``KVCacheManager.pop_blocks_for_free``, whose blocks keep the request's classes until they are freed."""
        finished = self.finished(request)
        blocks = self._stock_pop(request)
        return blocks if self.queue is None or not blocks else FreedLater(blocks, finished)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """``BlockPool.free_blocks``, which gives a batch that was put off the classes that it was given then."""
        queue = self.queue
        if queue is None:
            self._stock_free_blocks(ordered_blocks)
        elif isinstance(ordered_blocks, FreedLater):
            queue.placing(ordered_blocks.request, queue.free, self._stock_free_blocks, ordered_blocks)
        else:
            queue.free(self._stock_free_blocks, list(ordered_blocks))

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """``BlockPool.reset_prefix_cache``; when it has emptied the pool, the plug-in forgets what was in it."""
        done = self._stock_reset(*args, **kwargs)
        if done:
            try:
                if self.queue is not None:
                    self.queue.clear()
                self.keep.reset()
                self.plugin.reset()
            except Exception as error:
                self.plugin.failed(error)
        return done

    def finished(self, request: Request) -> TrackedRequest[Any] | None:
        """Note the end of a request, and return it with its classes; None: it goes on. Never raises."""
        started = time.perf_counter()
        finished: TrackedRequest[Any] | None = None
        try:
            if not request.is_finished():
                self.preemptions.freed(request)
            else:
                if self.preemptions.pending:
                    self.preemptions.ended(request)
                self.keep.leave(id_of(request))
                size = self._hash_block_size
                self.plugin.in_use(self._blocks - self._free_blocks_of())
                computed = request.block_hashes[: request.num_computed_tokens // size]
                finished = self.plugin.finished(
                    id_of(request),
                    completed=completed(request),
                    blocks=computed,
                    prompt_blocks=min(len(computed), prompt_blocks_of(request, size, self._lookahead)),
                    reply_end=reply_end_of(request),
                    session=session_of(request),
                    hints=hints_of(request),
                    token_ids=request.prompt_token_ids or (),
                    prompt_tokens=request.num_prompt_tokens,
                    some_layers=some_layers_of(request),
                    reads_cache=not request.skip_reading_prefix_cache,
                    resendable=resendable(request),
                    tenant=tenant_of(request),
                    category=category_of(request),
                )
        except Exception as error:
            self.plugin.failed(error)
            finished = self.plugin.lost(id_of(request))
        self.plugin.seconds += time.perf_counter() - started
        return finished


class Steps:
    """Runs the plug-in's pending work before a step of the scheduler, and looks at the started requests after it.

    Each step passes here with the processor's caches cold, so without pending work little is read.

    Args:
        stock: the scheduler's own ``schedule``.
        hooks: does the work.

    Attributes:
        waiting: the waiting queue that serves warm first; None: the waiting queue is vLLM's.
    """

    def __init__(self, stock: Callable[..., Any], hooks: "Hooks") -> None:
        self.waiting: WarmFirstQueue | None = None
        self._stock = stock
        self._hooks = hooks
        self._plugin = hooks.plugin
        self._now = hooks.plugin.clock.source
        self._beyond, self._counted = hooks.keep.beyond, hooks.keep.counted
        self._preempted = hooks.preemptions.pending
        self._worked_at = self._due_at = -math.inf

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, as ``Scheduler.schedule``."""
        queue = self.waiting
        if queue is not None and not queue.busy:
            queue = None
        if queue is not None:
            queue.step_begins()
        try:
            now = self._now()
        except Exception as error:
            self._plugin.failed(error)
            now = None
        # Without the time, or if the clock was set back, work is due in each step.
        if self._beyond or now is None or not self._worked_at <= now < self._due_at:
            more = self._hooks.step()
            if now is not None:
                self._worked_at, self._due_at = now, now if more else now + STEP_S
        scheduled = self._stock(*args, **kwargs)
        if self._beyond or self._counted:
            self._hooks.started(scheduled)
        if self._preempted:
            self._hooks.resumed(scheduled)
        if queue is not None:
            queue.step_ends(scheduled)
            self._plugin.seconds += queue.seconds
            queue.seconds = 0.0
        return scheduled
