"""What the plug-in hangs into a scheduler of vLLM, once that has been built.

- ``kv_cache_manager.block_pool.free_block_queue`` becomes a :class:`LearnedFreeQueue` with the same blocks, which keeps
  vLLM's own linked list in the order of scores;
- ``kv_cache_manager.free`` becomes :meth:`Hooks.free`. Finish, abort, preemption, failed load: every free of a request that
  is carried out at once passes there, and its score goes with the call;
- ``kv_cache_manager.pop_blocks_for_free`` becomes :meth:`Hooks.pop_blocks_for_free`. There a free begins that vLLM puts off
  while a step in flight may still write the blocks: the list that vLLM keeps is a :class:`ScoredBlocks`, which brings its
  score to ``block_pool.free_blocks``, now :meth:`Hooks.free_blocks`;
- ``block_pool.unpin_blocks``, where it exists, becomes :meth:`Hooks.unpin_blocks`;
- ``add_request`` calls :meth:`Hooks.admitted` once vLLM has taken the request.

So a score lies in a call or in a batch, never on a block, and cannot outlive the free that it is meant for. Frees that carry
no score (sliding windows, copy on write) get the prior at the current time. Blocks of a request that goes on (preempted,
failed load) and unpinned ones get the highest score that the queue has at that moment: they go last, as in stock vLLM, and
sink with the others. A score above all that come later would pin them for good if the request never resumes, and the order
under a constant prior would not be stock's.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and the blocks get the prior.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from eviction_client.engines.vllm.queue import LearnedFreeQueue, ScoredBlocks
from eviction_client.engines.vllm.requests import arguments_of, completed, session_of
from eviction_client.hints import Hints
from eviction_client.scorer import Scorer

LOOK_AHEAD: Final = 256
"""Blocks to be evicted next about which the store is asked."""


class Hooks:
    """What is attached to one scheduler. All methods belong to its thread.

    Args:
        adopt: put our queue into the block pool; else (shadow mode) the engine's own order stays.

    Attributes:
        queue: ours, in the block pool; None in shadow mode.
        raised: blocks whose score was raised because another conversation holds them.
    """

    def __init__(self, scheduler: Any, scorer: Scorer, *, adopt: bool) -> None:
        self.scorer = scorer
        self.queue: LearnedFreeQueue | None = None
        self.raised = 0
        self._hash_block_size: int = getattr(scheduler, "hash_block_size", None) or scheduler.block_size
        manager = scheduler.kv_cache_manager
        self._stock_free: Callable[[Request], None] = manager.free
        self._stock_pop: Callable[[Request], list[KVCacheBlock]] = manager.pop_blocks_for_free
        manager.free = self.free
        manager.pop_blocks_for_free = self.pop_blocks_for_free
        if adopt:
            pool = manager.block_pool
            self.queue = LearnedFreeQueue(pool.free_block_queue.get_all_free_blocks(), self._prior)
            pool.free_block_queue = self.queue
            self._stock_free_blocks: Callable[[Iterable[KVCacheBlock]], None] = pool.free_blocks
            pool.free_blocks = self.free_blocks
            if hasattr(pool, "unpin_blocks"):
                self._stock_unpin = pool.unpin_blocks
                pool.unpin_blocks = self.unpin_blocks

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

    def free(self, request: Request) -> None:
        """``KVCacheManager.free``, whose blocks get the request's score."""
        score = self._score_of(request)
        if self.queue is None:
            self._stock_free(request)
            return
        self.queue.scoring(score, self._stock_free, request)
        self.look_ahead()

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        """``KVCacheManager.pop_blocks_for_free``, whose blocks keep the request's score until they are freed."""
        score = self._score_of(request)
        blocks = self._stock_pop(request)
        return blocks if self.queue is None or not blocks else ScoredBlocks(blocks, score)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """``BlockPool.free_blocks``, which gives a batch that was put off the score that it was given then."""
        if isinstance(ordered_blocks, ScoredBlocks) and self.queue is not None:
            self.queue.scoring(ordered_blocks.score, self._stock_free_blocks, ordered_blocks)
        else:
            self._stock_free_blocks(ordered_blocks)

    def unpin_blocks(self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]) -> None:
        """``BlockPool.unpin_blocks``: these go last."""
        assert self.queue is not None
        self.queue.scoring(self._highest(), self._stock_unpin, blocks, on_reuse)

    def look_ahead(self) -> None:
        """Ask the store about the blocks to be evicted next; raise those of which it has answered that others hold them."""
        queue = self.queue
        if queue is None:
            return
        started = time.perf_counter()
        try:
            # The last four bytes of a block's hash are the number of its KV-cache group.
            pooled = self.scorer.look_ahead(lambda: [h[:-4] for b in queue.next_blocks(LOOK_AHEAD) if (h := b.block_hash)])
            if pooled:
                ceiling = self.scorer.ceiling()
                for block, score in queue.candidates(LOOK_AHEAD):
                    key = block.block_hash
                    known = None if key is None else pooled.get(key[:-4])
                    if known is not None and min(known, ceiling) > score + queue.tolerance:
                        queue.rescore(block, min(known, ceiling))
                        self.raised += 1
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    # Scores. None of these raises.

    def _score_of(self, request: Request) -> float | None:
        started = time.perf_counter()
        score: float | None = None
        try:
            if request.is_finished():
                size = self._hash_block_size
                computed = request.block_hashes[: request.num_computed_tokens // size]
                score = self.scorer.finished(
                    request.request_id,
                    completed=completed(request),
                    blocks=computed,
                    prompt_blocks=min(len(computed), request.num_prompt_tokens // size),
                    session=session_of(request),
                    hints=Hints.of(arguments_of(request)),
                )
            elif self.queue is not None:
                score = self._highest()
        except Exception as error:
            self.scorer.failed(error)
        if self.queue is not None:
            self.queue.even = self.scorer.even
        self.scorer.seconds += time.perf_counter() - started
        # NaN has no place in an order.
        return score if score == score else None

    def _prior(self) -> float:
        try:
            score = self.scorer.prior_score()
            if score == score:
                return score
        except Exception as error:
            self.scorer.failed(error)
        return max(self.queue.highest_score, 0.0) if self.queue is not None else 0.0

    def _highest(self) -> float:
        prior = self._prior()
        return prior if self.queue is None else max(prior, self.queue.highest_score)
