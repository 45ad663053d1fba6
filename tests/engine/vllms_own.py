"""vLLM's own unit tests of its block pool, with the stock queue and with ours: `python tests/engine/vllms_own.py CHECKOUT`.

CHECKOUT: vLLM's source at the release that is installed (a git checkout or an unpacked source distribution). Its tests are
copied to a folder of their own, so that the installed vLLM is tested and not the sources. Many need a model from a hub: they
fail with either queue, and only a difference counts.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FILES = (
    "test_prefix_caching.py",
    "test_kv_cache_utils.py",
    "test_single_type_kv_cache_manager.py",
    "test_deferred_block_free.py",
    "test_swa_inflight_window_free.py",
    "test_kv_sharing.py",
    "test_prefix_replay.py",
)
OURS = """
from vllm.v1.core import block_pool, kv_cache_utils

from eviction_client.engines.vllm.queue import LearnedFreeQueue

block_pool.FreeKVCacheBlockQueue = kv_cache_utils.FreeKVCacheBlockQueue = LearnedFreeQueue
"""


def results(folder: Path) -> dict[str, str]:
    """Run the tests; return the outcome of each."""
    files = [f"tests/v1/core/{name}" for name in FILES if (folder / "tests/v1/core" / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "filterwarnings=default", *files]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    outcomes = re.findall(r"(?m)^(PASSED|FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout)
    if not outcomes:
        raise SystemExit(f"no test ran:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {name: outcome for outcome, name in outcomes}


def main() -> None:
    """Compare; exit with 1 where a test passes with the stock queue only."""
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(source / "tests", folder / "tests")
        (folder / "tests" / "conftest.py").unlink(missing_ok=True)
        stock = results(folder)
        (folder / "tests" / "v1" / "core" / "conftest.py").write_text(OURS)
        ours = results(folder)
    print("stock queue:", dict(Counter(stock.values())))
    print("our queue:  ", dict(Counter(ours.values())))
    worse = [name for name, outcome in stock.items() if outcome == "PASSED" and ours.get(name) != "PASSED"]
    print("\n".join(["pass with the stock queue only:", *worse]) if worse else "ours passes what the stock queue passes")
    raise SystemExit(bool(worse))


if __name__ == "__main__":
    main()
