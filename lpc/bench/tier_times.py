"""What an eviction from vLLM's CPU offload tier costs with our policy and with vLLM's LRU: `python -m lpc.bench.tier_times`.

Both policies, in one process and in turns, serve the same requests, of CHAIN chunks each: half come back for a chain that
is there, the others store a new one for which as many chunks have to go. ``evict`` is the call that evicts; ``cycle`` all that
the policy is called for in such a request: the eviction, the chunks stored and ready, the request's end. Times are of the
processor; ratios are of the totals of one round, the median of all rounds; with credit in force, and under the guard's other
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

from eviction_client.credit import CreditGrid
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy, policies_made
from eviction_client.finished import Finished
from eviction_client.score import Keys
from eviction_client.tier import Tier

CHUNKS: Final = (1_000, 20_000, 200_000)
CHAIN: Final = 64
SECONDS_PER_REQUEST: Final = 0.5
CREDIT_SPREAD_S: Final = 90.0
REQUESTS: Final = 600
"""Timed in a round, after as many as fill the tier."""
GRID: Final = CreditGrid([1.0, 10_000.0])


class Side:
    """One policy and what it has cost, nanoseconds."""

    def __init__(self, chunks: int, *, learned: bool, trusting: bool = False) -> None:
        self.now = 1.8e9
        self.evict_ns = self.cycle_ns = 0
        self.tier: Tier | None = None
        self.policy: Any = LRUCachePolicy(chunks)
        if learned:
            with policies_made():
                self.policy = LearnedCachePolicy(chunks)
            self.tier = Tier(
                "bench", chunks, blocks=chunks, prompts_only=True, guarded=False, pools=True, clock=lambda: self.now
            )
            self.tier.wanted = trusting
            self.policy.link(self.tier, _fail)
        self.free: list[int] = list(range(chunks))

    def serve(self, number: int, chain: list[Any], new: bool, credit: float) -> None:
        """One request, from its store to its end."""
        self.now += SECONDS_PER_REQUEST
        policy, context = self.policy, ReqContext(req_id=str(number))
        for place, key in enumerate(chain):
            context.set_offload_key_position(key, 16 * (place + 1))
        if self.tier is not None:
            table = GRID.table([credit, credit])
            self.tier.ended(str(number), Finished(None, (), 0, self.now, Keys(self.now, self.now), table))
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


def measure(chunks: int, *, trusting: bool, rounds: int) -> dict[str, Any]:
    """Return the ratios at one size of the tier."""
    ratios = []
    for seed in range(rounds):
        rng = random.Random(seed)
        sides = [Side(chunks, learned=False), Side(chunks, learned=True, trusting=trusting)]
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
            credit = rng.gauss(0.0, CREDIT_SPREAD_S) if chunks > 64 * CHAIN else rng.gauss(0.0, 1.0)
            for side in sides if number % 2 else sides[::-1]:
                there = all(side.policy.get(key) is not None for key in chain) if back else False
                if back and not there:
                    continue
                side.serve(number, chain, not back, credit)
            if number == filling:
                for side in sides:
                    side.evict_ns = side.cycle_ns = 0
        gc.enable()
        theirs, ours = sides
        ratios.append((ours.evict_ns / theirs.evict_ns, ours.cycle_ns / theirs.cycle_ns, ours.evict_ns, ours.cycle_ns))
    evict, cycle, evict_ns, cycle_ns = (statistics.median(column) for column in zip(*ratios, strict=True))
    return {
        "tier_chunks": chunks,
        "order": "credit" if trusting else "lru",
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
    cost = [measure(chunks, trusting=trusting, rounds=every) for trusting in (True, False) for chunks in CHUNKS]
    print(json.dumps({"cost": cost}))
