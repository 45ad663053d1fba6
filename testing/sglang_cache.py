"""SGLang's radix cache without a model, called as its scheduler calls it. Requests, pools and tree are SGLang's own."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from eviction_client.background import AtOnce
from eviction_client.engines.sglang.building import build
from eviction_client.engines.sglang.chain import BLOCK_TOKENS
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.transport.predictor import Predictor
from testing.engine_internals import watch_leaves

BACKENDS: Final = ("rust", "python")
ARGS: Final = ServerArgs(model_path="dummy")
set_global_server_args_for_scheduler(ARGS)


class Cache:
    """One engine's radix cache.

    Args:
        tokens: capacity.
        policy: SGLang's eviction policy.
        backend: one of SGLang's two tree cores; the plug-in always uses the Python one.
        predictor: attaches the plug-in; None: stock SGLang.
        settings: of the plug-in.
        longest: tokens of the longest request.
        slots: most requests at a time.
        scale: tokens of the log per token of the cache, for the plug-in's groups of requests.
    """

    def __init__(
        self,
        tokens: int,
        *,
        policy: str = "priority",
        backend: str = "rust",
        predictor: Predictor | None = None,
        clock: Callable[[], float] = lambda: 1.8e9,
        longest: int = 4096,
        slots: int = 64,
        scale: int = 1,
        tp_size: int = 1,
        **settings: Any,
    ) -> None:
        self.evicted: list[int] = []
        self.slots = ReqToTokenPool(size=slots, max_context_len=longest, device="cpu", enable_memory_saver=False)
        # A model would store keys and values here.
        kv: Any = SimpleNamespace(page_size=1)
        self.pool = TokenToKVPoolAllocator(size=tokens, dtype=torch.float16, device="cpu", kvcache=kv, need_sort=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.slots,
            token_to_kv_pool_allocator=self.pool,
            page_size=1,
            eviction_policy=policy,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=backend,
        )
        self.context = SimpleNamespace(params=params, server_args=ARGS, tp_size=tp_size, tp_worker=None)

        def opens(given: ClientSettings, _: Any) -> Plugin:
            assert predictor is not None
            return Plugin(
                given.model_copy(update=settings),
                capacity=tokens // BLOCK_TOKENS,
                block_tokens=BLOCK_TOKENS * scale,
                predictor=predictor,
                clock=clock,
                background=AtOnce,
            )

        def stock(ctx: Any) -> Any:
            return UnifiedRadixCache(ctx.params)

        if predictor is None:
            self.tree: Any = stock(self.context)
        else:
            self.tree = build(stock, self.context, opens=opens)
        watch_leaves(self.tree, self.evicted.append)

    @property
    def plugin(self) -> Plugin:
        """The engine-independent part of the plug-in."""
        plugin: Plugin = self.tree.lpc.plugin
        return plugin

    def clear(self) -> None:
        """Forget all that is cached, as SGLang does at a flush. Nothing may run."""
        self.tree.reset()
        self.slots.clear()
        self.pool.clear()

    def arrive(self, name: str, tokens: Iterable[int], **known: Any) -> Req:
        """Return a new request after its first match. ``known``: arguments of SGLang's ``Req``."""
        parameters = SamplingParams(max_new_tokens=4, custom_params=known.pop("custom_params", None))
        ids = tokens if isinstance(tokens, array) else array("q", tokens)
        req = Req(
            rid=name,
            origin_input_text="",
            origin_input_ids=ids,
            sampling_params=parameters,
            **known,
        )
        self.match(req)
        return req

    def match(self, req: Req) -> int:
        """Match a waiting request, as in a scheduler step; return the number of cached tokens."""
        req.init_next_round_input(self.tree)
        matched: int = req.prefix_len
        return matched

    def compute(self, req: Req, chunk: int | None = None) -> None:
        """Compute the prompt in chunks of this many tokens."""
        if req.lock is None:
            req.lock = self.tree.lock(req.last_node)
        end = len(req.full_untruncated_fill_ids)
        at = req.prefix_len
        while at < end:
            to = end if chunk is None else min(at + chunk, end)
            self._grow(req, at, to)
            req.extend_end = to
            checkpoint_kv_cache(req, self.tree)
            at = to

    def end(self, req: Req, reply: Sequence[int], *, abort: bool = False) -> None:
        """Generate a reply and release the request."""
        start = len(req.full_untruncated_fill_ids)
        req.output_ids.extend(reply)
        self._grow(req, start, start + max(len(reply) - 1, 0))  # the last token has no KV yet
        req.finished_reason = FINISH_ABORT() if abort else FINISH_LENGTH(length=len(reply))
        release_kv_cache(req, self.tree, checkpoint=True)

    def retract(self, req: Req) -> None:
        """Preempt the request: release its memory. It starts again later."""
        release_kv_cache(req, self.tree, checkpoint=False)
        req.reset_for_retract()

    def serve(self, name: str, tokens: Iterable[int], reply: Sequence[int] = (7, 7, 7), **known: Any) -> int:
        """Serve a request; return the number of cached tokens of its prompt."""
        req = self.arrive(name, tokens, **known)
        cached: int = req.prefix_len
        self.compute(req)
        self.end(req, reply)
        return cached

    def cached(self, tokens: Iterable[int]) -> int:
        """Return the number of a prompt's tokens in the tree."""
        matched: int = self.tree.tree_core.match_full_device_prefix(RadixKey(array("q", tokens)))[0]
        return matched

    def _grow(self, req: Req, start: int, end: int) -> None:
        missing = end - start - self.pool.available_size()
        if missing > 0:
            self.tree.evict_for_alloc(EvictParams(num_tokens=missing))
        slots = self.pool.alloc(end - start)
        assert slots is not None, "the cache is full of running requests"
        if req.kv.req_pool_idx is None:
            self.slots.alloc([req])
            self.slots.write((req.kv.req_pool_idx, slice(0, start)), self.tree.prefix_device_indices(req).to(torch.int32))
        self.slots.write((req.kv.req_pool_idx, slice(start, end)), slots.to(torch.int32))
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
