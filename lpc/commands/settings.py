"""Settings objects from flags: what a flag leaves out comes from the environment and the settings file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lpc.commands.outcome import fail

if TYPE_CHECKING:
    from pydantic import ValidationError

    from eviction_client.settings import ClientSettings
    from predictor_service.settings import ServiceSettings


def client_settings(**flags: object) -> "ClientSettings":
    """Return an engine's settings; a flag that is None is not given. Ends the command when one is refused."""
    from pydantic import ValidationError

    from eviction_client.settings import ClientSettings

    try:
        return ClientSettings(**_given(flags))  # type: ignore[arg-type]
    except ValidationError as error:
        fail(f"settings: {_problems(error)}")


def service_settings(config: Path | None, **flags: object) -> "ServiceSettings":
    """Return the sidecar's settings and set up its log; as :func:`client_settings`, and from a TOML file."""
    from pydantic import ValidationError

    from predictor_service import logs
    from predictor_service.settings import ServiceSettings

    if config is not None:
        if not config.is_file():
            fail(f"there is no settings file {config}")
        os.environ["LPC_CONFIG"] = str(config)
    try:
        settings = ServiceSettings(**_given(flags))  # type: ignore[arg-type]
    except ValidationError as error:
        fail(f"settings: {_problems(error)}")
    except ValueError as error:  # a TOML file or JSON in the environment that cannot be parsed
        fail(f"settings: {error}")
    logs.configure(settings.log_level, settings.log_format)
    return settings


def _given(flags: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None}


def _problems(error: "ValidationError") -> str:
    """Return what pydantic refuses, without the input, which may be a secret."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
