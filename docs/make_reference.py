"""Writes the pages of docs/reference that the code knows best (`make reference`): settings, commands, metrics with alerts.
Of the pages of log formats and of rules it writes the table.

Commands of all pages that install this package get the source of `lpc.distribution`. --check compares only.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import typer
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic_settings import BaseSettings
from typer.cli import get_docs_for_click
from typer.main import get_command

from eviction_client.observability.metrics import METRICS
from eviction_client.policy.rules import RULES
from eviction_client.settings import ClientSettings
from lpc.distribution import from_source
from lpc.wire.redis_settings import RedisSettings
from lpc.wire.server_settings import ServerSettings
from lpc_apps.lmcache.settings import LMCacheSettings
from lpc_apps.logs.formats import FORMATS
from lpc_cli.cli import app
from predictor_service import metrics as sidecar
from predictor_service.settings import ServiceSettings
from response_cache.gateway import metrics as gateway
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.metrics import CacheMetrics
from response_cache.service.settings import CacheServerSettings, CacheSettings

DOCS = Path(__file__).parent
SETTINGS = """# Settings

`make reference` writes this page from the settings objects. A test fails if it is stale.

Settings are environment variables; the most common are also flags (`lpc serve --help`). Flags override the environment.
`lpc serve`, `lpc cache serve` and `lpc gateway` warn about an unknown name that begins with `LPC_`, and so does the plug-in.

The sidecar also reads a TOML file (`LPC_CONFIG` or `lpc serve --config`), in which names are in lower case without `LPC_`. The
environment overrides it. An unknown name in it is refused.
"""
COMMANDS = """# Commands

`make reference` writes this page from the command line's own help. A test fails if it is stale. Every command also has
`--help`, which lists the formats and policies of today.

| Exit code | |
|---|---|
| 0 | Done. A server that Ctrl-C or SIGTERM ended has drained. |
| 1 | It could not be done. An input is missing, empty or unreadable, a service does not answer, or a check failed. |
| 2 | An option, an argument or a setting is invalid, alone or for this input. |
| 3 | `lpc why --fail-on` found causes, or with `--repair` rules that win as much. |
| 130, 143 | Ctrl-C or SIGTERM ended the command. |

`--json` prints the result as JSON on standard output. A file is written only into a folder that exists.
Long work shows a bar on a terminal. Elsewhere it writes a line to standard error every eight seconds: what is done, of how
much, and about how long the rest takes.

"""
METRICS_HEAD = """# Metrics and alerts

`make reference` writes this page from the code and from `deploy/prometheus/rules.yml`. A test fails if it is stale. Prometheus
adds `_total` to counters, and `_bucket`, `_sum` and `_count` to histograms. No label holds text of a conversation.
The plug-in's metrics are in the engine's own `/metrics`, each with the label `engine`.
"""
SHARED = (ServerSettings, RedisSettings)
BASES = {CacheSettings: ServiceSettings}
"""Objects that list only what they add to another one."""
PARTS: tuple[tuple[str, type[BaseSettings], str], ...] = (
    (
        "Sidecar, response caches and gateway",
        ServerSettings,
        "What all three processes read. Defaults: of the sidecar, then of the other two where they differ.",
    ),
    (
        "The sidecar",
        ServiceSettings,
        "What `lpc serve` reads, and `lpc cache serve`, whose socket is `caches.sock`.",
    ),
    (
        "Response caches",
        CacheSettings,
        "What `lpc cache serve`, and a sidecar with response caches, also read.",
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
        "the sidecar as engines do, and orders memory by `LPC_RULE`.",
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
        values = dict.fromkeys(default(process, name) for process in (ServiceSettings, CacheServerSettings, GatewaySettings))
        return ", ".join(values)
    value = settings.model_fields[name].get_default(call_default_factory=True)
    if value is None or value == "":
        return "none"
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{value}`".replace(f"lpc-{os.getuid()}", "lpc-<uid>").replace(f"`{os.environ.get('TMPDIR', '/tmp')}/", "`<tmp>/")


def settings_page() -> str:
    """Return the page of the settings."""
    parts = [SETTINGS]
    for title, settings, text in PARTS:
        prefix = settings.model_config["env_prefix"]
        rows = [
            f"| `{prefix}{name.upper()}` | {kind(field.annotation)} | {default(settings, name)} | "
            f"{sentence(field.description)} |"
            for name, field in settings.model_fields.items()
            if settings in SHARED or not any(name in other.model_fields for other in (*SHARED, BASES.get(settings)) if other)
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


def commands_page() -> str:
    """Return the page of the commands, as Typer documents them."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="lpc"), name="lpc")
    return COMMANDS + text.partition("\n")[2].strip() + "\n"


