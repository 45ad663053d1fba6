"""Which LMCache this works with, said before anything is started: for `lpc doctor` and other callers."""

import importlib.metadata
from typing import Final

TESTED: Final = ("0.5.6",)
"""Releases that `make test-lmcache` was run with."""
IN_PROCESS: Final = ("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic")
"""vLLM connectors of LMCache's in-process mode."""
REFUSED: Final = (
    "LMCache's in-process mode is not supported: its eviction policies are a closed table in each worker and are shown keys "
    "alone, so no reuse class can be looked up; use MP mode (LMCacheMPConnector), see docs/how-to/install/lmcache.md"
)


def installed() -> str | None:
    """Return the release of LMCache in this environment; None where there is none."""
    try:
        return importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not(version: str, connector: str = "") -> str | None:
    """Return in one sentence why this cannot work with an LMCache, or has not been tried; None: it was.

    Args:
        version: LMCache's release.
        connector: the name of vLLM's connector, where it is known.
    """
    if connector in IN_PROCESS:
        return REFUSED
    if version not in TESTED:
        return f"LMCache {version} was never tried, {' and '.join(TESTED)} was: run make test-lmcache with it"
    return None
