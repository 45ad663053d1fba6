"""Settings objects from flags, environment and settings file."""

import contextlib
import logging
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from lpc.errors import UsageError
from lpc.wire.variables import CACHE, SERVER, SIDECAR, nearest, unknown_variables

if TYPE_CHECKING:
    from pydantic import ValidationError

    from eviction_client.settings import ClientSettings
    from lpc.wire.server_settings import ServerSettings
    from lpc_apps.lmcache.settings import LMCacheSettings
    from predictor_service.settings import ServiceSettings


log = logging.getLogger(__name__)
Settings = TypeVar("Settings")
Server = TypeVar("Server", bound="ServerSettings")

SERVED_MODELS: Final = (
    """LPC_SERVED_MODELS='{"qwen3": "/models/qwen3"}', a JSON object of served model names and their tokenizers"""
)
CACHE_SCOPES: Final = (
    """LPC_CACHE_SCOPES='{"faq": {"kind": "faq"}}', a JSON object of scopes and their rules (docs/how-to/response-caches.md)"""
)
GATEWAY_SCOPES: Final = """LPC_GATEWAY_SCOPES='{"client": ["faq"]}', a JSON object of clients and their scopes"""
OBJECTS: Final = {"served_models": SERVED_MODELS, "cache_scopes": CACHE_SCOPES, "gateway_scopes": GATEWAY_SCOPES}
"""Settings in JSON, with an example."""


def client_settings(**flags: object) -> "ClientSettings":
    """Return an engine's settings. Flags that are None are not given. Raises UsageError if one is invalid."""
    from eviction_client.settings import ClientSettings

    return _read(ClientSettings, flags)


def use_file(config: Path | None) -> None:
    """Read further settings from a TOML file, by LPC_CONFIG."""
    if config is not None:
        os.environ["LPC_CONFIG"] = str(config)


def service_settings(config: Path | None, **flags: object) -> "ServiceSettings":
    """Return the sidecar's settings and set up its log, as :func:`server_settings`; with response caches if they are set."""
    use_file(config)
    return server_settings(_kind_of_sidecar(), **flags)


def server_settings(kind: type[Server], **flags: object) -> Server:
    """Return the settings of a process that serves, and set up its log; as :func:`client_settings`."""
    from lpc.wire import log_lines

    settings = _read(kind, flags)
    log_lines.configure(settings.log_level, settings.log_format)
    for unknown in unknown_variables(os.environ):
        log.warning("%s", unknown)
    return settings


def _kind_of_sidecar() -> "type[ServiceSettings]":
    """Return the settings class of a sidecar: with response caches only if one of their settings is given."""
    from predictor_service.settings import ServiceSettings

    given = [name.lower() for name, value in os.environ.items() if value]
    if path := os.environ.get("LPC_CONFIG"):
        # A file that cannot be read is refused later.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            given += [f"lpc_{name}".lower() for name in tomllib.loads(Path(path).read_text("utf-8"))]
    if not any(name.startswith("lpc_cache_") for name in given):
        return ServiceSettings
    from response_cache.service.settings import CacheSettings

    return CacheSettings


def lmcache_settings() -> "LMCacheSettings":
    """Return the settings for LMCache, from the environment; as :func:`client_settings`."""
    from lpc_apps.lmcache.settings import LMCacheSettings

    return _read(LMCacheSettings, {}, "LPC_LMCACHE_")


def _read(kind: type[Settings], flags: dict[str, object], prefix: str = "") -> Settings:
    from pydantic import ValidationError

    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise UsageError(f"settings: {_problems(error, prefix)}") from None
    except ValueError as error:  # a settings file or JSON in the environment that cannot be read
        wanted = next((form for name, form in OBJECTS.items() if name in str(error)), None)
        raise UsageError(f"settings: {error if wanted is None else f'give {wanted}'}") from None


def _problems(error: "ValidationError", prefix: str = "") -> str:
    """Return pydantic's errors as text, without the input, which may be a secret. ``prefix``: of the variables' names."""
    return "; ".join(
        _problem(str(e["type"]), [str(part) for part in e["loc"]], e["msg"], prefix) for e in error.errors(include_input=False)
    )


def _problem(kind: str, place: list[str], message: str, prefix: str) -> str:
    message = message.removeprefix("Value error, ")
    if not place:  # about several settings, which the message names
        return message
    name = f"{prefix}{place[0].upper()}" if prefix else ".".join(place)
    if kind == "extra_forbidden":  # in the settings file or a scope; unknown flags and variables are found earlier
        if place[0] == "cache_scopes":
            from response_cache.store.scopes import ScopeSettings

            return (
                f"cache_scopes.{place[1]}: {place[-1]} is not a setting of a scope"
                f"{nearest(place[-1], ScopeSettings.model_fields)}"
            )
        known = re.findall(r"\w+", SERVER + SIDECAR + CACHE)
        return f"{os.environ.get('LPC_CONFIG')}: {name} is not a setting{nearest(name, known)}"
    if (len(place) == 1 or place[0] == "served_models") and (form := OBJECTS.get(place[0])) is not None:
        return f"{name}: {message}; give {form}"
    return f"{name}: {message}"
