"""`lpc predict`, `lpc doctor` and `lpc demo` reach a sidecar that wants TLS, a certificate and a token."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from rich.console import Console

from eviction_client.settings import ClientSettings
from lpc_cli import demo
from predictor_service.process import Addresses
from tests import command
from tests.authority import Authority
from tests.command import Done
from tests.integration.test_tls import tls_sidecar

TOKEN = "correct-horse"


async def lpc(*words: str, **env: str) -> Done:
    clean = dict.fromkeys(name for name in os.environ if name.startswith("LPC_"))
    return await asyncio.to_thread(command.lpc, *words, stdin=b"hello", **{**clean, **env})


def holding(folder: Path, token: str = TOKEN) -> str:
    """Return a file with a token."""
    (folder / "token").write_text(token)
    return str(folder / "token")


@contextlib.asynccontextmanager
async def guarded(models: Path, authority: Authority, folder: Path, **changes: object) -> AsyncIterator[Addresses]:
    (folder / "tokens").write_text(f"me: {sha256(TOKEN.encode()).hexdigest()}\n")
    files = authority.issue("sidecar")
    async with tls_sidecar(models, files, mutual=True, tokens=folder / "tokens", **changes) as addresses:
        yield addresses


def variables(ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> dict[str, str]:
    """Return an engine's variables for TLS."""
    files = {"LPC_PREDICTOR_CA": ca, "LPC_CLIENT_CERTIFICATE": certificate, "LPC_CLIENT_KEY": key}
    return {name: str(file) for name, file in files.items() if file is not None}


async def test_an_engines_settings_open_a_guarded_sidecar(tiny_models: Path, authority: Authority, tmp_path: Path) -> None:
    engine = authority.issue("engine")
    access = variables(engine.ca, engine.certificate, engine.key) | {"LPC_PREDICTOR_TOKEN_FILE": holding(tmp_path)}
    async with guarded(tiny_models, authority, tmp_path) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        by_flag = await lpc("predict", "--address", address, **access)
        by_variable = await lpc("predict", LPC_PREDICTOR_ADDRESS=address, **access)
        doctor = await lpc("doctor", "--address", address, **access)
    assert by_flag.returncode == by_variable.returncode == 0, by_flag.stderr + by_variable.stderr
    assert b"v1" in by_flag.stdout and by_flag.stdout == by_variable.stdout
    assert b"tiny v1" in doctor.stdout and b"fail" not in doctor.stdout
    assert TOKEN.encode() not in by_flag.stdout + by_flag.stderr + doctor.stdout + doctor.stderr


async def test_a_missing_or_wrong_credential_is_one_clear_error(
    tiny_models: Path, authority: Authority, tmp_path: Path
) -> None:
    engine = authority.issue("engine")
    ca, mutual = variables(engine.ca), variables(engine.ca, engine.certificate, engine.key)
    strangers = variables(Authority(tmp_path / "stranger").certificate, engine.certificate, engine.key)
    async with guarded(tiny_models, authority, tmp_path) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        cases: list[tuple[dict[str, str], str, str]] = [
            ({}, "", f"no sidecar answers in clear at {address}"),
            (ca, TOKEN, f"no sidecar answers over TLS at {address}"),
            (strangers, TOKEN, f"no sidecar answers over TLS at {address}"),
            (mutual, "", "name a file with one of its tokens in LPC_PREDICTOR_TOKEN_FILE"),
            (mutual, "wrong-horse", "the sidecar refuses this token"),
            (variables(Path("/nowhere/ca.crt")), TOKEN, "cannot read /nowhere/ca.crt"),
            (variables(engine.ca, engine.certificate), TOKEN, "client_certificate and client_key go together"),
        ]
        for files, token, why in cases:
            token_file = holding(tmp_path, token) if token else ""
            result = await lpc("predict", "--address", address, **files, LPC_PREDICTOR_TOKEN_FILE=token_file)
            message = result.stderr.decode()
            assert result.returncode == (2 if "go together" in why else 1)
            assert why in message and "Traceback" not in message and "horse" not in message
            assert len(message.splitlines()) == 1, message


@pytest.mark.parametrize("with_socket", [True, False])
async def test_the_demo_scores_on_a_guarded_sidecar(
    tiny_models: Path, authority: Authority, tmp_path: Path, with_socket: bool
) -> None:
    engine = authority.issue("engine")
    socket = tmp_path / "lpc.sock" if with_socket else None
    shown = io.StringIO()
    async with guarded(tiny_models, authority, tmp_path, unix_socket=socket) as addresses:
        settings = ClientSettings(
            predictor_address=demo.address_of(addresses),
            predictor_ca=engine.ca,
            client_certificate=engine.certificate,
            client_key=engine.key,
            predictor_token_file=Path(holding(tmp_path)),
        )
        await asyncio.to_thread(demo.score, settings, {}, Console(file=shown, width=160))
    assert shown.getvalue().count(" ms") == 3
