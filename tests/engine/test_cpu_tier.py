"""The policy in vLLM's CPU offload tier: vLLM's LRU key by key, then the lowest value first; failures fall back to LRU."""

import logging
import random
from collections.abc import Callable, Iterator
from itertools import count, islice, takewhile
from typing import Any

import pytest

from testing.engine_internals import cache_policy_of

# If this is skipped wrongly, test_conformance.py fails.
pytest.importorskip("eviction_client.engines.vllm_cpu.policy", reason="not in vLLM before 0.31", exc_type=ImportError)

from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy
from eviction_client.errors import EngineUnsupported
from eviction_client.policy.queue.free_queue import DONE
from eviction_client.policy.tier import ChunkTier
from testing.bare_scheduler import BLOCK, Engine, vllm_config
from testing.cpu_tier import connector
from tests.engine.tier_course import FEW, TABLES, Side, course, fail, key_of
from tests.nightly import LONG

pytestmark = pytest.mark.supports(
    engine="vLLM",
    tier="CPU tier",
    what="its offloading manager and connector without a worker: LRU key by key, order by value",
)


@pytest.mark.parametrize("seed", range(8 if LONG else 3))
@pytest.mark.parametrize("chunks", [FEW, 20])
def test_without_curves_it_is_vllms_lru_key_by_key(chunks: int, seed: int) -> None:
    stock = course(Side(chunks, learned=False), seed, 600)
    for number, (expected, found) in enumerate(zip(stock, course(Side(chunks, learned=True), seed, 600), strict=True)):
        assert found == expected, number


class Driven:
    """Random operations on a tier ordered by value, and the invariants of each eviction."""

    def __init__(self, seed: int, chunks: int) -> None:
        self.rng = random.Random(seed)
        self.side = Side(chunks, learned=True, tables=TABLES)
        self.manager = self.side.manager
        self.policy: LearnedCachePolicy = cache_policy_of(self.manager)
        self.chunks = chunks
        self.evictions = self.refusals = 0
        self.waiting: dict[int, list[Any]] = {}
        self.policy.link(self.tier, fail, [(0, 1)])
        stock = self.policy.evict

        def evict(n: int, protected: set[Any]) -> Any:
            lru = self.policy.lru
            free = {key for key, chunk in lru.chunks.items() if chunk.ref_cnt == 0 and key not in protected}
            before, order, decides = dict(lru.chunks), list(self.tier.order()), self.tier.decides
            going = self.tier.queue.eviction_order(may_go=lambda chunk: chunk.content in free)
            expected = [chunk.content for chunk in islice(going, n)]
            gone = stock(n, protected)
            if len(free) < n:
                assert gone is None and lru.chunks == before and list(self.tier.order()) == order
                self.refusals += 1
            else:
                assert gone is not None and len(gone) == n
                if self.waiting:
                    needed = {key for keys in self.waiting.values() for key in keys}
                    assert not {key for key, _ in gone} & needed or free - {key for key, _ in gone} <= needed
                if decides:
                    assert [key for key, _ in gone] == expected
                assert all(before[key] is chunk for key, chunk in gone) and {key for key, _ in gone} <= free
                self.evictions += n
            return gone

        self.policy.evict = evict  # type: ignore[method-assign]

    @property
    def tier(self) -> ChunkTier:
        assert self.side.tier is not None
        return self.side.tier

    def run(self, requests: int) -> None:
        rng, manager = self.rng, self.manager
        contents = count()
        chains: list[list[bytes]] = []
        for number in range(requests):
            self.side.now += rng.random() * 3
            chain = rng.choice(chains)[: rng.randint(1, 9)] if chains and rng.random() < 0.5 else []
            chain = chain + [next(contents).to_bytes(32, "big") for _ in range(rng.randint(1, 6))]
            chains = [*chains[-10:], chain]
            context = self.side.context(number, chain)
            keys = [key_of(block) for block in chain]
            ready = [key for key in keys if manager.lookup(key, context).name == "HIT"]
            loads = ready if rng.random() < 0.7 else []
            manager.prepare_load(loads, context)
            if rng.random() < 0.3:
                above = rng.randint(0, 2)
                needs = self.policy.find(earlier := rng.choice(chains), above)
                stored, names = self.policy.lru.chunks.__contains__, [key_of(block) for block in earlier]
                beyond = list(takewhile(stored, names[above:]))
                assert needs == ([*filter(stored, names[:above]), *beyond] if beyond else [])
                self.policy.wait(number, needs)
                self.waiting[number] = needs
            if self.waiting and rng.random() < 0.25:
                served = rng.choice(list(self.waiting))
                self.policy.release(served)
                del self.waiting[served]
            output = manager.prepare_store(keys[len(loads) :], context)
            self.policy.step()
            if rng.random() < 0.8:
                manager.complete_load(loads, context)
            if output is not None and rng.random() < 0.8:
                manager.complete_store(output.keys_to_store, context, success=rng.random() < 0.9)
            middle = rng.randint(0, len(chain))
            numbers = [rng.choice((0, 1, 2, 3, DONE)) for _ in range(2)]
            self.side.end(number, chain, (middle, numbers[0]), (len(chain), numbers[1]))
            assert len(self.tier) == len(self.policy.lru.chunks)
            assert set(self.tier.order()) == set(self.policy.lru.chunks)
            if number % 60 == 59:
                manager.reset_cache()
                assert len(self.tier) == 0
                self.waiting.clear()


