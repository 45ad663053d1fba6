"""What the plug-in hangs into a scheduler of vLLM, once that has been built.

- ``kv_cache_manager.block_pool.free_block_queue`` becomes a :class:`LearnedFreeQueue` with the same blocks, which keeps
  vLLM's own linked list in the order of keys;
- ``kv_cache_manager.free`` becomes :meth:`Hooks.free`. Finish, abort, preemption, failed load: every free of a request that
  is carried out at once passes there, and its keys go with the call;
- ``kv_cache_manager.pop_blocks_for_free`` becomes :meth:`Hooks.pop_blocks_for_free`. There a free begins that vLLM puts off
  while a step in flight may still write the blocks: the list that vLLM keeps is a :class:`KeyedBlocks`, which brings its
  keys to ``block_pool.free_blocks``, now :meth:`Hooks.free_blocks`;
- ``block_pool.unpin_blocks``, where it exists, becomes :meth:`Hooks.unpin_blocks`;
- the scheduler's ``add_request`` calls :meth:`Hooks.admitted` once vLLM has taken the request, ``schedule`` calls
  :meth:`Hooks.step` first, ``shutdown`` closes the scorer last.

All of them are attributes of these very objects: their classes, and so every other engine of the process, stay vLLM's own.

So keys lie in a call or in a batch, never on a block, and cannot outlive the free that they are meant for. Frees that carry
none (sliding windows, copy on write) get no credit, at the current time. Blocks of a request that goes on (preempted,
failed load) and unpinned ones get the highest key that the queue has at that moment: they go last, as in stock vLLM, and
sink with the others. A key above all that come later would pin them for good if the request never resumes, and the order
without credit would not be stock's.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and the blocks get no credit.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakValueDictionary

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from eviction_client.credit_queue import Chain
from eviction_client.engines.vllm.queue import KeyedBlocks, LearnedFreeQueue
from eviction_client.engines.vllm.requests import arguments_of, completed, session_of
from eviction_client.engines.vllm_cpu.placing import Tiers
from eviction_client.hints import NOTHING, Asked, Hints
from eviction_client.retention import Retention
from eviction_client.score import Keys
from eviction_client.scorer import Scorer

LOOK_AHEAD: Final = 256
"""Blocks to be evicted next about which the store is asked."""
MOVED_PER_STEP: Final = 16
"""Chains that may be moved in one step of the scheduler after the rule in force has changed. A move takes 1 to 1.5 microseconds
or several times that where nothing is in a processor cache, so that no step is 100 microseconds late."""


class Hooks:
    """What is attached to one scheduler. All methods belong to its thread.

    Args:
        adopt: put our queue into the block pool; else (shadow mode) the engine's own order stays.
        tiers: below the block pool, in which our policy is.
        retention: tells LMCache of what is to be kept; None: nobody is told.

    Raises:
        Exception: the engine has no such parts. Then nothing was attached.

    Attributes:
        queue: ours, in the block pool; None in shadow mode.
        raised: blocks whose key was raised because another conversation holds them.
    """

    def __init__(
        self,
        scheduler: Any,
        scorer: Scorer,
        *,
        adopt: bool,
        tiers: Tiers | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.scorer = scorer
        self.retention = retention
        self.tiers = tiers or Tiers()
        self.queue: LearnedFreeQueue | None = None
        self.raised = 0
        self._unanswered: dict[str, list[Chain]] = {}
        """By request: what was freed of those whose answer may still come."""
        self._put_off: WeakValueDictionary[str, KeyedBlocks] = WeakValueDictionary()
        """By request: what is not freed yet of those whose answer may still come."""
        self._hash_block_size: int = getattr(scheduler, "hash_block_size", None) or scheduler.block_size
        manager = scheduler.kv_cache_manager
        pool = manager.block_pool
        self._stock_add_request: Callable[..., None] = scheduler.add_request
        self._stock_schedule: Callable[..., Any] = scheduler.schedule
        self._stock_shutdown: Callable[..., None] = scheduler.shutdown
        self._stock_free: Callable[[Request], None] = manager.free
        self._stock_pop: Callable[[Request], list[KVCacheBlock]] = manager.pop_blocks_for_free
        self._stock_free_blocks: Callable[[Iterable[KVCacheBlock]], None] = pool.free_blocks
        self._stock_unpin: Callable[..., None] | None = getattr(pool, "unpin_blocks", None)
        if adopt:
            # From here on nothing fails: the stock queue has given its blocks away.
            free = pool.free_block_queue.get_all_free_blocks()
            self.queue = LearnedFreeQueue(free, lifetime=scorer.lifetime, retained=scorer.retained, clock=self._now)
            self.queue.trusting = scorer.trusting
            pool.free_block_queue = self.queue
            pool.free_blocks = self.free_blocks
            if self._stock_unpin is not None:
                pool.unpin_blocks = self.unpin_blocks
        manager.free = self.free
        manager.pop_blocks_for_free = self.pop_blocks_for_free
        scheduler.add_request, scheduler.schedule, scheduler.shutdown = self.add_request, self.schedule, self.shutdown

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.add_request``, which also asks the predictor."""
        self._stock_add_request(request, *args, **kwargs)
        self.admitted(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """``Scheduler.schedule``, before which what is due is done."""
        self.step()
        return self._stock_schedule(*args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.shutdown``, which also lets go of predictor and store."""
        self._stock_shutdown(*args, **kwargs)
        self.scorer.close()
        if self.retention is not None:
            self.retention.close()

    def admitted(self, request: Request) -> None:
        """Ask the predictor, unless there are no token ids or they will change (streamed input)."""
        started = time.perf_counter()
        try:
            if request.prompt_token_ids and not getattr(request, "resumable", False):
                lora = request.lora_request
                self.scorer.admitted(
                    request.request_id,
                    request.prompt_token_ids,
                    session=session_of(request),
                    category="" if lora is None else lora.lora_name,
                )
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    def step(self) -> None:
        """Do what is due before a step of the scheduler: follow the guard, lay credit that came late, in bounded time."""
        scorer, queue = self.scorer, self.queue
        if queue is not None:
            queue.trusting = scorer.trusting  # first: what fails below must not keep a rule in force
        try:
            for request_id, keys in scorer.late():
                chains = self._unanswered.pop(str(request_id), ())
                put_off = self._put_off.pop(str(request_id), None)
                if queue is not None and keys is not None:
                    for chain in chains:
                        queue.lay(chain, keys.key - keys.t_last)
                    if put_off is not None:
                        put_off.keys = keys
            if queue is not None and queue.unsettled:
                started = time.perf_counter()
                queue.resort(MOVED_PER_STEP)
                scorer.seconds += time.perf_counter() - started
        except Exception as error:
            scorer.failed(error)
        for policy in self.tiers.policies:
            policy.step()

    def free(self, request: Request) -> None:
        """``KVCacheManager.free``, whose blocks get the request's keys."""
        keys, asked = self._keys_of(request)
        if self.queue is None:
            self._stock_free(request)
            return
        freed = self.queue.freed
        self.queue.keying(keys, self._stock_free, request, asked=asked)
        self._remember(request.request_id, freed)
        self.look_ahead()

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        """``KVCacheManager.pop_blocks_for_free``, whose blocks keep the request's keys until they are freed."""
        keys, asked = self._keys_of(request)
        blocks = self._stock_pop(request)
        if self.queue is None or not blocks:
            return blocks
        batch = KeyedBlocks(blocks, keys, request.request_id, made=self._now(), asked=asked, go_last=not request.is_finished())
        if self.scorer.awaits(request.request_id):
            self._put_off[request.request_id] = batch
        return batch

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """``BlockPool.free_blocks``, which gives a batch that was put off the keys that it was given then."""
        if isinstance(ordered_blocks, KeyedBlocks) and self.queue is not None:
            keys = self._highest() if ordered_blocks.go_last else ordered_blocks.keys_at(self._now())
            freed = self.queue.freed
            self.queue.keying(keys, self._stock_free_blocks, ordered_blocks, asked=ordered_blocks.asked)
            self._remember(ordered_blocks.request_id, freed)
        else:
            self._stock_free_blocks(ordered_blocks)

    def unpin_blocks(self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]) -> None:
        """``BlockPool.unpin_blocks``: these go last."""
        assert self.queue is not None and self._stock_unpin is not None
        self.queue.keying(self._highest(), self._stock_unpin, blocks, on_reuse)

    def look_ahead(self) -> None:
        """Ask the store about the blocks to be evicted next; raise those of which it has answered that others hold them."""
        queue = self.queue
        if queue is None:
            return
        started = time.perf_counter()
        try:
            # The last four bytes of a block's hash are the number of its KV-cache group.
            pooled = self.scorer.look_ahead(lambda: [h[:-4] for b in queue.next_blocks(LOOK_AHEAD) if (h := b.block_hash)])
            if pooled and queue.trusting:
                for block, score in queue.candidates(LOOK_AHEAD):
                    key = block.block_hash
                    known = None if key is None else pooled.get(key[:-4])
                    if known is not None and known > score + queue.tolerance:
                        queue.rescore(block, known)
                        self.raised += 1
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    # Keys. None of these raises.

    def _keys_of(self, request: Request) -> tuple[Keys | None, Asked]:
        started = time.perf_counter()
        keys: Keys | None = None
        asked = NOTHING
        try:
            if request.is_finished():
                size = self._hash_block_size
                computed = request.block_hashes[: request.num_computed_tokens // size]
                finished = self.scorer.finished(
                    request.request_id,
                    completed=completed(request),
                    blocks=computed,
                    prompt_blocks=min(len(computed), request.num_prompt_tokens // size),
                    session=session_of(request),
                    hints=Hints.of(arguments_of(request)),
                )
                keys, asked = finished.keys, finished.asked
                if self.retention is not None and asked.retain_s:
                    salt = getattr(request, "cache_salt", None) or ""
                    tokens = request.all_token_ids[: request.num_computed_tokens]
                    self.retention.ask(tokens, asked.retain_s, salt)
                if keys.key != keys.key or keys.t_last != keys.t_last:
                    keys = None  # NaN has no place in an order
            elif self.queue is not None:
                keys = self._highest()
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started
        return keys, asked

    def _remember(self, request_id: str, freed: int) -> None:
        if self.queue is not None and self.scorer.awaits(request_id) and (chains := self.queue.freed_since(freed)):
            self._unanswered.setdefault(request_id, []).extend(chains)

    def _now(self) -> float:
        try:
            now = self.scorer.now()
            if now == now:
                return now
        except Exception as error:
            self.scorer.failed(error)
        return max(self.queue.highest_score, 0.0) if self.queue is not None else 0.0

    def _highest(self) -> Keys:
        now = self._now()
        if self.queue is None:
            return Keys(now, now)
        highest = max(now, self.queue.highest_score)
        return Keys(now if self.queue.trusting else highest, highest)
