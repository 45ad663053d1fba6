"""Floors of tenants in vLLM's real scheduler."""

from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.tenants import digest_of
from testing.bare_scheduler import BLOCK, Engine

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="floors of tenants")
BLOCKS = 100
MINE = [6 + number % 250 for number in range(20 * BLOCK)]


def served(engine: Engine, name: str, tokens: list[int], salt: str) -> int:
    """Serve a request alone; return how many of its tokens were cached."""
    before = engine.outcome.cached
    engine.add(name, tokens, 3, salt=salt)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    return engine.outcome.cached - before


@pytest.mark.parametrize(("asynchronous", "window"), [(False, None), (True, 64)], ids=["sync, full", "async, hybrid"])
@pytest.mark.parametrize(("rule", "salts"), [("mq", 1), ("lru", 40)], ids=["mq, one salt", "lru, many salts"])
def test_a_tenant_has_its_floor_after_a_flood_and_without_one_nothing(
    asynchronous: bool, window: int | None, rule: str, salts: int
) -> None:
    floors: dict[str, Any]
    for floors, kept in (({}, 0), ({digest_of("mine"): 0.5}, len(MINE))):
        settings = {"rule": rule, "tenant_floors": floors}
        engine = Engine(BLOCKS, asynchronous=asynchronous, window=window, background=AtOnce, **settings)
        served(engine, "first", MINE, "mine")
        for number in range(40):
            served(engine, f"flood {number}", [6 + (number * 7 + place) % 250 for place in range(300)], f"f{number % salts}")
        assert served(engine, "again", [*MINE, *MINE[:10]], "mine") == kept
        hooks = engine.scheduler.lpc
        assert hooks.plugin.failures == 0
        counted = {label: held for (name, label), held in values_of(hooks).items() if name == "lpc_tenant_blocks"}
        assert counted.keys() == floors.keys() and all(20 <= held <= 50 for held in counted.values())


def test_a_floor_protects_what_its_blocks_continue_also_when_a_preempted_request_frees_it() -> None:
    engine = Engine(BLOCKS, rule="lru", background=AtOnce, tenant_floors={digest_of("mine"): 0.5})
    scheduler, pool = engine.scheduler, engine.pool
    shared = MINE[: 8 * BLOCK]
    long = engine.add("ends", [*shared, *MINE[10 * BLOCK : 18 * BLOCK]], 1, salt="mine")
    other = engine.add("stops", [*shared, 5, 6, 7], 60, salt="mine")
    while long.request_id in scheduler.requests or other not in scheduler.running:
        engine.step()
    names = [bytes(name) + bytes(4) for name in long.block_hashes]
    engine.preempt(other)
    scheduler.finish_requests("stops", RequestStatus.FINISHED_ABORTED)
    for number in range(8):
        tokens = [9 + (number * 37 + place * (number + 3)) % 240 for place in range(20 * BLOCK)]
        served(engine, f"flood {number}", tokens, "other")
        cached = [pool.cached_block_hash_to_block.get_one_block(name) is not None for name in names]
        assert cached == sorted(cached, reverse=True)
    assert all(cached)
