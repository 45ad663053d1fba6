"""The vLLM that is installed: its release, and configurations of it in which the plug-in has no place.

Whether the plug-in works in it is not read off the release but tried at start: :mod:`eviction_client.engines.vllm.conformance`.
"""

from typing import Any, Final

from vllm import __version__ as vllm_version

RELEASE: Final = vllm_version.partition("+")[0]

TESTED: Final = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Releases against which the tests of queue and hooks were run (`make engine-versions`)."""


def unsuitable(vllm_config: Any) -> str | None:
    """Return why the plug-in has no place in this configuration; None where it has."""
    if getattr(vllm_config.model_config, "is_diffusion", False):
        return "diffusion models have a scheduler of their own"
    if getattr(getattr(vllm_config, "attention_config", None), "hisparse_config", None) is not None:
        return "HiSparse keeps blocks in several pools, which frees cross"
    return None
