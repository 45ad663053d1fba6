"""A sidecar with other constants than in production: in this process, or as `python -m tests.tuned`."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lpc_cli.serve import run
from lpc_cli.settings import service_settings
from predictor_service.constants import Constants
from predictor_service.server import Parts
from predictor_service.settings import ServiceSettings

NAMES = {field.name for field in fields(Constants)}
SHIPPED = Parts()
TINY = {"model": "tiny", "port": 0, "metrics_port": 0, "unix_socket": None, "threads": 1}
"""Settings of a sidecar with the tests' model on free ports."""


def tuned(values: Mapping[str, Any], parts: Parts = SHIPPED) -> tuple[ServiceSettings, Parts]:
    """Return the arguments of `running` for settings and constants by name."""
    constants = replace(parts.constants, **{name: value for name, value in values.items() if name in NAMES})
    settings = ServiceSettings(**{name: value for name, value in values.items() if name not in NAMES})
    return settings, replace(parts, constants=constants)


def command(**constants: Any) -> tuple[str, ...]:
    """Return module and arguments of a sidecar process with these constants."""
    return ("tests.tuned", json.dumps(constants))


if __name__ == "__main__":
    asyncio.run(run(service_settings(None), Parts(constants=Constants(**json.loads(sys.argv[1])))))