@pytest.mark.parametrize("chunks", [3, 8, 40])
def test_by_value_exactly_n_chunks_are_evicted_in_order_or_none(chunks: int) -> None:
    driven = [Driven(seed, chunks) for seed in range(6)]
    for each in driven:
        each.run(180)
    assert sum(each.evictions for each in driven) > 60
    assert chunks > 8 or sum(each.refusals for each in driven) > 0


@pytest.mark.parametrize(
    "method", ["store", "remove", "touch", "used", "choose", "evicted", "clear", "step", "wait", "release"]
)
def test_after_a_failure_of_ours_the_tier_is_vllms_lru_and_logs_it_once(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tier fails in the middle of a course by value; all later evictions are LRU's."""

    class Broken(Exception):
        pass

    driven = Driven(3, 10)
    failures: list[Exception] = []
    driven.policy.link(driven.tier, failures.append)
    driven.policy.evict = type(driven.policy).evict.__get__(driven.policy)  # type: ignore[method-assign]

    def breaks(*_: object, **__: object) -> None:
        raise Broken

    serve(driven, 20, first=0)
    monkeypatch.setattr(driven.tier, method, breaks)
    serve(driven, 20, first=100)
    if method == "remove":
        fail_a_store(driven)
    if method == "touch":
        driven.policy.touch([], ReqContext(req_id="t"))
    if method == "clear":
        driven.manager.reset_cache()
    if method == "wait":
        driven.policy.wait("w", [])
    if method == "release":
        driven.policy.release("w")
    assert [type(failure) for failure in failures] == [Broken]
    assert driven.policy.tier is None
    lru = driven.policy.lru
    order = sorted((key for key in lru.chunks if lru.chunks[key].ref_cnt == 0), key=lru._ranks.__getitem__)
    assert (
        driven.policy.evict(2, set()) is None
        if len(order) < 2
        else [k for k, _ in driven.policy.evict(2, set()) or ()] == order[:2]
    )


def serve(driven: Driven, requests: int, *, first: int) -> None:
    for number in range(first, first + requests):
        driven.side.now += 2
        chain = [(1000 * number + place).to_bytes(32, "big") for place in range(3)]
        context = driven.side.context(number, chain)
        driven.policy.step()
        output = driven.manager.prepare_store([key_of(block) for block in chain], context)
        assert output is not None
        driven.manager.complete_store(output.keys_to_store, context)
        driven.side.end(number, chain, (len(chain), number % 2))


def fail_a_store(driven: Driven) -> None:
    context = driven.side.context(999, [b"x" * 32])
    driven.manager.prepare_store([key_of(b"x" * 32)], context)
    driven.manager.complete_store([key_of(b"x" * 32)], context, success=False)


def test_methods_of_a_later_release_go_to_its_own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(LRUCachePolicy, "on_prefetch", lambda _, *args: seen.append(args), raising=False)
    policy: Any = LearnedCachePolicy(4)
    policy.on_prefetch(1, 2)
    assert seen == [(1, 2)]


# Under the scheduler.


@pytest.fixture
def tiered() -> Iterator[Callable[..., Any]]:
    """Return an engine without a model, with an offload tier of this configuration."""
    from vllm.config import KVTransferConfig

    config = vllm_config()
    before, block_size = config.kv_transfer_config, config.cache_config.block_size
    config.cache_config.block_size = BLOCK

    def build(transfer: dict[str, Any], **more: Any) -> Any:
        config.kv_transfer_config = KVTransferConfig(**transfer)
        return Engine(60, **more)

    yield build
    config.kv_transfer_config, config.cache_config.block_size = before, block_size


def policy_of(engine: Any) -> Any:
    return cache_policy_of(engine.scheduler.connector.connector_scheduler.manager)


def test_one_flag_enables_pool_and_tier(tiered: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eviction_client.engines.vllm.scheduler")
    engine = tiered(connector(50))
    assert policy_of(engine).tier is engine.scheduler.lpc.plugin.tiers[0]
    assert "also on in the CPU offload tier, 50 chunks" in caplog.text
    assert "eviction_policy" not in vllm_config().kv_transfer_config.kv_connector_extra_config
    values = values_of(engine.scheduler.lpc)
    assert values["lpc_tier_stock_fallback", ""] == 0.0
    assert values["lpc_tier_rule", "cpu,value"] == 1.0


@pytest.mark.supports(engine="vLLM", tier="CPU tier", what="what waiting requests will load goes last, in its scheduler")
def test_a_request_behind_a_cold_one_keeps_the_tiers_chunks_with_those_that_they_continue(tiered: Callable[..., Any]) -> None:
    engine = tiered(connector(50), max_seqs=1, background=AtOnce)
    tokens = list(range(6, 6 + 10 * BLOCK + 1))
    engine.add("earlier", tokens, 1)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    tier = policy_of(engine).tier
    assert len(tier) == 10
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.evict_blocks({block.block_id for block in pool.free_block_queue.get_all_free_blocks()[-4:-2]})
    cached = engine.scheduler.kv_cache_manager.coordinator.find_longest_cache_hit
    engine.add("cold", [7] * (5 * BLOCK), 5)
    again = engine.add("again", tokens, 1)
    _, had, *_ = cached(again.block_hashes, again.num_tokens - 1)
    assert 0 < had < 10 * BLOCK
    engine.step()
    engine.step()
    hit = [key_of(block) for block in again.block_hashes[:10]]
    numbers = {chunk.content: chunk.block_id for chunk in tier.queue}
    assert list(tier.queue.needed) == [numbers[key] for key in hit]
    assert engine.scheduler.lpc.plugin.failures == 0
    engine.scheduler.finish_requests("again", RequestStatus.FINISHED_ABORTED)
    assert not tier.decides or tier.queue.tables is not None
    assert not tier.queue.keeps


@pytest.mark.parametrize("rule", ["value", "lru"])
def test_the_pool_evicts_first_what_a_small_tier_is_to_keep_and_the_tier_what_the_pool_is(
    tiered: Callable[..., Any], rule: str
) -> None:
    engine = tiered(connector(59), background=AtOnce, rule=rule)
    tier = policy_of(engine).tier
    assert tier.divides == pytest.approx(60 / 119)
    chains: list[list[bytes]] = []
    for number in range(3):  # the home of the second is the pool, that of the others the tier
        request = engine.add(f"request {number}", [7 + number] * (10 * BLOCK + 1), 1)
        while engine.scheduler.has_unfinished_requests():
            engine.step()
        chains.append([key_of(block) for block in reversed(request.block_hashes[:10])])
    engine.step()  # the tier's own code reports an end a step later
    queue = engine.scheduler.kv_cache_manager.block_pool.free_block_queue
    in_pool = [block.block_hash for block in queue.get_all_free_blocks() if block.block_hash is not None]
    first, second, third = chains
    if rule == "lru":
        assert in_pool == list(tier.order()) == first + second + third
    else:
        assert in_pool[-10:] == second and sorted(in_pool[:-10]) == sorted(first + third)
        assert list(tier.order())[:10] == second and len(tier) == 30
    assert engine.scheduler.lpc.plugin.failures == 0


def evicts_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that chooses evictions without the policy's methods."""
    stock = CPUOffloadingManager.prepare_store

    def prepare_store(self: Any, keys: Any, req_context: Any) -> Any:
        if isinstance(self._policy, LearnedCachePolicy) and self._get_num_free_chunks() < len(list(keys)):
            self._policy.evict(1, set())
        return stock(self, keys, req_context)

    monkeypatch.setattr(CPUOffloadingManager, "prepare_store", prepare_store)


def has_no_such_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose manager does not report the end of requests to its policy."""
    monkeypatch.setattr(CPUOffloadingManager, "on_request_finished", lambda *_: None)


def takes_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = CPUOffloadingManager.__init__

    def init(self: Any, num_chunks: int, cache_policy: str = "lru", **named: Any) -> None:
        if named.pop("cache_policy_module_path", None) is not None:
            raise TypeError("no cache_policy_module_path here")
        stock(self, num_chunks, cache_policy, **named)

    monkeypatch.setattr(CPUOffloadingManager, "__init__", init)


def has_moved_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from eviction_client.engines import vllm_cpu

    monkeypatch.delattr(vllm_cpu, "conformance")
    monkeypatch.setitem(sys.modules, "eviction_client.engines.vllm_cpu.conformance", None)


DRIFT: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    evicts_in_another_order: "its offload tier with our policy evicts chunks in the order",
    has_no_such_hook: "its offload tier evicts chunks in the order",
    takes_no_policy: "TypeError: no cache_policy_module_path here",
    has_moved_a_module: "does not accept this policy",
}


@pytest.mark.refuses(engine="vLLM", tier="CPU tier", what="a tier that works otherwise, or takes no policy: its own")
@pytest.mark.parametrize("drift", DRIFT, ids=lambda drift: drift.__name__)
def test_a_tier_that_fails_the_check_keeps_vllms_lru_and_reports_it_once(
    drift: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tiered: Callable[..., Any],
) -> None:
    drift(monkeypatch)
    engine = tiered({**connector(50), "kv_connector_extra_config": {**connector(50)["kv_connector_extra_config"]}})
    assert type(policy_of(engine)) is LRUCachePolicy
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert DRIFT[drift] in error and "vLLM's own LRU there" in error
    values = values_of(engine.scheduler.lpc)
    assert (values["lpc_tier_stock_fallback", ""], values["lpc_stock_fallback", ""]) == (1.0, 0.0)
    with pytest.raises(EngineUnsupported, match="CPU offload tier"):
        tiered(connector(50), on_unknown_engine="refuse")
