"""Installation of the plug-in in a V0 engine: if it is enabled, and the messages if it does not work."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
import vllm.engine.llm_engine
from prometheus_client import REGISTRY
from vllm.engine.llm_engine import LLMEngine

from eviction_client.engines.vllm_v0 import engine as adapter
from eviction_client.engines.vllm_v0 import register
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor
from eviction_client.errors import EngineUnsupported
from eviction_client.settings import ClientSettings
from tests.engine_v0.bare import Engine, Told

pytestmark = pytest.mark.supports(engine="vLLM V0", tier="GPU pool", what="the plug-in entry and the check at start")
RELEASE = vllm.__version__.partition("+")[0]


@pytest.fixture
def stock_engine(monkeypatch: pytest.MonkeyPatch) -> type[LLMEngine]:
    """vLLM's LLMEngine, restored afterwards. Its construction only creates a scheduler, since there is no model."""

    def init(self: Any, *_: object) -> None:
        self.scheduler = [Engine(40, learned=False).scheduler]
        self.model_config = SimpleNamespace(served_model_name="m", model="m", tokenizer="nowhere")
        self.load_config = None

    monkeypatch.setattr(LLMEngine, "__init__", init)
    monkeypatch.setattr(LLMEngine, "_add_processed_request", lambda self, *_: "added")
    return LLMEngine


def built() -> Any:
    return LLMEngine()  # type: ignore[call-arg]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_predictor", lambda *_: Told(lambda _: None))


def fallback() -> float | None:
    return REGISTRY.get_sample_value("lpc_stock_fallback", {"engine": "0"})


def test_without_the_setting_nothing_is_patched(stock_engine: type[LLMEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    before = LLMEngine.__init__
    for value in (None, "", "false", "0"):
        monkeypatch.delenv("LPC_VLLM_V0", raising=False)
        if value is not None:
            monkeypatch.setenv("LPC_VLLM_V0", value)
        register()
        assert LLMEngine.__init__ is before


def test_with_the_setting_every_engine_gets_the_hooks(
    stock_engine: type[LLMEngine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LPC_VLLM_V0", "true")
    register()
    register()  # vLLM may load plug-ins more than once
    with caplog.at_level(logging.INFO):
        engine = built()
    (hooks,) = engine.lpc
    assert isinstance(adapter.gpu_allocator(engine.scheduler[0].block_manager).evictor, LearnedEvictor)
    assert f"on in the V0 engine; vLLM {RELEASE}, check passed" in caplog.text
    hooks.plugin.on_tick[0]()
    assert fallback() == 0.0
    assert engine._add_processed_request() == "added" and engine.lpc == [hooks]
    hooks.plugin.close()


def test_an_engine_that_loads_plug_ins_during_its_construction_gets_the_hooks_with_its_first_request(
    stock_engine: type[LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = built()
    monkeypatch.setenv("LPC_VLLM_V0", "true")
    register()
    assert engine._add_processed_request() == "added"
    assert len(engine.lpc) == 1
    engine.lpc[0].plugin.close()


def drifted(scheduler: Any) -> None:
    """Add an argument to the evictor, as a fork might."""
    stock = adapter.gpu_allocator(scheduler.block_manager)

    class Evictor(type(stock.evictor)):  # type: ignore[misc]
        def add(self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float, tier: int) -> None: ...

    stock.evictor = Evictor()


@pytest.mark.refuses(engine="vLLM V0", tier="GPU pool", what="an evictor or allocator that works otherwise: stock LRU")
def test_an_evictor_with_other_arguments_stays_stock_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Engine(40, learned=False).scheduler
    drifted(scheduler)
    engine = SimpleNamespace(scheduler=[scheduler])
    adapter.attach(engine, ClientSettings(), RELEASE)
    assert len(caplog.records) == 1 and "tier) takes other arguments. Stock LRU instead" in caplog.text
    assert fallback() == 1.0 and not engine.lpc
    with pytest.raises(EngineUnsupported, match=r"takes other arguments.*LPC_ON_UNKNOWN_ENGINE"):
        adapter.attach(engine, ClientSettings(on_unknown_engine="refuse"), RELEASE)


@pytest.mark.refuses(engine="vLLM V0", tier="GPU pool", what="an evictor or allocator that works otherwise: stock LRU")
def test_an_allocator_that_reads_its_evictors_own_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Engine(40, learned=False).scheduler
    assert adapter.find_incompatibility(scheduler) is None
    allocator = type(adapter.gpu_allocator(scheduler.block_manager))
    evicted = allocator._maybe_allocate_evicted_block_id
    monkeypatch.setattr(
        allocator, "_maybe_allocate_evicted_block_id", lambda self: evicted(self) if len(self.evictor.free_table) else None
    )
    assert "free_table" in (adapter.find_incompatibility(scheduler) or "")


@pytest.mark.refuses(engine="vLLM V0", tier="GPU pool", what="an evictor or allocator that works otherwise: stock LRU")
def test_an_allocator_that_gives_blocks_another_depth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Engine(40, learned=False).scheduler
    add = adapter.LearnedEvictor.add

    def shallow(self: Any, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float) -> None:
        add(self, block_id, content_hash, -num_hashed_tokens, last_accessed)

    monkeypatch.setattr(adapter.LearnedEvictor, "add", shallow)
    assert "with our evictor evicts blocks in the order [4, 2, 3, 0, 1]" in (adapter.find_incompatibility(scheduler) or "")


@pytest.mark.refuses(
    engine="vLLM V0", tier="GPU pool", what="the first block manager (before 0.6.4 without --use-v2-block-manager)"
)
def test_a_block_manager_without_an_allocator_of_blocks_by_id_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = SimpleNamespace(block_manager=SimpleNamespace(), cache_config=SimpleNamespace(enable_prefix_caching=True))
    adapter.attach(SimpleNamespace(scheduler=[scheduler]), ClientSettings(), RELEASE)
    assert "--use-v2-block-manager" in caplog.text


@pytest.mark.refuses(engine="vLLM V0", tier="GPU pool", what="a vLLM without a V0 engine (0.11 and later): one line")
def test_a_vllm_without_v0_logs_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def gone(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'vllm.core'")

    monkeypatch.setattr(adapter, "watch", gone)
    monkeypatch.setenv("LPC_VLLM_V0", "true")
    register()
    assert len(caplog.records) == 1 and "has no V0 engine" in caplog.text and "--scheduler-cls" in caplog.text
