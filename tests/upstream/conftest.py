"""Tests of the patch that is proposed to vLLM, run by `make test-upstream`; elsewhere none is collected."""

import os

if "LPC_TEST_UPSTREAM" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
