"""Eviction policy for vLLM's CPU offload tier (0.31 and later), and its installation by the scheduler plug-in.

This module does not import vLLM: releases before 0.31 have no such tier.
"""

from typing import Final

MODULE: Final = "eviction_client.engines.vllm_cpu.policy"
POLICY: Final = "LearnedCachePolicy"
"""Values of ``cache_policy_module_path`` and ``eviction_policy`` in ``kv_connector_extra_config``."""

TESTED: Final = ("0.31.0", "0.32.0", "0.33.0")
"""Releases against which the tests were run (`make engine-versions`)."""
