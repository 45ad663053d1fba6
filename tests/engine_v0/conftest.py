"""Tests with vLLM's V0 engine, run per release by `make test-vllm-v0`. Elsewhere none is collected."""

import importlib.util
from pathlib import Path

found = importlib.util.find_spec("vllm")
IS_V0 = (
    found is not None and found.origin is not None and Path(found.origin).with_name("core").joinpath("scheduler.py").exists()
)
if IS_V0:
    from tests.engine_v0.outdated import bring_back

    bring_back()
else:
    collect_ignore_glob = ["test_*.py"]
