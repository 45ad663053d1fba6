"""What the command line advises where a package is missing, and where LMCache's settings are wrong."""

import socket
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lpc.distribution import install
from lpc_cli.cli import EXTRAS, NEEDS, advice_for, app
from tests.command import lpc
from tests.only import ROOT


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("onnxruntime", "server"),
        ("grpc_health.v1", "server"),
        ("starlette.routing", "cache"),
        ("blake3", "lmcache"),
        ("sklearn.metrics", "train"),
        ("torch", "train"),
    ],
)
def test_a_missing_package_is_advised_by_the_extra_that_has_it(package: str, extra: str) -> None:
    assert advice_for(package) == install(extra) and extra in EXTRAS
    assert (advice_for("elsewhere.part"), advice_for("grpc.aio")) == ("pip install elsewhere", install())


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("gateway", "h11", "cache"),  # of uvicorn
        ("gateway", "numpy", "cache"),
        ("cache", "onnxruntime", "server"),
        ("demo", "numpy", "demo"),
        ("demo", "matplotlib.figure", "demo"),
        ("serve", "numpy", "server"),
        ("serve", "safetensors", "server"),
        ("simulate", "numpy", "sim"),
        ("simulate", "matplotlib", "picture"),
        ("why", "pytz", "sim"),
        ("train", "numpy", "train"),
        ("secrets", "cryptography", "tls"),
        ("lmcache", "starlette", "lmcache"),
        ("predict", "google.protobuf", ""),
    ],
)
def test_a_command_advises_its_own_extra_also_for_what_its_packages_need(command: str, package: str, extra: str) -> None:
    assert advice_for(package, command) == install(extra)


def test_every_command_that_needs_an_extra_exists() -> None:
    assert set(NEEDS) <= set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(NEEDS.values()) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_a_package_that_is_missing_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'h11'", name="h11")

    monkeypatch.setattr("lpc_cli.caches.gateway.server_settings", missing)
    done = lpc("gateway")
    assert (done.returncode, done.err) == (1, f"lpc: this command needs the package h11: {install('cache')}\n")


def front(*words: str, **environment: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lmcache", "front", *words], env=environment)
    return done.exit_code, done.output


def test_a_front_that_cannot_work_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("LPC_LMCACHE_TOKEN_FILE", str(tmp_path / "token"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, environment, says, ends in (
            (("--host", "127.0.0.1", "--port", port), {}, f"cannot listen on 127.0.0.1:{port} (Address already in use)", 1),
            (("--host", "127.0.0.1", "--upstream", "node"), {}, "--upstream node is not host:port", 2),
            (("--host", "127.0.0.1"), {"LPC_LMCACHE_TOKEN_FILE": ""}, "a token is required", 2),
            (
                ("--host", "127.0.0.1"),
                {"LPC_LMCACHE_WATERMARK": "7"},
                "settings: LPC_LMCACHE_WATERMARK: Input should be less",
                2,
            ),
        ):
            code, said = front(*words, **environment)
            assert code == ends and says in said and len(said.splitlines()) == 1, said
    assert front()[0] == 2  # no default: on all addresses LMCache's own port would be taken
