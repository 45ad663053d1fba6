"""Which LMCache this works with, and its coordinator with our controller in it, in this process."""

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any, Final

from lpc.errors import UsageError
from lpc.lmcache.settings import LMCacheSettings, LMCacheUnfit
from lpc.wire.access import is_loopback

CONTROLLER: Final = "lpc.lmcache.controller"
PACKAGES: Final = "controller_packages"
MISSING: Final = (
    "LMCache is not installed in this Python: run this in LMCache's environment or image, after "
    "pip install --no-deps learned-prefix-cache and what its extra [lmcache] names"
)
TESTED: Final = ("0.5.6",)
"""Releases that `make test-lmcache` was run with."""
IN_PROCESS: Final = ("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic")
"""vLLM connectors of LMCache's in-process mode."""
REFUSED: Final = (
    "LMCache's in-process mode is not supported: its eviction policies are a closed table in each worker and are shown keys "
    "alone, so no reuse class can be looked up; use MP mode (LMCacheMPConnector), see docs/how-to/install/lmcache.md"
)


def serve(arguments: Sequence[str]) -> None:
    """Serve until a signal stops it. ``arguments``: those of ``lmcache coordinator``.

    Raises:
        UsageError: options do not fit together.
        LMCacheUnfit: LMCache is not there, or is not one that takes controllers.
    """
    command = _command()
    parser = argparse.ArgumentParser(prog="lpc lmcache coordinator", description="LMCache's own options:")
    command.add_arguments(parser)
    options = parser.parse_args([*arguments])
    options.extra_config = json.dumps(with_controller(options.extra_config))
    if LMCacheSettings().token() is not None and not is_loopback(options.host or "0.0.0.0"):
        raise UsageError(
            "a token is set, and LMCache's coordinator would listen without asking for it: give --host 127.0.0.1, "
            "and run `lpc lmcache front --host ADDRESS --port 9300 --upstream 127.0.0.1:9300` before it"
        )
    command.execute(options)


def with_controller(raw: str | None) -> dict[str, Any]:
    """Return LMCache's ``--extra-config`` with our controller among the packages. Raises UsageError: not a JSON object."""
    try:
        config = {} if raw is None else json.loads(raw)
    except ValueError:
        config = None
    if not isinstance(config, dict) or not isinstance(config.get(PACKAGES, []), list):
        raise UsageError(f"--extra-config must be a JSON object, {PACKAGES} in it a list of names")
    packages = config.get(PACKAGES, [])
    return {**config, PACKAGES: packages if CONTROLLER in packages else [*packages, CONTROLLER]}


def _command() -> Any:
    try:
        from lmcache.cli.commands.coordinator import CoordinatorCommand
        from lmcache.v1.mp_coordinator import controllers
    except ImportError as error:
        raise LMCacheUnfit(MISSING if error.name == "lmcache" else f"LMCache cannot be used: {error}") from None
    if getattr(controllers, "_PACKAGES_KEY", None) != PACKAGES:
        raise LMCacheUnfit("this LMCache takes no controllers from outside: 0.5.6 is the release that was tried")
    return CoordinatorCommand()


def installed() -> str | None:
    """Return the release of LMCache in this environment; None where there is none."""
    try:
        return importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return None


def find_incompatibility(version: str, connector: str = "") -> str | None:
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
