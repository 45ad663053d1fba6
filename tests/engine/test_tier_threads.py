"""vLLM's tiering manager with a tier for peers, which vLLM 0.33 serves in a thread of its own between the scheduler's steps."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testing.engine_internals import cache_policy_of, stop_polling, transferred

# If this is skipped wrongly, test_conformance.py fails.
pytest.importorskip("eviction_client.engines.vllm_cpu.policy", reason="not in vLLM before 0.31", exc_type=ImportError)

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.outputs import KVConnectorOutput

from eviction_client.background import AtOnce
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy
from eviction_client.policy.request import TrackedRequest
from testing.bare_scheduler import BLOCK, Engine, vllm_config
from testing.cpu_tier import connector
from tests.engine import polled_tier
from tests.engine.tier_course import TABLES, Side, fail, key_of
from tests.eventually import patiently
from tests.spans import spans_of

pytestmark = pytest.mark.supports(
    engine="vLLM",
    tier="CPU tier",
    what="tiering with storage and a tier for peers: the plug-in and vLLM's poll thread do not meet in the order",
)
CHUNKS = 60


@pytest.fixture
def tiered() -> Iterator[Callable[..., Any]]:
    """Return an engine without a model over a real tiering manager; all of its threads are stopped at the end."""
    from vllm.config import KVTransferConfig

    config = vllm_config()
    before, block_size = config.kv_transfer_config, config.cache_config.block_size
    interval = sys.getswitchinterval()
    config.cache_config.block_size = BLOCK
    engines: list[Any] = []

    def build(**more: Any) -> Any:
        chosen = connector(CHUNKS, spec_name="PolledSpec", spec_module_path=polled_tier.__name__)
        config.kv_transfer_config = KVTransferConfig(**chosen)
        engines.append(Engine(40, **more))
        return engines[-1]

    yield build
    sys.setswitchinterval(interval)
    for engine in engines:
        manager_of(engine).shutdown()
    config.kv_transfer_config, config.cache_config.block_size = before, block_size


def manager_of(engine: Any) -> Any:
    return engine.scheduler.connector.connector_scheduler.manager


def serve(engine: Any) -> None:
    """Run the engine until it is idle, with a worker whose transfers are done after each step."""
    scheduler = engine.scheduler
    planned: list[Any] = []
    schedule = scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        planned.append(schedule(*args, **kwargs))
        return planned[-1]

    scheduler.schedule = noted
    for _ in range(2_000):
        if not scheduler.has_unfinished_requests():
            break
        engine.step()
        transfers = planned.pop().kv_connector_metadata
        jobs = {**transfers.load_jobs, **transfers.store_jobs}
        transferred(
            scheduler,
            KVConnectorOutput(
                finished_recving={job.req_id for job in transfers.load_jobs.values() if not getattr(job, "sync", False)},
                kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1)),
            ),
        )
    scheduler.schedule = schedule
    assert not scheduler.has_unfinished_requests()


def test_a_tier_that_serves_peers_in_a_thread_stays_in_order_while_requests_wait(tiered: Callable[..., Any]) -> None:
    """Requests wait, start and end in the scheduler's thread, and peers' requests evict in vLLM's, at any instruction."""
    engine = tiered(max_seqs=2, background=AtOnce)
    plugin, manager = engine.scheduler.lpc.plugin, manager_of(engine)
    policy: LearnedCachePolicy = cache_policy_of(manager.primary_tier)
    peer = manager.secondary_tiers[1]
    rng = random.Random(1)
    sys.setswitchinterval(1e-6)
    chats = [[rng.randrange(30_000) for _ in range(3 * BLOCK)] for _ in range(16)]
    for round_ in range(4):
        for number, chat in enumerate(chats):
            chat += [rng.randrange(30_000) for _ in range(BLOCK)]
            engine.add(f"{round_}/{number}", chat, 2)
        serve(engine)
    if polled_tier.POLLED:
        stop_polling(manager)
        assert peer.threads - {threading.get_ident()}, "vLLM has served the peer in a thread"
    assert plugin.failures == 0
    assert policy.tier is not None, "the tier has not fallen back to LRU"
    assert peer.served > 0 and policy.tier.evictions["plugin"] > 0
    assert set(policy.tier.order()) == set(policy.lru.chunks)
    engine.step()
    assert not policy.tier.queue.keeps, "no request waits"


class Reached(threading.Event):
    """A point in another thread's call, which goes on when the test has looked."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def here(self) -> None:
        self.set()
        assert self.go_on.wait(patiently())


def test_the_scheduler_never_waits_for_an_eviction_in_another_thread_and_changes_nothing_under_it() -> None:
    side = Side(4, learned=True, tables=TABLES)
    tier, policy = side.tier, cache_policy_of(side.manager)
    assert tier is not None
    policy.link(tier, fail, [(0, 1)])
    chain = [bytes([place]).rjust(32) for place in range(4)]
    context = side.context(1, chain)
    output = side.manager.prepare_store([key_of(block) for block in chain], context)
    side.manager.complete_store(output.keys_to_store, context)
    side.end(1, chain, (4, 2))
    point, gone = Reached(), []
    get = policy.lru.get

    def looked_at(key: Any) -> Any:
        if threading.current_thread() is evicting:
            point.here()
        return get(key)

    policy.lru.get = looked_at
    evicting = threading.Thread(target=lambda: gone.extend(policy.evict(1, set()) or ()))
    evicting.start()
    assert point.wait(patiently())
    # Each of these would wait forever if it waited for the thread.
    before = list(tier.queue.eviction_order())
    assert policy.find(chain, 2) == [key_of(block) for block in chain]
    found = [key_of(chain[2])]
    policy.wait("r", found)
    tier.finished(TrackedRequest("other", blocks=chain, at=side.now, spans=spans_of((4, 2))))
    assert policy.step(), "work is left"
    policy.wait("gone", found)
    policy.release("gone")
    assert list(tier.queue.eviction_order()) == before and not tier.queue.keeps and not tier.unreported
    point.go_on.set()
    evicting.join(patiently())
    assert [key for key, _ in gone] == [key_of(chain[3])]
    policy.step()
    assert tier.queue.keeps and list(tier.unreported) == ["other"]
    assert [key[:-4] for key in tier.order()] == [chain[1], chain[0], chain[2]], "the waiting request's chunk is last"
    policy.release("r")
    assert not tier.queue.keeps


def test_a_tier_that_fails_in_another_thread_raises_nothing_in_the_scheduler() -> None:
    failures: list[Exception] = []
    side = Side(4, learned=True, tables=TABLES)
    policy: Any = cache_policy_of(side.manager)
    policy.link(side.tier, failures.append, [(0, 1)])

    class Vanishing:
        """Another thread gives up between any two looks at the tier."""

        looks = 0

        def __get__(self, instance: Any, _: object) -> Any:
            self.looks += 1
            return side.tier if self.looks == 1 else None

        def __set__(self, instance: Any, value: Any) -> None: ...

    key, context = key_of(b"a" * 32), ReqContext(req_id="r")
    calls: list[Callable[[Any], Any]] = [
        lambda policy: policy.step(),
        lambda policy: policy.find([b"a" * 32], 0),
        lambda policy: policy.wait("r", [key]),
        lambda policy: policy.release("r"),
        lambda policy: policy.on_request_finished(((key,),), set(), set(), context),
        lambda policy: policy.evict(0, set()),
        lambda policy: policy.clear(),
    ]
    stock = type(policy)
    for call in calls:
        policy.__class__ = type("Racing", (stock,), {"_tier": Vanishing()})
        call(policy)
    policy.__class__ = stock
    assert failures == []
