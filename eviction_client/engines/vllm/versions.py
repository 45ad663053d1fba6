"""The installed vLLM: its release, and configurations that the plug-in does not support.

Support does not depend on the release number but on the check at start: :mod:`eviction_client.engines.vllm.conformance`.
"""

from typing import Any, Final

from vllm import __version__ as vllm_version

from eviction_client.engines.vllm import TESTED as TESTED

RELEASE: Final = vllm_version.partition("+")[0]


def unsuitable(vllm_config: Any) -> str | None:
    """Return why the plug-in does not support this configuration; None if it does."""
    if vllm_config.model_config.is_diffusion:
        return "diffusion models have a scheduler of their own"
    if getattr(getattr(vllm_config, "attention_config", None), "hisparse_config", None) is not None:
        return "HiSparse keeps blocks in several pools, which frees cross"
    return None
