"""Members of vLLM, SGLang and PyTorch that have no public equivalent, each named once. Nothing here imports an engine."""

from collections.abc import Callable
from typing import Any


def cache_policy_of(manager: Any) -> Any:
    """Return the order in which vLLM's CPU tier evicts."""
    return manager._policy


def request_states_of(offloading: Any) -> list[Any]:
    """Return what the scheduler's side of vLLM's offloading connector keeps of its requests."""
    return list(offloading._req_status.values())


def watch_evictions(pool: Any, watch: Callable[[int, Any], None]) -> None:
    """Call ``watch`` with the number and hash of each block whose content vLLM's pool has evicted."""
    evict = pool._maybe_evict_cached_block

    def watched(block: Any) -> bool:
        name = block.block_hash
        result: bool = evict(block)
        if name is not None:
            watch(block.block_id, name)
        return result

    pool._maybe_evict_cached_block = watched


def set_block_hash(block: Any, name: bytes) -> None:
    """Give a block of vLLM a hash, also in place of another one."""
    block._block_hash = name


def preempt(scheduler: Any, request: Any, now: float, **how: Any) -> None:
    """Let vLLM's scheduler preempt a request that is no longer in its list of running ones."""
    scheduler._preempt_request(request, now, **how)


def watch_preemptions(scheduler: Any, watch: Callable[[], None]) -> None:
    """Call ``watch`` before each preemption by vLLM's scheduler."""
    stock = scheduler._preempt_request

    def watched(*args: Any, **kwargs: Any) -> None:
        watch()
        stock(*args, **kwargs)

    scheduler._preempt_request = watched


def transferred(scheduler: Any, output: Any) -> None:
    """Report the transfers of a KV connector to vLLM's scheduler."""
    scheduler._update_from_kv_xfer_finished(output)


def send_after_end(scheduler: Any) -> None:
    """Let vLLM's scheduler keep the blocks of ended requests, as for a connector that still sends them."""
    scheduler._connector_finished = lambda _: (True, None)


def stop_polling(manager: Any) -> None:
    """Stop the thread in which vLLM's tiers serve their peers."""
    manager._stop_tier_poll_thread()


def watch_leaves(tree: Any, watch: Callable[[int], None]) -> None:
    """Call ``watch`` with each leaf that SGLang's radix cache evicts, before it."""
    evict = tree._evict_device_leaf

    def watched(node: int, tracker: Any) -> Any:
        watch(node)
        return evict(node, tracker)

    tree._evict_device_leaf = watched


def tree_core_of(tree: Any) -> str:
    """Return which of SGLang's tree cores a radix cache uses: ``rust`` or ``python``."""
    core: str = tree._tree_core_backend
    return core


def avx512(torch: Any) -> bool:
    """Return whether PyTorch may use AVX-512 on this CPU."""
    return bool(torch.cpu._is_avx512_supported())


def avx512_bf16(torch: Any) -> bool:
    """Return whether PyTorch may use AVX-512's bfloat16 on this CPU."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def prompt_of(server: Any, request: Any) -> Any:
    """Return the prompt that SGLang's OpenAI server makes of a chat request."""
    return server._process_messages(request, False)


def run_seed(fixtures: Any, seed: int) -> None:
    """Run one course of SGLang's own test of its radix cache."""
    fixtures._run_seed(seed)


def fetch_hint_of(parser: Any) -> Any:
    """Return the class with which a parser of the examples reads a hint to fetch blocks."""
    return parser._KVFetchHint
