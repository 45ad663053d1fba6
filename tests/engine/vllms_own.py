"""Runs vLLM's own unit tests of its block pool and CPU offload tier, unchanged and with our code in place of LRU:

    python tests/engine/vllms_own.py CHECKOUT

CHECKOUT: vLLM's source at the installed release (a git checkout or an unpacked source distribution). The tests are copied, so
that they test the installed vLLM and not the sources. Many need a model from a hub and fail with either queue; only differences
count.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

CORE = "tests/v1/core"
TIER = "tests/v1/kv_offload"
FILES = {
    CORE: (
        "test_prefix_caching.py",
        "test_kv_cache_utils.py",
        "test_single_type_kv_cache_manager.py",
        "test_deferred_block_free.py",
        "test_swa_inflight_window_free.py",
        "test_kv_sharing.py",
        "test_prefix_replay.py",
    ),
    TIER: (
        "cpu/test_manager.py",
        "cpu/policies/test_factory.py",
        "tiering/test_tiering_offloading.py",
        "tiering/test_factory.py",
    ),
}
OURS = {
    CORE: """
from vllm.v1.core import block_pool, kv_cache_utils

from eviction_client.engines.vllm.queue import LearnedFreeQueue

block_pool.FreeKVCacheBlockQueue = kv_cache_utils.FreeKVCacheBlockQueue = LearnedFreeQueue
""",
    TIER: """
from itertools import count

from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory

from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy, policies_made
from eviction_client.value_tier import ValueTier


def fail(error):
    raise error


class Linked(LearnedCachePolicy):
    # As under the scheduler plug-in, while nothing is known of reuse.
    def __init__(self, cache_capacity):
        with policies_made():
            super().__init__(cache_capacity)
        ticks = count(10**9)
        tier = ValueTier(
            *("t", cache_capacity),
            blocks=cache_capacity,
            classes=1,
            prompts_only=True,
            guarded=False,
            tables=lambda: None,
            clock=lambda: next(ticks),
        )
        self.link(tier, fail)


CachePolicyFactory._registry["lru"] = lambda: Linked
""",
}


NAME_STOCK = ("test_lru_and_arc_registered",)
"""Tests of the name of vLLM's own LRU class, whose failures are ignored."""
NAMED = re.compile(r"(policy = [\w.]+\._policy)(\n\s+assert isinstance\(policy, LRUCachePolicy\))")
"""Checks for an instance of that class. They are redirected to the LRU policy inside ours."""


def results(folder: Path, room: str) -> dict[str, str]:
    """Run the tests of one part; return the outcome of each."""
    files = [f"{room}/{name}" for name in FILES[room] if (folder / room / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "filterwarnings=default", *files]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    outcomes = re.findall(r"(?m)^(PASSED|FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout)
    if not outcomes:
        raise SystemExit(f"no test ran:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {name: outcome for outcome, name in outcomes}


def main() -> None:
    """Compare the outcomes; exit with 1 if a test passes only with stock."""
    source = Path(sys.argv[1])
    worse: list[str] = []
    for room in FILES:
        if not (source / room).exists():
            print(f"{room}: not there")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            shutil.copytree(source / "tests", folder / "tests")
            (folder / "tests" / "conftest.py").unlink(missing_ok=True)
            stock = results(folder, room)
            (folder / room / "conftest.py").write_text(OURS[room])
            for file in (folder / room).rglob("test_*.py"):
                file.write_text(NAMED.sub(r"\1.lru\2", file.read_text()))
            ours = results(folder, room)
        print(f"{room}, stock:", dict(Counter(stock.values())))
        print(f"{room}, ours: ", dict(Counter(ours.values())))
        failed = [name for name, outcome in stock.items() if outcome == "PASSED" and ours.get(name) != "PASSED"]
        named = [name for name in failed if name.endswith(NAME_STOCK)]
        print(f"{room}, of these name the stock class:", len(named))
        worse += [name for name in failed if name not in named]
    print("\n".join(["pass with stock only:", *worse]) if worse else "ours passes what stock passes")
    raise SystemExit(bool(worse))


if __name__ == "__main__":
    main()
