"""The check at start: this vLLM has what the plug-in wraps, and its block pool evicts the least recently used block first.

Names and parameters are compared. Then two small pools of the engine's class, one with its own queue and one with ours, carry
out the same few frees and evictions, whose result is known. The engine's own pool is only looked at. The random comparison of
the two queues belongs to the tests of each release (`make engine-versions`).
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.engines.vllm.waiting import CachedPrompts, WarmFirstQueue

WRAPPED: Final = {
    "free": ["request"],
    "pop_blocks_for_free": ["request"],
    "block_pool.free_blocks": ["ordered_blocks"],
    "coordinator.find_longest_cache_hit": ["block_hashes", "max_cache_hit_length"],
}
"""Methods of the KV-cache manager and its parts that the plug-in wraps or calls, and their parameters."""
LOOKED_AT: Final = {"block_pool.get_cached_block": ["block_hash", "kv_cache_group_ids"]}
"""The same, of the waiting queue that serves warm first."""
BLOCKS: Final = 8
EVICTED: Final = [6, 7, 3, 2, 5, 4, 1]
"""Blocks in the order in which :func:`_evictions` evicts them if the least recently used go first."""


def find_incompatibility(scheduler: Any) -> str | None:
    """Return why the plug-in would not work in this engine; None if it passed. May raise whatever an unknown engine raises."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    if any(group.block_pool is not pool for group in manager.coordinator.single_type_managers):
        return "this model's KV cache lies in several block pools, which frees cross"
    stock = pool.free_block_queue
    if not issubclass(LearnedFreeQueue, type(stock)):
        return f"its free queue is a {type(stock).__name__}, which ours cannot stand in for"
    return _changed(manager, WRAPPED) or _uncovered("free queue", stock, LearnedFreeQueue()) or _order(pool)


def why_fcfs(scheduler: Any) -> str | None:
    """Return why this engine must serve first come, first served; None if warm first works in it. May raise as well."""
    stock = scheduler.waiting
    if type(stock) is not FCFSRequestQueue:
        return f"its waiting queue is a {type(stock).__name__}"
    # vLLM 0.33. To ask takes a step through the whole prompt, which is too long for each estimate.
    if hasattr(getattr(scheduler, "aux_output_connector", None), "max_cache_hit"):
        return "its hits also end where outputs of layers are lost, which the count of cached blocks does not see"
    ours = WarmFirstQueue(CachedPrompts.of(scheduler), lambda _: None)
    return _changed(scheduler.kv_cache_manager, LOOKED_AT) or _uncovered("waiting queue", stock, ours)


def _changed(manager: Any, methods: dict[str, list[str]]) -> str | None:
    for path, expected in methods.items():
        found = manager
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is None or _parameters(found) != expected:
            return f"its kv_cache_manager.{path}({', '.join(expected)}) is gone or takes other arguments"
    return None


def _uncovered(what: str, stock: Any, ours: Any) -> str | None:
    """Return a public method of vLLM's queue that ours does not override, or overrides with other parameters."""
    classes = [cls for cls in type(stock).__mro__ if cls.__module__.startswith("vllm.")]
    for name in sorted({name for each in (stock, *classes) for name in vars(each) if not name.startswith("_")}):
        theirs, is_method = getattr(stock, name), callable(getattr(stock, name))
        if not hasattr(ours, name) or (is_method and getattr(type(ours), name) is getattr(type(stock), name)):
            return f"its {what} has `{name}`, which ours does not have"
        if is_method and _parameters(theirs) != _parameters(getattr(ours, name)):
            return f"its {what}'s {name}({', '.join(_parameters(theirs))}) takes other arguments"
    return None


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _order(pool: Any) -> str | None:
    for whose, learned in (("", False), (" with our queue", True)):
        found = _evictions(pool, learned=learned)
        if found != EVICTED:
            return f"its block pool{whose} evicts blocks in the order {found}, not {EVICTED}"
    return None


def _evictions(pool: Any, *, learned: bool) -> list[int]:
    """Free chains of 3, 1 and 2 blocks and hit the first again; return all blocks of a small pool as it hands them out."""
    size = pool.hash_block_size
    small = type(pool)(num_gpu_blocks=BLOCKS, enable_caching=True, hash_block_size=size)
    if learned:
        small.free_block_queue = LearnedFreeQueue(small.free_block_queue.get_all_free_blocks())
    first, second, uncached = (small.get_new_blocks(count) for count in (3, 2, 1))
    for number, chain in enumerate((first, second)):
        small.cache_full_blocks(
            request=SimpleNamespace(block_hashes=[bytes([number, place]).rjust(32) for place in range(len(chain))]),
            blocks=chain,
            num_cached_blocks=0,
            num_full_blocks=len(chain),
            block_size=size,
            kv_cache_group_id=0,
        )
    for chain in (first, uncached, second):
        small.free_blocks(reversed(chain))
    small.touch(first[:1])
    small.free_blocks(first[:1])
    return [block.block_id for count in (1, 2, 1, 3) for block in small.get_new_blocks(count)]
