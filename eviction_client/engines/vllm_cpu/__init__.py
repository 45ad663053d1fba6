"""vLLM's CPU offload tier, from 0.31 on: its eviction policy, and how the scheduler plug-in puts that in its place.

Nothing of vLLM is imported here: releases before 0.31 have no such tier.
"""

from typing import Final

MODULE: Final = "eviction_client.engines.vllm_cpu.policy"
POLICY: Final = "LearnedCachePolicy"
"""What ``kv_connector_extra_config`` names: ``cache_policy_module_path`` and ``eviction_policy``."""

TESTED: Final = ("0.31.0", "0.32.0", "0.33.0")
"""Releases against whose tier the tests were run (`make engine-versions`)."""
