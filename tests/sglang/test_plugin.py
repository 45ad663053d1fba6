"""SGLang finds the plug-in by its entry point and loads little for it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = """
import sys
import tests.sglang.conftest
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from eviction_client.engines.sglang.versions import SEAM
load_plugins()
import sglang.srt.mem_cache.kv_cache_builder as builder
import sglang.srt.mem_cache.registry as registry
assert SEAM in HookRegistry._patched, "SGLang has not loaded it: is the package installed?"
assert builder.create_tree_cache is registry.create_tree_cache
assert registry.create_tree_cache.__wrapped__.__module__ == "sglang.srt.mem_cache.registry"
print(*sorted(name for name in sys.modules if name.startswith("eviction_client")))
"""


@pytest.mark.supports(engine="SGLang", tier="radix cache", what="found by SGLang by its entry point")
def test_sglang_loads_only_the_entry_point() -> None:
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", LOADED], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    ours = result.stdout.split("\n")[-2].split()
    assert "eviction_client.engines.sglang.plugin" in ours
    assert not {
        "eviction_client.observability.metrics",
        "eviction_client.plugin",
        "eviction_client.engines.sglang.building",
    } & set(ours)
