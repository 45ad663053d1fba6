"""Check at start-up that vLLM's CPU offload tier accepts our policy and evicts the least recently used chunk first.

Two small managers of vLLM's own class, one under its LRU and one under our policy, run the same few stores, loads and ends of
requests, whose result is known. The tests compare the two at random (`make engine-versions`).
"""

from itertools import count
from typing import Any, Final

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from eviction_client.engines.vllm_cpu import MODULE, POLICY
from eviction_client.engines.vllm_cpu.policy import policies_made
from eviction_client.policy.policy import Policy
from eviction_client.policy.tier import ChunkTier

CHUNKS: Final = 4
EVICTED: Final = ["b1", "a1", None]
"""Result of :func:`_evictions` if the least recently used chunks go first."""


def find_incompatibility() -> str | None:
    """Return why our policy does not work in this tier, None if it does. Raises any exception of an unknown tier."""
    for whose, policy in (
        ("", {"cache_policy": "lru"}),
        (" with our policy", {"cache_policy": POLICY, "cache_policy_module_path": MODULE}),
    ):
        found = _evictions(policy)
        if found != EVICTED:
            return f"its offload tier{whose} evicts chunks in the order {found}, not {EVICTED}"
    return None


def _evictions(policy: dict[str, str]) -> list[str | None]:
    """Fill a small tier with two chains, use the first again, and store 1, 1 and 5 more; return the evictions for each.

    Under our policy all chunks have one class of the rule `mq`, whose value falls, so that its order is LRU.
    """
    with policies_made() as made:
        manager = CPUOffloadingManager(num_chunks=CHUNKS, **policy)
    clock = count(10**9).__next__
    policy_of_pool: Policy[Any] = Policy(CHUNKS, block_tokens=1, clock=clock, rule="mq")
    for ours in made:
        tier = ChunkTier("check", CHUNKS, policy_of_pool, blocks=CHUNKS, prompts_only=True, clock=clock)
        tier.step()
        ours.link(tier, _fail)

    def store(request: Any, *names: str, success: bool = True) -> Any:
        keys = [make_offload_key(name.encode().rjust(32), 0) for name in names]
        output = manager.prepare_store(keys, request)
        if output is None:
            return None
        manager.complete_store(output.keys_to_store, request, success=success)
        return "".join(key[:-4].decode().strip() for key in output.evicted_keys)

    for chain in (["a0", "a1"], ["b0", "b1"], ["a0", "a1"]):
        request = ReqContext(req_id="".join(chain))
        manager.on_new_request(request)
        store(request, *chain)
        manager.on_request_finished(request)
    last = ReqContext(req_id="last")
    evicted = [store(last, "c0"), store(last, "b0", "d0", success=False), store(last, "e0", "e1", "e2", "e3", "e4")]
    manager.reset_cache()
    return evicted


def _fail(error: Exception) -> None:
    raise error
