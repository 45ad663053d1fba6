"""Tests with vLLM itself, run by `make test-engine` in an environment of their own; elsewhere none is collected."""

import importlib.util
import os

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
elif "LPC_TEST_FINGERPRINT" in os.environ:  # tests/engine/versions.py asks whether this release works
    from eviction_client.engines.vllm import versions

    version, _, fingerprint = os.environ["LPC_TEST_FINGERPRINT"].partition("=")
    versions.KNOWN_VERSIONS[version] = fingerprint
