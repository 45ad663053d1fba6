"""No command repeats a password that somebody writes into an address, in errors, results or tracebacks."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc_cli.cli import app

PASSWORD = "s3cret-zebra"

REDIS = [
    f"redis://:{PASSWORD}@127.0.0.1:1/0",
    f"rediss://me:{PASSWORD}@127.0.0.1:1/0",
    f"redis://me:{PASSWORD}@nowhere.invalid:6379",
    f"redis://me:{PASSWORD}@127.0.0.1:port",
    f"redis://me:{PASSWORD}@127.0.0.1:1/zero",
    f"redis://me:{PASSWORD}/x@127.0.0.1:1",
    f"redis://me:{PASSWORD}#x@127.0.0.1:1",
    f"redis://me:{PASSWORD}@[::1",
    f"redis://127.0.0.1:1?password={PASSWORD}",
    f"redis://127.0.0.1:1?db={PASSWORD}",
    f"http://me:{PASSWORD}@127.0.0.1:1",
    f"me:{PASSWORD}@127.0.0.1:1",
]
PLACES = [f"me:{PASSWORD}@127.0.0.1:1", f"http://me:{PASSWORD}@127.0.0.1:1", f"dns:///{PASSWORD}@nowhere.invalid:1"]
ENGINES = [
    *(f"http://me:{PASSWORD}@127.0.0.1:1", f"http://:{PASSWORD}@127.0.0.1:1", f"http://me:{PASSWORD}/x@127.0.0.1:1"),
    *(f"http://me:{PASSWORD}@[::1", f"http://127.0.0.1:{PASSWORD}", f"http://127.0.0.1:1?key={PASSWORD}"),
]


def said(arguments: list[str], environment: Mapping[str, str] = {}) -> str:
    found = CliRunner().invoke(app, ["--debug", *arguments], input="hello\n", env=dict(environment))
    assert found.exit_code in (1, 2), found.output
    assert "internal error" not in found.output and "the check itself failed" not in found.output
    return found.output


@pytest.mark.parametrize("url", REDIS)
@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["table", "json"])
def test_the_doctor_does_not_repeat_redis_passwords(url: str, as_json: list[str]) -> None:
    assert PASSWORD not in said(["doctor", "--address", "127.0.0.1:1", "--redis-url", url, *as_json])
    assert PASSWORD not in said(["doctor", "--address", "127.0.0.1:1", *as_json], {"LPC_REDIS_URL": url})


@pytest.mark.parametrize("address", PLACES)
@pytest.mark.parametrize("command", ["doctor", "predict", "cache stats"])
def test_no_command_repeats_a_password_in_the_sidecars_address(command: str, address: str) -> None:
    assert PASSWORD not in said([*command.split(), "--address", address])
    assert PASSWORD not in said(command.split(), {"LPC_PREDICTOR_ADDRESS": address})


@pytest.mark.parametrize("url", ENGINES)
def test_the_gateway_refuses_passwords_in_engines_addresses(url: str) -> None:
    found = said(["gateway"], {"LPC_GATEWAY_ENGINES": url})
    assert PASSWORD not in found and "each engine must be http://host:port" in found


@pytest.mark.parametrize("url", REDIS)
def test_the_sidecar_does_not_repeat_redis_passwords(url: str, tmp_path: Path) -> None:
    environment = {"LPC_REDIS_URL": url, "LPC_CACHE_REDIS_URL": url, "LPC_MODELS": str(tmp_path), "LPC_MODEL": "none"}
    assert PASSWORD not in said(["serve"], environment)


def test_the_front_of_lmcache_does_not_repeat_a_password(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    for upstream in (f"http://me:{PASSWORD}@h", f"me:{PASSWORD}@h"):
        arguments = ["lmcache", "front", "--host", "127.0.0.1", "--upstream", upstream]
        assert PASSWORD not in said(arguments, {"LPC_LMCACHE_TOKEN_FILE": str(token)})
