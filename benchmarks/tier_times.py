"""What an eviction from vLLM's CPU offload tier costs with our policy and with vLLM's LRU: `python -m benchmarks.tier_times`.

Both policies, in one process and in turns, serve the same requests, of CHAIN chunks each: half come back for a chain that
is there, the others store a new one for which as many chunks have to go. ``evict`` is the call that evicts; ``cycle`` all that
the policy is called for in such a request: the eviction, the chunks stored and ready, the request's end. Times are of the
processor; ratios are of the totals of one round, the median of all rounds; with the value in force, and under the guard's other
rule, where vLLM's LRU evicts.
"""

import gc
import json
import random
import statistics
import sys
from time import thread_time_ns
from typing import Any, Final

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from benchmarks.queue import TABLES
from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy, policies_made
from eviction_client.value_tier import ValueTier

CHUNKS: Final = (1_000, 20_000, 200_000)
CHAIN: Final = 64
SECONDS_PER_REQUEST: Final = 0.5
REQUESTS: Final = 600
"""Timed in a round, after as many as fill the tier."""


class Side:
    """One policy and what it has cost, nanoseconds."""

    def __init__(self, chunks: int, *, learned: bool, value_enabled: bool = False) -> None:
        self.now = 1.8e9
        self.evict_ns = self.cycle_ns = 0
        self.tier: ValueTier | None = None
        self.policy: Any = LRUCachePolicy(chunks)
        if learned:
            with policies_made():
                self.policy = LearnedCachePolicy(chunks)
            self.tier = ValueTier(
                *("bench", chunks),
                blocks=chunks,
                classes=len(TABLES),
                prompts_only=True,
                guarded=not value_enabled,
                tables=lambda: TABLES,
                clock=lambda: self.now,
            )
            self.policy.link(self.tier, _fail)
        self.free: list[int] = list(range(chunks))

    def serve(self, number: int, chain: list[Any], new: bool, reuse_class: int) -> None:
        """One request, from its store to its end."""
        self.now += SECONDS_PER_REQUEST
        policy, context = self.policy, ReqContext(req_id=str(number))
        for place, key in enumerate(chain):
            context.set_offload_key_position(key, 16 * (place + 1))
        if self.tier is not None:
            self.tier.ended(Ended(str(number), None, (), 0, self.now, 0, [Run(len(chain), reuse_class)]))
            policy.step()
        chunks: list[ChunkStatus] = []
        wanted = len(chain) - len(self.free) if new else 0
        protected = set(chain)
        started = thread_time_ns()
        evicted = policy.evict(wanted, protected) if wanted > 0 else []
        took = thread_time_ns() - started
        self.free += [chunk.chunk_id for _, chunk in evicted]
        if new:
            chunks = [ChunkStatus(self.free.pop()) for _ in chain]
        started = thread_time_ns()
        for key, chunk in zip(chain, chunks, strict=False):
            policy.insert(key, chunk)
        for key, chunk in zip(chain, chunks, strict=False):
            chunk.ref_cnt = 0
            policy.mark_evictable(key)
        policy.on_request_finished((chain,), set(chain) if new else set(), set() if new else set(chain), context)
        self.evict_ns += took
        self.cycle_ns += took + thread_time_ns() - started


def _fail(error: Exception) -> None:
    raise error


def measure(chunks: int, *, value_enabled: bool, rounds: int) -> dict[str, Any]:
    """Return the ratios at one size of the tier."""
    ratios = []
    for seed in range(rounds):
        rng = random.Random(seed)
        sides = [Side(chunks, learned=False), Side(chunks, learned=True, value_enabled=value_enabled)]
        held: list[list[Any]] = []
        filling = chunks // CHAIN
        gc.collect()
        gc.disable()
        for number in range(filling + REQUESTS):
            # Of the last third: all of them are still there under either policy.
            back = number > filling and rng.random() < 0.5
            chain = rng.choice(held[-max(filling // 6, 1) :]) if back else _chain(number)
            if not back:
                held.append(chain)
            reuse_class = rng.randrange(len(TABLES))
            for side in sides if number % 2 else sides[::-1]:
                there = all(side.policy.get(key) is not None for key in chain) if back else False
                if back and not there:
                    continue
                side.serve(number, chain, not back, reuse_class)
            if number == filling:
                for side in sides:
                    side.evict_ns = side.cycle_ns = 0
        gc.enable()
        theirs, ours = sides
        ratios.append((ours.evict_ns / theirs.evict_ns, ours.cycle_ns / theirs.cycle_ns, ours.evict_ns, ours.cycle_ns))
    evict, cycle, evict_ns, cycle_ns = (statistics.median(column) for column in zip(*ratios, strict=True))
    return {
        "tier_chunks": chunks,
        "order": "value" if value_enabled else "lru",
        "evict_ratio": round(evict, 2),
        "cycle_ratio": round(cycle, 2),
        "evict_us": round(evict_ns / REQUESTS / 1000, 1),
        "cycle_us": round(cycle_ns / REQUESTS / 1000, 1),
    }


def _chain(number: int) -> list[Any]:
    rng = random.Random(number)
    return [make_offload_key(rng.randbytes(32), 0) for _ in range(CHAIN)]


if __name__ == "__main__":
    every = int(sys.argv[1])
    cost = [measure(chunks, value_enabled=value_enabled, rounds=every) for value_enabled in (True, False) for chunks in CHUNKS]
    print(json.dumps({"cost": cost}))
