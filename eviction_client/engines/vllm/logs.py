"""Where the plug-in's log lines go: vLLM gives handlers to its own loggers only."""

import logging
from typing import Final

PACKAGES: Final = ("eviction_client", "lpc")


def join_vllms_logging() -> None:
    """Send the plug-in's lines where vLLM's go, at vLLM's level; not where somebody has said where ours go, or all."""
    vllms = logging.getLogger("vllm")
    for package in PACKAGES:
        ours = logging.getLogger(package)
        if ours.hasHandlers():
            continue
        for handler in vllms.handlers:
            ours.addHandler(handler)
        if ours.level == logging.NOTSET:
            ours.setLevel(vllms.level)
