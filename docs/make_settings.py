"""Write docs/reference/settings.md from the settings objects (`make settings`); --check only compares."""

import os
import sys
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings

from eviction_client.settings import ClientSettings
from lpc.wire.redis_settings import RedisSettings
from lpc.wire.server_settings import ServerSettings
from lpc_apps.gateway.settings import GatewaySettings
from lpc_apps.lmcache.settings import LMCacheSettings
from predictor_service.settings import ServiceSettings

TARGET = Path(__file__).parent / "reference/settings.md"
HEAD = """# Settings

`make settings` writes this page from the settings objects. A test fails if it is stale. Settings are environment variables; the
most common are also flags (`lpc serve --help`). Flags override the environment. `lpc serve` and `lpc gateway` warn about an
unknown name that begins with `LPC_`, and so does the plug-in.

The sidecar also reads a TOML file (`LPC_CONFIG` or `lpc serve --config`), in which names are in lower case without `LPC_`. The
environment overrides it. An unknown name in it is refused.
"""
SHARED = (ServerSettings, RedisSettings)
PARTS: tuple[tuple[str, type[BaseSettings], str], ...] = (
    (
        "Sidecar and gateway",
        ServerSettings,
        "What both processes read. Defaults: of the sidecar, then of the gateway if it has another.",
    ),
    (
        "The sidecar",
        ServiceSettings,
        "What only `lpc serve` reads.",
    ),
    (
        "Redis and the client certificate",
        RedisSettings,
        "What engines and sidecars read (the gateway: the certificate). Without `LPC_REDIS_URL` they share nothing.",
    ),
    ("The client in the engine", ClientSettings, "Environment variables of the engine's process."),
    (
        "The gateway",
        GatewaySettings,
        "Environment variables of `lpc gateway`. It reaches the sidecar as engines do.",
    ),
    (
        "LMCache",
        LMCacheSettings,
        "Environment variables of LMCache's coordinator with the controller, and of `lpc lmcache front`. It reaches\n"
        "the sidecar as engines do.",
    ),
)


def kind(annotation: Any) -> str:
    """Return a type as a reader writes it."""
    text = annotation.__name__ if isinstance(annotation, type) and "[" not in str(annotation) else str(annotation)
    for long in ("pathlib.", "typing.", "pydantic.types."):
        text = text.replace(long, "")
    text = text.replace("SecretStr", "str (secret)").replace("tuple[str, ...]", "list")
    return text.replace("'", "").replace("|", "or")


def default(settings: type[BaseSettings], name: str) -> str:
    """Return a field's default, without what only holds for this machine's user."""
    if settings is ServerSettings:
        values = dict.fromkeys(default(process, name) for process in (ServiceSettings, GatewaySettings))
        return ", ".join(values)
    value = settings.model_fields[name].get_default(call_default_factory=True)
    if value is None or value == "":
        return "none"
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{value}`".replace(f"lpc-{os.getuid()}", "lpc-<uid>").replace(f"`{os.environ.get('TMPDIR', '/tmp')}/", "`<tmp>/")


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, settings, text in PARTS:
        prefix = settings.model_config["env_prefix"]
        rows = [
            f"| `{prefix}{name.upper()}` | {kind(field.annotation)} | {default(settings, name)} | "
            f"{sentence(field.description)} |"
            for name, field in settings.model_fields.items()
            if settings in SHARED or not any(name in shared.model_fields for shared in SHARED)
        ]
        parts.append(
            "\n".join([f"\n## {title}\n", f"{text}\n", "| Variable | Type | Default | |", "|---|---|---|---|", *rows, ""])
        )
    return "".join(parts)


def sentence(text: str | None) -> str:
    """Return a description with a capital and a stop; every setting has one."""
    assert text
    text = text.replace("|", "\\|")
    first = text.partition(" ")[0]
    start = text[0].upper() if first.isalpha() and first.islower() else text[0]
    return start + text[1:] + ("" if text.endswith(".") else ".")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == page() else "docs/reference/settings.md is not current: make settings")
    TARGET.write_text(page())
