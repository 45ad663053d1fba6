"""Starts LMCache's coordinator with this project's controller, and checks LMCache's release."""

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from lpc.distribution import install
from lpc.errors import UsageError
from lpc.wire.access import is_loopback
from lpc_apps.lmcache.settings import LMCacheSettings, LMCacheUnfit

CONTROLLER: Final = "lpc_apps.lmcache.controller"
PACKAGES: Final = "controller_packages"
MISSING: Final = (
    "LMCache is not installed in this Python environment: run this in LMCache's environment or image, after "
    f"{install(options='--no-deps ')} and the packages of its extra [lmcache]"
)
TESTED: Final = ("0.5.6", "0.5.7rc2")
"""Releases that `make test-lmcache` and `make lmcache-newest` have passed with."""
IN_PROCESS: Final = ("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic")
"""vLLM connectors of LMCache's in-process mode."""
REFUSED: Final = (
    "LMCache's in-process mode is not supported: its eviction policies cannot be extended and get only keys, so reuse classes "
    "cannot be looked up; use MP mode (LMCacheMPConnector), see docs/how-to/install/lmcache.md"
)


def serve(arguments: Sequence[str]) -> None:
    """Serve until a signal arrives. ``arguments``: the options of ``lmcache coordinator``.

    Raises:
        UsageError: the options contradict each other.
        LMCacheUnfit: LMCache is missing, or this release does not load external controllers.
    """
    command = _command()
    parser = argparse.ArgumentParser(prog="lpc lmcache coordinator", description="LMCache's own options:")
    command.add_arguments(parser)
    options = parser.parse_args([*arguments])
    options.extra_config = json.dumps(with_controller(options.extra_config))
    if LMCacheSettings().token() is not None and not is_loopback(options.host or "0.0.0.0"):
        raise UsageError(
            "a token is set, but LMCache's coordinator does not check tokens: give --host 127.0.0.1, "
            "and run `lpc lmcache front --host ADDRESS --port 9300 --upstream 127.0.0.1:9300` in front of it"
        )
    command.execute(options)


def with_controller(raw: str | None) -> dict[str, Any]:
    """Return LMCache's ``--extra-config`` with this controller added. Raises UsageError: the option is not a JSON object."""
    try:
        config = {} if raw is None else json.loads(raw)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get(PACKAGES, []), list):
        raise UsageError(f"--extra-config must be a JSON object, and {PACKAGES} in it a list of names")
    packages = config.get(PACKAGES, [])
    return {**config, PACKAGES: packages if CONTROLLER in packages else [*packages, CONTROLLER]}


def _command() -> Any:
    try:
        from lmcache.cli.commands.coordinator import CoordinatorCommand
        from lmcache.v1.mp_coordinator import controllers
    except ImportError as error:
        raise LMCacheUnfit(MISSING if error.name == "lmcache" else f"LMCache cannot be used: {error}") from None
    if getattr(controllers, "_PACKAGES_KEY", None) != PACKAGES:
        raise LMCacheUnfit(f"this release of LMCache does not load external controllers: install {TESTED[0]}")
    return CoordinatorCommand()


def find_incompatibility(version: str, connector: str = "") -> str | None:
    """Return in one sentence why an LMCache is unsupported or untested; None: it is tested.

    Args:
        version: LMCache's release.
        connector: name of vLLM's connector, if known.
    """
    if connector in IN_PROCESS:
        return REFUSED
    if version not in TESTED:
        return f"LMCache {version} is untested; {' and '.join(TESTED)} are tested: run make test-lmcache with it"
    return None
