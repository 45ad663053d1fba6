"""Tests with vLLM itself, run by `make test-engine` in an environment of their own; elsewhere none is collected."""

import importlib.util

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
