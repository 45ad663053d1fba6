"""The help of every command: usage, defaults and examples that work."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_settings import BaseSettings
from typer.main import get_command

from eviction_client.settings import ClientSettings
from lpc_cli.cli import app
from predictor_service.settings import ServiceSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheServerSettings
from tests.command import lpc


def of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the command of each command that does something."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from of(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


ROOT = get_command(app)
COMMANDS = dict(of(ROOT))


def text(*path: str) -> str:
    done = lpc(*path, "--help", COLUMNS="250", TERM="dumb")
    assert done.returncode == 0, done.err
    return done.out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_ends_with_examples_of_the_command_that_parse(path: tuple[str, ...]) -> None:
    _, found, lines = text(*path).rpartition("Example")
    commands = [line.strip() for line in lines.splitlines()[1:] if line.strip()]
    assert found and commands
    for line in commands:
        words = shlex.split(line.rpartition(" | ")[2])
        words = words[words.index("lpc") + 1 :]
        assert tuple(words[: len(path)]) == path
        with COMMANDS[path].make_context(path[-1], words[len(path) :]) as context:
            assert path == ("lmcache", "coordinator") or not context.args


def test_a_repeated_argument_is_written_once_in_the_usage() -> None:
    for path in COMMANDS:
        assert "..." not in (usage := text(*path).splitlines()[1]) or usage.rstrip().endswith(("[LOG]...", "{LOG}...")), usage


@pytest.mark.parametrize(
    ("path", "settings", "names"),
    [
        ("serve", ServiceSettings, ["host", "port", "metrics_port", "models", "model", "provider"]),
        ("cache serve", CacheServerSettings, ["host", "port", "metrics_port", "models"]),
        ("gateway", GatewaySettings, ["host", "port", "metrics_port"]),
        ("predict", ClientSettings, ["predictor_address"]),
    ],
)
def test_options_that_stand_for_settings_name_the_default(path: str, settings: type[BaseSettings], names: list[str]) -> None:
    options = {name: one for one in COMMANDS[tuple(path.split())].params for name in one.opts}
    for name in names:
        option = options["--" + name.removeprefix("predictor_").replace("_", "-")]
        assert f"default: {settings.model_fields[name].get_default()}" in option.help
    if "unix_socket" in settings.model_fields:
        assert f"default: {settings.model_fields['unix_socket'].get_default().name} in lpc-UID" in options["--unix-socket"].help


def test_the_sizes_that_are_simulated_by_default_are_named() -> None:
    from lpc_cli.simulation import DEFAULT_SHARES, DEFAULT_SIZES

    assert f"default: {DEFAULT_SHARES}, of ShareGPT {DEFAULT_SIZES}." in text("simulate")


def test_the_engines_of_the_gateway_are_named() -> None:
    (engine,) = GatewaySettings.model_fields["gateway_engines"].get_default()
    assert f"default: {engine}" in text("gateway") and "default: yes" in text("gateway")
    assert GatewaySettings.model_fields["gateway_cache"].get_default() is True


def test_the_help_of_the_coordinator_works_without_lmcache() -> None:
    done = lpc("lmcache", "coordinator", "--help")
    assert done.returncode == 0
    assert "Run LMCache's coordinator with this project's controller." in done.out
    assert done.err.startswith("lpc: its options are not listed: LMCache ")
    assert lpc("lmcache", "coordinator").returncode == 1
