"""SGLang's own fixtures and random operations on trees with sliding windows, with the plug-in attached."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from eviction_client.background import AtOnce
from eviction_client.engines.sglang.hooks import Hooks
from eviction_client.scorer import Scorer
from eviction_client.settings import ClientSettings
from lpc.bench.told import Told

# For benchmarks of SGLang's, which its fixtures import and these tests do not run.
sys.modules.setdefault("datasets", SimpleNamespace(load_dataset=None))  # type: ignore[arg-type]
insert_walk = pytest.importorskip("sglang.test.kits.unified_radix_cache.insert_walk", reason="fixtures of another release")
fixtures = pytest.importorskip("sglang.test.kits.unified_radix_cache.fixtures")
CONFIGS = pytest.importorskip("sglang.test.kits.unified_radix_cache.config").CONFIGS

pytestmark = pytest.mark.supports(
    engine="SGLang", tier="radix cache", what="its own random operations on trees with sliding windows leave them intact"
)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize(
    "cfg",
    [config for config in CONFIGS if config.has_swa and not config.has_mamba and config.page_size == 1],
    ids=lambda config: config.label,
)
def test_sglangs_own_random_operations_leave_its_tree_intact(cfg: Any, guard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = insert_walk.build_fixture
    attached: list[Hooks] = []

    def build(*args: Any, **kwargs: Any) -> Any:
        cache, allocator, slots = stock(*args, **kwargs)
        scorer = Scorer(ClientSettings(guard=guard), capacity=4, predictor=Told(lambda _: 0.0), background=AtOnce)
        attached.append(Hooks(cache, scorer, adopt=True))
        return cache, allocator, slots

    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")
    monkeypatch.setattr(insert_walk, "build_fixture", build)
    fuzz = insert_walk.SegmentLockFuzzFixtures()
    fuzz.cfg = cfg
    fuzz._run_seed(1)
    assert [hooks.scorer.failures for hooks in attached] == [0]