def metrics_page() -> str:
    """Return the page of the metrics and alerts."""
    served = sidecar.Metrics()
    without_caches = set(_metrics(served.registry))
    CacheMetrics(served, [])
    parts = {
        "The plug-in": [(name, kind._type, own, text) for name, (kind, text, own) in METRICS.items()],
        "The sidecar": sorted(without_caches),
        "Response caches in the sidecar": sorted(set(_metrics(served.registry)) - without_caches),
        "The gateway": sorted(_metrics(gateway.Metrics().registry)),
    }
    lines = [METRICS_HEAD]
    for title, rows in parts.items():
        lines += [f"## {title}\n", "| Metric | Type | Labels | |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in own.split(',') if label)} | {sentence(text)} |"
            for name, kind, own, text in rows
        ]
        lines.append("")
    lines += [
        "LMCache's controller has its metrics at `/lpc/metrics` ([LMCache](../how-to/install/lmcache.md)).\n",
        "## Alerts\n",
        "What to do: the [runbook](../how-to/runbook.md) has a section for each.\n",
        "| Alert | Severity | After | |",
        "|---|---|---|---|",
    ]
    groups = yaml.safe_load((DOCS.parent / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        link = f"[{rule['alert']}](../how-to/runbook.md#{rule['alert'].lower()})"
        text = re.sub(r"{{ \$(?:labels\.)?(\w+)[^}]*}}", r"*\1*", rule["annotations"]["summary"])
        lines.append(f"| {link} | {rule['labels']['severity']} | {rule.get('for', '0m')} | {text} |")
    return "\n".join(lines) + "\n"


def _metrics(registry: CollectorRegistry) -> list[tuple[str, str, str, str]]:
    """Return name, type, labels with commas between and help of each metric."""
    found = [one for one in registry._collector_to_names if isinstance(one, MetricWrapperBase)]
    return [(one._name, str(one._type), ",".join(one._labelnames), one._documentation) for one in found]


def with_formats(page: str) -> str:
    """Return the page of the formats of logs with a table of them."""
    rows = [f"| `{name}` | {known.file} | {known.record} | {known.known_by} |" for name, known in FORMATS.items()]
    head, titles, rest = page.partition("| `--format` | File | One record | Recognised by |\n|---|---|---|---|\n")
    return head + titles + "\n".join(rows) + "\n\n" + rest.partition("\n\n")[2]


def with_rules(page: str) -> str:
    """Return the page of the rules with a table of them."""
    rows = [f"| `{name}` | {rule.formula} | {rule.divided} | {rule.source} |" for name, rule in RULES.items()]
    head, titles, rest = page.partition("| Rule | Value at age `a` seconds | Classes | Source |\n|---|---|---|---|\n")
    return head + titles + "\n".join(rows) + "\n\n" + rest.partition("\n\n")[2]


INSTALLING = (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((DOCS.parent / "deploy/examples").glob("*.yaml")))
"""Pages with commands that install this package."""
PAGES = {
    "settings": settings_page,
    "commands": commands_page,
    "metrics": metrics_page,
    "log-formats": lambda: with_formats((DOCS / "reference/log-formats.md").read_text()),
    "rules": lambda: with_rules((DOCS / "reference/rules.md").read_text()),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        target = DOCS / f"reference/{name}.md"
        if "--check" not in sys.argv:
            target.write_text(page())
        elif target.read_text() != page():
            sys.exit(f"docs/reference/{name}.md is not current: make reference")
    for target in INSTALLING:
        text = target.read_text()
        if "--check" not in sys.argv:
            target.write_text(from_source(text))
        elif from_source(text) != text:
            sys.exit(f"{target.relative_to(DOCS.parent)} installs from another source than lpc/distribution.py: make reference")
