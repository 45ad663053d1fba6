"""The plug-in for vLLM's V0 engine (0.6 to 0.10).

This module imports nothing else: every process of every vLLM calls its entry point.
"""

import logging
import os
from typing import Final

SWITCH: Final = "LPC_VLLM_V0"

TESTED: Final = ("0.6.0", "0.6.3.post1", "0.6.6.post1", "0.7.3", "0.8.5", "0.9.2", "0.10.2")
"""Releases against which the tests were run (`make test-vllm-v0`)."""


def register() -> None:
    """Enable the plug-in in the V0 engines of this process if LPC_VLLM_V0 is set (``vllm.general_plugins``).

    Raises nothing. A failure logs one line, and the engine serves with its own LRU.
    """
    if os.environ.get(SWITCH, "").strip().lower() in ("", "0", "false", "no", "off", "n", "f"):
        return
    logger = logging.getLogger(__name__)
    try:
        from vllm import __version__ as release

        from eviction_client.engines.vllm_v0.engine import watch
        from eviction_client.settings import ClientSettings

        settings = ClientSettings()
        if not settings.vllm_v0:
            return
        try:
            watch(settings, release.partition("+")[0])
        except ImportError as error:
            logger.error(
                "learned prefix cache: vLLM %s has no V0 engine (%s): unset LPC_VLLM_V0, and use --scheduler-cls "
                "eviction_client.engines.vllm.LearnedScheduler",
                *(release, error),
            )
    except Exception as error:
        logger.error("learned prefix cache: cannot enable it in the V0 engine: %s: %s", type(error).__name__, error)
