"""Prepares SGLang for tests of its radix cache. Without SGLang (`make test-sglang` installs it) no tests are collected."""

import importlib.util

from testing.sglang_settle import settle

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    settle()
