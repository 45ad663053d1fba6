"""The simulator's tier against vLLM's real manager of its CPU offload tier: what the same requests find and store."""

import random

import pytest

pytest.importorskip("vllm.v1.kv_offload.cpu.manager", reason="vLLM before 0.31 has no such tier")

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.tier import TierSettings, simulate_tier
from lpc_apps.simulator.workload import Cost, from_trace

pytestmark = pytest.mark.supports(engine="vLLM", tier="CPU tier", what="the simulator's tier against vLLM's manager")

SIZE = 16


def drawn(seed: int, requests: int) -> Trace:
    """Return conversations that continue, start again, and share beginnings; none overlaps another in time."""
    met = random.Random(seed)
    chains: list[tuple[int, ...]] = []
    found = []
    for number in range(requests):
        before = met.choice(chains)[: met.choice([None, 2, 4, 7])] if chains and met.random() < 0.75 else ()
        chain = (*before, *range(100 * number, 100 * number + met.randrange(1, 6)))
        chains = [*chains[-12:], chain]
        found.append(TracedRequest(60.0 * number, SIZE * len(chain) + 1, 1, chain, str(number), 1, ""))
    return Trace("drawn", SIZE, found)


def vllms(manager: CPUOffloadingManager, name: str, keys: list[OffloadKey], pool: int) -> tuple[int, int]:
    """Serve a request as vLLM's connector does; return the chunks to load beyond those in the pool, and those stored."""
    request = ReqContext(req_id=name)
    manager.on_new_request(request)
    for position, key in enumerate(keys):
        request.set_offload_key_position(key, position + 1)
    found = 0
    while pool + found < len(keys) and manager.lookup(keys[pool + found], request) is LookupResult.HIT:
        found += 1
    if found:
        loaded = keys[pool : pool + found]
        manager.prepare_load(loaded, request)
        manager.complete_load(loaded, request)
    store = manager.prepare_store(keys[pool + found :] if found else keys, request)
    stored = [] if store is None else store.keys_to_store
    manager.complete_store(stored, request)
    manager.on_request_finished(request)
    return found, len(stored)


@pytest.mark.parametrize("chunks", [12, 24, 48])
def test_the_simulated_tier_finds_what_vllms_does_within_two_points_of_the_prompt(chunks: int) -> None:
    asked = simulated = real = stored = newly = 0
    for seed in range(6):
        workload = from_trace(drawn(seed, 400), count_from=0.0)
        engine = simulate_tier(
            workload,
            12 * SIZE,
            lambda blocks, workload=workload: REGISTRY["lru"](blocks, workload, PolicySettings()),
            TierSettings(chunks * SIZE, 1e9),
            cost=Cost(1e9),
        )
        manager = CPUOffloadingManager(num_chunks=chunks, cache_policy="lru")
        for turn, start in engine.starts.items():
            keys = [make_offload_key(content.to_bytes(32, "little"), 0) for content in turn.contents]
            loads, new = vllms(manager, str(turn.index), keys, start.hits)
            asked, simulated, real, newly = asked + len(keys), simulated + start.found, real + loads, newly + new
        stored += engine.counts.stored // SIZE
    print(f"{chunks} chunks: {asked} blocks asked for, found {simulated} and {real}, stored {stored} and {newly}")
    assert abs(simulated - real) < 0.02 * asked
    assert abs(stored - newly) < 0.02 * newly
    assert asked > 5000 and (real > 0.05 * asked or chunks == 12)
