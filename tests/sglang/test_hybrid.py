"""SGLang's own fixtures and random operations on trees with sliding windows, with the plug-in attached."""

import sys
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from eviction_client.background import AtOnce
from eviction_client.engines.sglang.building import CORE
from eviction_client.engines.sglang.chain import BLOCK_TOKENS
from eviction_client.engines.sglang.hooks import Hooks
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from testing.engine_internals import run_seed

# For SGLang's benchmarks, which its fixtures import but these tests do not run.
sys.modules.setdefault("datasets", SimpleNamespace(load_dataset=None))  # type: ignore[arg-type]
insert_walk = pytest.importorskip("sglang.test.kits.unified_radix_cache.insert_walk", reason="fixtures of another release")
fixtures = pytest.importorskip("sglang.test.kits.unified_radix_cache.fixtures")
CONFIGS = pytest.importorskip("sglang.test.kits.unified_radix_cache.config").CONFIGS

pytestmark = pytest.mark.supports(
    engine="SGLang", tier="radix cache", what="its own random operations on trees with sliding windows leave them intact"
)


@pytest.mark.parametrize("rule", ["value", "lru"])
@pytest.mark.parametrize(
    "cfg",
    [config for config in CONFIGS if config.has_swa and not config.has_mamba and config.page_size == 1],
    ids=lambda config: config.label,
)
def test_sglangs_own_random_operations_leave_its_tree_intact(
    cfg: Any, rule: Literal["value", "lru"], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = insert_walk.build_fixture
    attached: list[Hooks] = []

    def build(*args: Any, **kwargs: Any) -> Any:
        cache, allocator, slots = stock(*args, **kwargs)
        settings = ClientSettings(rule=rule)
        plugin = Plugin(settings, capacity=4, block_tokens=BLOCK_TOKENS, predictor=ScriptedPredictor(), background=AtOnce)
        attached.append(Hooks(cache, plugin, adopt=True))
        return cache, allocator, slots

    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", CORE)
    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")
    monkeypatch.setattr(insert_walk, "build_fixture", build)
    fuzz = insert_walk.SegmentLockFuzzFixtures()
    fuzz.cfg = cfg
    run_seed(fuzz, 1)
    assert [hooks.plugin.failures for hooks in attached] == [0]
