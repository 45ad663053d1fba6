"""The plug-in in a vLLM with docs/contributing/vllm-0.33.patch: a queue for its factory, and schedulers for `--scheduler-cls`.

The queue gets frees by the hook of the patch. Admissions, starts and steps come by ordinary subclasses of vLLM's schedulers.
No attribute of vLLM's objects is replaced.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.engines.vllm.hooks import Hooks, Steps
from eviction_client.plugin import Plugin
from eviction_client.policy.request import TrackedRequest
from eviction_client.settings import ClientSettings
from eviction_client.transport.predictor import Predictor

NO_REQUEST = object()


class LearnedQueue(LearnedFreeQueue):
    """The plug-in's queue, which vLLM's factory loads from this module.

    Attributes:
        finished: returns the reuse classes of a request that gives up its blocks; None: it goes on.
        freeing: by block id the request that gave the block up last, until the block is free.
    """

    settings: ClassVar[ClientSettings]
    clock: ClassVar[Callable[[], float]]
    predictor: ClassVar[Predictor]
    plugin: Plugin
    finished: Callable[[Request], TrackedRequest[Any] | None]
    freeing: dict[int, TrackedRequest[Any] | None]

    @classmethod
    def create(cls, blocks: list[KVCacheBlock], vllm_config: Any, kv_cache_config: Any, hash_block_size: int) -> "LearnedQueue":
        """Return a queue of the blocks, with a plug-in of its own."""
        del vllm_config
        plugin = Plugin(
            cls.settings,
            capacity=kv_cache_config.num_blocks,
            block_tokens=hash_block_size,
            predictor=cls.predictor,
            clock=cls.clock,
            background=AtOnce,
        )
        scales = [max(group.kv_cache_spec.block_size // hash_block_size, 1) for group in kv_cache_config.kv_cache_groups]
        policy = plugin.policy
        queue = cls(
            *(blocks, policy.classes),
            scales=scales,
            plain=policy.plain,
            retained=plugin.retained,
            clock=plugin.now_or_latest,
        )
        queue.plugin, queue.freeing = plugin, {}
        plugin.set_rule(queue)
        return queue

    def before_free(self, request: Request, blocks: Sequence[Sequence[KVCacheBlock]]) -> None:
        """Note whose blocks these are."""
        finished = self.finished(request)
        for group in blocks:
            self.freeing.update((block.block_id, finished) for block in group if block.block_hash is not None)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """As the plug-in's queue does."""
        for block in blocks:
            self.freeing.pop(block.block_id, None)
        super().prepend_n(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """As the plug-in's queue does, with the request that held the blocks."""
        owners = [self.freeing.pop(block.block_id, NO_REQUEST) for block in blocks]
        for owner, part in groupby(zip(owners, blocks, strict=True), key=lambda pair: pair[0]):
            freed = [block for _, block in part]
            if owner is NO_REQUEST:
                super().append_n(freed)
            else:
                self.placing(owner, super().append_n, freed)


class SubclassHooks(Hooks):
    """The plug-in's hooks, which the classes here call: nothing is replaced."""

    def _adopt(self, pool: Any, scales: list[int]) -> LearnedFreeQueue:
        del scales
        queue: LearnedFreeQueue = pool.free_block_queue
        return queue

    def _wrap(self, scheduler: Any) -> None:
        """Leave the scheduler as it is."""


class Calls:
    """A scheduler that calls the plug-in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        queue = self.kv_cache_manager.block_pool.free_block_queue  # type: ignore[attr-defined]
        self.lpc = SubclassHooks(self, queue.plugin, adopt=True)
        queue.finished = self.lpc.finished
        self.lpc.steps = Steps(super().schedule, self.lpc)  # type: ignore[misc]

    def add_request(self, request: Request) -> None:
        """Admit a request, and ask the predictor."""
        super().add_request(request)  # type: ignore[misc]
        self.lpc.admitted(request)

    def schedule(self, *args: Any) -> Any:
        """Do what is due, plan a step, and look at the prompts that it begins."""
        return self.lpc.steps.schedule(*args)

    def shutdown(self) -> None:
        """Let go of vLLM's parts and of the plug-in's."""
        super().shutdown()  # type: ignore[misc]
        self.lpc.plugin.close()


class LearnedScheduler(Calls, Scheduler):
    """vLLM's scheduler."""


class LearnedAsyncScheduler(Calls, AsyncScheduler):
    """vLLM's asynchronous scheduler."""
