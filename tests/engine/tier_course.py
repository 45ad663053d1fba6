"""A random course through vLLM's CPU offload tier, with its LRU and with our policy.

Lookups, stores that succeed, fail or stay in flight, loads, ends of requests and resets.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from eviction_client.engines.vllm_cpu import MODULE, POLICY
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy, policies_made
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import Table
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.tier import ChunkTier
from lpc.model.curve import KNOTS
from tests.spans import spans_of

FEW: Final = 12
"""Chunks of the tiers of the random course: most stores evict, some find too few evictable chunks."""
OPERATIONS: Final = 240
STEP_S: Final = 0.4
MIDDLE: Final = 2
TABLES: Final[list[Table]] = [[value / (1.0 + age) for age in KNOTS] for value in (1e-9, 1e-6, 1e-3, 1.0)]


class Side:
    """A small tier, with vLLM's LRU or with our policy, and the requests that use it."""

    def __init__(self, chunks: int, *, learned: bool, tables: Sequence[Table] | None = None) -> None:
        self.now = 1e9
        self.tier: ChunkTier | None = None
        self._contexts: dict[int, Any] = {}
        if not learned:
            self.manager = CPUOffloadingManager(num_chunks=chunks, cache_policy="lru")
            return
        with policies_made() as made:
            self.manager = CPUOffloadingManager(num_chunks=chunks, cache_policy=POLICY, cache_policy_module_path=MODULE)
        (policy,) = made
        assert isinstance(policy, LearnedCachePolicy)
        policy_of_pool: Policy[Any] = Policy(chunks, block_tokens=16, clock=lambda: self.now, rule="mq")
        policy_of_pool.tables_of = lambda _: tables  # type: ignore[method-assign]
        self.tier = ChunkTier("check", chunks, policy_of_pool, blocks=chunks, prompts_only=True, clock=lambda: self.now)
        self.tier.step()
        policy.link(self.tier, fail)

    def context(self, request: int, chain: Sequence[bytes]) -> Any:
        """Return a request's context. The first call creates it and records the positions in its chain."""
        context = self._contexts.get(request)
        if context is None:
            context = self._contexts[request] = ReqContext(req_id=str(request))
            for place, key in enumerate(chain):
                context.set_offload_key_position(key_of(key), 16 * (place + 1))
            self.manager.on_new_request(context)
        return context

    def end(self, request: int, chain: Sequence[bytes], *runs: tuple[int, int]) -> None:
        """End a request, first like the scheduler's hook, then like the connector."""
        context = self.context(request, chain)
        if self.tier is not None:
            wanted = runs or ((len(chain), MIDDLE),)
            self.tier.finished(TrackedRequest(str(request), blocks=list(chain), at=self.now, spans=spans_of(*wanted)))
        self.manager.on_request_finished(context)
        del self._contexts[request]


def key_of(block: bytes) -> Any:
    return make_offload_key(block, 0)


def fail(error: Exception) -> None:
    raise error


def course(side: Side, seed: int, operations: int = OPERATIONS) -> Iterator[tuple[str, object]]:
    """Run a random course, the same for all tiers; yield each operation's name and the observable state after it."""
    rng = random.Random(seed)
    manager = side.manager
    chains: list[list[bytes]] = []
    running: dict[int, list[bytes]] = {}
    storing: list[tuple[int, list[bytes]]] = []
    loading: list[tuple[int, list[bytes]]] = []
    contents = 0
    contexts: dict[int, Any] = {}
    for number in range(operations):
        side.now += STEP_S
        kinds = ["begin"] * 3 + (["store", "store", "end"] * 2 + ["load", "load"]) * bool(running)
        kinds += ["stored"] * 3 * bool(storing) + ["loaded"] * 2 * bool(loading) + ["reset"] * (number % 100 == 99)
        kind = "reset" if "reset" in kinds else rng.choice(kinds)
        seen: object = None
        if kind == "begin":
            earlier = rng.choice(chains)[: rng.randint(1, 8)] if chains and rng.random() < 0.6 else []
            fresh = rng.randint(1, 4)
            chain = [*earlier, *(n.to_bytes(32, "big") for n in range(contents, contents + fresh))]
            contents += fresh
            chains = [*chains[-8:], chain]
            running[number] = chain
            contexts[number] = side.context(number, chain)
        elif kind == "store":
            request = rng.choice(list(running))
            start = rng.randrange(len(running[request]))
            part = running[request][start : start + rng.randint(1, 4)]
            output = manager.prepare_store([key_of(key) for key in part], contexts[request])
            if output is not None:
                storing.append((request, [key[:-4] for key in output.keys_to_store]))
                seen = output.keys_to_store, output.evicted_keys, list(getattr(output.store_spec, "block_ids"))  # noqa: B009
        elif kind == "load":
            request = rng.choice(list(running))
            ready = [key for key in running[request] if manager.lookup(key_of(key), contexts[request]).name == "HIT"]
            manager.prepare_load([key_of(key) for key in ready], contexts[request])
            loading.append((request, ready))
            seen = ready
        elif kind == "stored":
            request, keys = storing.pop(rng.randrange(len(storing)))
            manager.complete_store([key_of(key) for key in keys], contexts[request], success=rng.random() < 0.9)
        elif kind == "loaded":
            request, keys = loading.pop(rng.randrange(len(loading)))
            manager.complete_load([key_of(key) for key in keys], contexts[request])
        elif kind == "end":
            request = rng.choice(list(running))
            side.end(request, running.pop(request))
        else:
            manager.reset_cache()
            storing.clear()
            loading.clear()
            for request in list(running):
                side.end(request, running.pop(request))
        if number % 100 == 50:  # much more than is evictable
            seen = (
                seen,
                manager.prepare_store([key_of(b"%32d" % place) for place in range(FEW + 1)], ReqContext(req_id="")) is None,
            )
        held = [manager.lookup(key_of(key), ReqContext(req_id="")).name for chain in chains for key in chain]
        yield kind, (seen, held)
