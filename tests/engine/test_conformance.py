"""The check at start-up: in an incompatible vLLM the plug-in stays off, and the engine serves."""

import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from eviction_client.engines.vllm import conformance
from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.engines.vllm_cpu import placing
from eviction_client.errors import EngineUnsupported
from testing.bare_scheduler import Engine, conversations, vllm_config

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="the check at start")


def takes_policies() -> bool:
    """Whether this vLLM's offload tier reports the end of requests to its policy."""
    try:
        base = importlib.import_module("vllm.v1.kv_offload.cpu.policies.base")
    except ImportError:
        return False
    return hasattr(base, "order_request_keys")


def test_this_vllm_passes_and_the_check_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(50, learned=False)
    before = engine.pool.get_num_free_blocks(), engine.pool.free_block_queue
    with caplog.at_level(logging.DEBUG):
        assert conformance.find_incompatibility(engine.scheduler) is None
    assert (engine.pool.get_num_free_blocks(), engine.pool.free_block_queue) == before
    assert not caplog.records


Drift = Callable[[pytest.MonkeyPatch], None]


def has_another_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose queue can insert blocks in its middle."""
    monkeypatch.setattr(FreeKVCacheBlockQueue, "append_warm", FreeKVCacheBlockQueue.append_n, raising=False)


def frees_with_another_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = FreeKVCacheBlockQueue.append_n

    def append_n(self: Any, blocks: list[KVCacheBlock], warm: bool = False) -> None:
        stock(self, blocks)

    monkeypatch.setattr(FreeKVCacheBlockQueue, "append_n", append_n)


def keeps_its_blocks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose queue has another attribute, which its pool might use."""
    stock = FreeKVCacheBlockQueue.__init__

    def init(self: Any, blocks: list[KVCacheBlock]) -> None:
        stock(self, blocks)
        self.segments = [blocks]

    monkeypatch.setattr(FreeKVCacheBlockQueue, "__init__", init)


def evicts_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose queue is not LRU."""
    monkeypatch.setattr(FreeKVCacheBlockQueue, "append_n", FreeKVCacheBlockQueue.prepend_n)


def reads_its_queue_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose pool evicts the block freed last, without its queue's methods."""
    stock = BlockPool.get_new_blocks

    def get_new_blocks(self: Any, num_blocks: int) -> list[KVCacheBlock]:
        queue, end = self.free_block_queue, getattr(self.free_block_queue, "fake_free_list_tail")  # noqa: B009
        if num_blocks == 1 and type(queue) is FreeKVCacheBlockQueue:
            queue.remove(last := end.prev_free_block)
            queue.prepend_n([last])
        return stock(self, num_blocks)

    monkeypatch.setattr(BlockPool, "get_new_blocks", get_new_blocks)


def has_another_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    class SegmentedQueue(FreeKVCacheBlockQueue):
        pass

    monkeypatch.setattr("vllm.v1.core.block_pool.FreeKVCacheBlockQueue", SegmentedQueue)


def frees_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCacheManager, "pop_blocks_for_free", None)


def takes_another_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = BlockPool.free_blocks

    def free_blocks(self: Any, ordered_blocks: Iterable[KVCacheBlock], keep: bool = False) -> None:
        stock(self, ordered_blocks)

    monkeypatch.setattr(BlockPool, "free_blocks", free_blocks)


def cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that does not allow a second pool."""
    stock = BlockPool.__init__

    def init(self: Any, num_gpu_blocks: int, enable_caching: bool, hash_block_size: int, *more: Any, **named: Any) -> None:
        if num_gpu_blocks == conformance.BLOCKS:
            raise RuntimeError("no such pool")
        stock(self, num_gpu_blocks, enable_caching, hash_block_size, *more, **named)

    monkeypatch.setattr(BlockPool, "__init__", init)


def has_moved_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eviction_client.engines.vllm.hooks", None)


DRIFT: dict[Drift, str] = {
    has_another_method: "its free queue has `append_warm`, which ours does not have",
    frees_with_another_argument: r"free queue's append_n\(blocks, warm\) takes other arguments",
    keeps_its_blocks_elsewhere: "its free queue has `segments`",
    evicts_in_another_order: r"evicts blocks in the order \[.*\], not \[6, 7, 3, 2, 5, 4, 1\]",
    reads_its_queue_from_the_end: r"evicts blocks in the order \[1, 7, ",
    has_another_queue: "its free queue is a SegmentedQueue",
    frees_by_another_name: r"pop_blocks_for_free\(request\) is gone",
    takes_another_argument: r"free_blocks\(ordered_blocks\) is gone or takes other arguments",
    cannot_be_built: "RuntimeError: no such pool",
    has_moved_a_module: "ModuleNotFoundError",
}


@pytest.mark.refuses(engine="vLLM", tier="GPU pool", what="a block pool or queue that works otherwise: stock LRU")
@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["sync", "async"])
@pytest.mark.parametrize("drift", DRIFT, ids=lambda drift: drift.__name__)
def test_an_engine_that_fails_the_check_runs_stock_lru_and_reports_it_once(
    drift: Drift, asynchronous: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drift(monkeypatch)
    made = conversations(1, 20)
    engine = Engine(100, asynchronous=asynchronous)
    assert type(engine.scheduler) is (AsyncScheduler if asynchronous else Scheduler)
    assert not hasattr(engine.scheduler, "lpc") and not isinstance(engine.pool.free_block_queue, LearnedFreeQueue)
    stock = Engine(100, learned=False, asynchronous=asynchronous)
    ours = engine.run(made)
    assert (ours.outputs, ours.evicted) == (stock.run(made).outputs, stock.outcome.evicted)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert re.search(DRIFT[drift], error) and "Stock LRU instead" in error
    assert REGISTRY.get_sample_value("lpc_stock_fallback", {"engine": "0"}) == 1.0


def test_with_refuse_an_incompatible_engine_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    evicts_in_another_order(monkeypatch)
    with pytest.raises(EngineUnsupported, match=r"evicts blocks in the order.*LPC_ON_UNKNOWN_ENGINE"):
        Engine(50, on_unknown_engine="refuse")


@pytest.mark.refuses(engine="vLLM", tier="GPU pool", what="diffusion models: stock LRU")
def test_an_unsupported_configuration_runs_stock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(vllm_config().model_config, "is_diffusion", True, raising=False)
    assert not hasattr(Engine(50).scheduler, "lpc")
    assert "diffusion models have a scheduler of their own" in caplog.text


@pytest.mark.skipif(not takes_policies(), reason="not in vLLM before 0.31")
def test_the_offload_tier_passes_its_check_too() -> None:
    assert placing.find_incompatibility() is None


@pytest.mark.skipif(takes_policies(), reason="this vLLM's offload tier takes a policy")
@pytest.mark.refuses(engine="vLLM", tier="CPU tier", what="a tier that takes no policy of this kind (before 0.31): its own")
def test_an_offload_tier_before_0_31_keeps_vllms_own_lru() -> None:
    assert "does not accept this policy" in (placing.find_incompatibility() or "")


AT_INFO = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}


def test_the_plug_in_logs_in_vllms_format() -> None:
    program = "from testing.bare_scheduler import Engine; Engine(50)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=AT_INFO, check=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "learned prefix cache: on" in line]
    assert len(lines) == 1
    assert re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[\S*scheduler\.py:\d+\] learned prefix cache: on", lines[0])
