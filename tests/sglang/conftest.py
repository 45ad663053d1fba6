"""SGLang as its radix cache needs it; where it is not installed (`make test-sglang` does) none of its tests is collected."""

import importlib.util

from benchmarks.sglang_settle import settle

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    settle()
