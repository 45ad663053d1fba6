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
from lpc.commands import demo
from predictor_service.server import Addresses
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


async def test_flags_or_an_engines_settings_open_it(tiny_models: Path, authority: Authority, tmp_path: Path) -> None:
    engine = authority.issue("engine")
    flags = ["--ca", str(engine.ca), "--certificate", str(engine.certificate), "--key", str(engine.key)]
    async with guarded(tiny_models, authority, tmp_path) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        by_flags = await lpc("predict", "--address", address, *flags, LPC_PREDICTOR_TOKEN_FILE=holding(tmp_path))
        by_environment = await lpc(
            "predict",
            LPC_PREDICTOR_ADDRESS=address,
            LPC_PREDICTOR_CA=str(engine.ca),
            LPC_CLIENT_CERTIFICATE=str(engine.certificate),
            LPC_CLIENT_KEY=str(engine.key),
            LPC_PREDICTOR_TOKEN_FILE=holding(tmp_path),
        )
        looked = await lpc("doctor", "--address", address, *flags, LPC_PREDICTOR_TOKEN_FILE=holding(tmp_path))
    assert by_flags.returncode == by_environment.returncode == 0, by_flags.stderr + by_environment.stderr
    assert b"v1" in by_flags.stdout and by_flags.stdout == by_environment.stdout
    assert b"tiny v1" in looked.stdout and b"fail" not in looked.stdout
    assert TOKEN.encode() not in by_flags.stdout + by_flags.stderr + looked.stdout + looked.stderr


async def test_what_is_missing_or_wrong_is_one_clear_error(tiny_models: Path, authority: Authority, tmp_path: Path) -> None:
    engine = authority.issue("engine")
    stranger = Authority(tmp_path / "stranger").certificate
    ca = ["--ca", str(engine.ca)]
    mutual = [*ca, "--certificate", str(engine.certificate), "--key", str(engine.key)]
    async with guarded(tiny_models, authority, tmp_path) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        cases = [
            ([], "", f"no sidecar answers in clear at {address}"),
            (ca, TOKEN, f"no sidecar answers over TLS at {address}"),
            ([*mutual, "--ca", str(stranger)], TOKEN, f"no sidecar answers over TLS at {address}"),
            (mutual, "", "name a file with one of its tokens in LPC_PREDICTOR_TOKEN_FILE"),
            (mutual, "wrong-horse", "the sidecar refuses this token"),
            (["--ca", "/nowhere/ca.crt"], TOKEN, "cannot read /nowhere/ca.crt"),
            (mutual[:4], TOKEN, "client_certificate and client_key go together"),
        ]
        for flags, token, why in cases:
            result = await lpc(
                "predict", "--address", address, *flags, LPC_PREDICTOR_TOKEN_FILE=holding(tmp_path, token) if token else ""
            )
            said = result.stderr.decode()
            assert result.returncode == (2 if "go together" in why else 1)
            assert why in said and "Traceback" not in said and "horse" not in said
            assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize("with_socket", [True, False])
async def test_the_demo_scores_on_a_guarded_sidecar(
    tiny_models: Path, authority: Authority, tmp_path: Path, with_socket: bool
) -> None:
    engine = authority.issue("engine")
    socket = tmp_path / "lpc.sock" if with_socket else None
    shown = io.StringIO()
    async with guarded(tiny_models, authority, tmp_path, unix_socket=socket) as addresses:
        settings = ClientSettings(
            predictor_address=demo._address(addresses),
            predictor_ca=engine.ca,
            client_certificate=engine.certificate,
            client_key=engine.key,
            predictor_token_file=Path(holding(tmp_path)),
        )
        await asyncio.to_thread(demo._score, settings, Console(file=shown, width=160))
    assert shown.getvalue().count(" ms") == 3
