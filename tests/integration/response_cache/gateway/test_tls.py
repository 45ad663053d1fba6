"""The gateway's own certificate changes while it runs."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import httpx2
import pytest

from eviction_client.settings import ClientSettings
from lpc.wire.http_server import FEWEST, Patience
from response_cache.gateway.server import running
from response_cache.gateway.settings import Bounds, GatewaySettings
from testing.processes import free_port
from tests.authority import Authority
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently


async def test_a_new_certificate_is_used_and_an_invalid_one_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("response_cache.gateway.server.REFRESH_S", 0.05)
    caplog.set_level("INFO")
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.issue("gateway")
    assert files.certificate is not None and files.key is not None
    settings = {"tls_certificate": files.certificate, "tls_key": files.key}
    async with serve_double(EngineDouble()) as engine:
        made = GatewaySettings(port=0, metrics_port=None, gateway_engines=(engine.url,), **settings)
        sidecar = ClientSettings(predictor_address=f"127.0.0.1:{free_port()}")
        async with running(made, sidecar) as addresses:

            async def trusts(authority: Authority) -> bool:
                context = ssl.create_default_context(cafile=authority.certificate)
                async with httpx2.AsyncClient(verify=context, trust_env=False) as client:
                    try:
                        return (await client.get(f"https://127.0.0.1:{addresses.port}/v1/models")).status_code == 200
                    except httpx2.ConnectError:
                        return False

            assert (await trusts(old), await trusts(new)) == (True, False)
            files.certificate.write_text("nothing")
            await eventually(lambda: "the new certificate is not used" in caplog.text)
            assert await trusts(old)
            issued = new.issue("gateway")
            assert issued.certificate is not None and issued.key is not None
            files.key.write_bytes(issued.key.read_bytes())
            files.certificate.write_bytes(issued.certificate.read_bytes())
            await eventually(lambda: trusts(new))
            assert not await trusts(old)


@pytest.mark.parametrize("begin", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "half"])
async def test_half_handshakes_lock_nobody_out_and_end(tmp_path: Path, begin: bytes) -> None:
    authority = Authority(tmp_path / "authority")
    files = authority.issue("gateway")
    settings = {"tls_certificate": files.certificate, "tls_key": files.key, "gateway_max_connections": FEWEST}
    patience = Patience(head_s=3.0)
    async with serve_double(EngineDouble()) as engine, contextlib.AsyncExitStack() as stack:
        made = GatewaySettings(port=0, metrics_port=None, gateway_engines=(engine.url,), gateway_cache=False, **settings)
        sidecar = ClientSettings(predictor_address=f"127.0.0.1:{free_port()}")
        addresses = await stack.enter_async_context(running(made, sidecar, bounds=Bounds(patience=patience)))
        streams = [await asyncio.open_connection("127.0.0.1", addresses.port) for _ in range(4 * FEWEST)]
        for _, writer in streams:
            writer.write(begin)
        context = ssl.create_default_context(cafile=authority.certificate)
        async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=patiently()) as client:
            assert (await client.get(f"https://127.0.0.1:{addresses.port}/v1/models")).status_code == 200
        for reader, writer in streams:
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), patiently())
            writer.close()
