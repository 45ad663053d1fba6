"""Callers of the response caches and their tenants: real sidecars, certificates, tokens, a Unix socket and Redis."""

import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from predictor_service.process import Addresses
from response_cache.service.running import running
from response_cache.service.settings import CacheSettings
from testing.processes import RedisServer, free_port
from tests.authority import Authority
from tests.eventually import patiently
from tests.integration.response_cache.test_service import caching, request, response

OTHERS_TENANT = "client:victim"


def sidecar(models: Path, folder: Path, url: str, **changes: Any) -> AbstractAsyncContextManager[Addresses]:
    return running(caching(models, folder, url, **changes))


def tokens(folder: Path, *names: str) -> Path:
    """Write a token file in which each token is the client's name."""
    path = folder / "tokens"
    path.write_text("".join(f"{name}: {sha256(name.encode()).hexdigest()}\n" for name in names))
    return path


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def code(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def store(stub: rpc.ResponseCacheStub, message: pb.Request, metadata: Any = None) -> None:
    assert (await stub.Store(pb.StoreRequest(request=message, response=response()), metadata=metadata)).stored


async def finds(stub: rpc.ResponseCacheStub, message: pb.Request, metadata: Any = None) -> bool:
    return (await stub.Lookup(pb.LookupRequest(request=message), metadata=metadata)).HasField("hit")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sidecar.example"])
def test_caches_on_a_public_address_need_tokens_or_client_certificates(host: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    environment |= {"LPC_CACHE_REDIS_URL": f"redis://127.0.0.1:{free_port()}", "LPC_CACHE_KEYS": str(tmp_path / "keys")}
    environment |= {"LPC_HOST": host, "LPC_MODELS": str(tmp_path), "LPC_PORT": "0", "LPC_UNIX_SOCKET": ""}
    done = subprocess.run(
        [sys.executable, "-m", "lpc_cli", "serve"], env=environment, capture_output=True, text=True, timeout=patiently(120)
    )
    assert done.returncode == 2
    assert "set LPC_TOKENS or LPC_TLS_CLIENT_CA (docs/how-to/security.md), or listen on 127.0.0.1" in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "127.0.0.1"},
        {"host": "::1"},
        {"host": "localhost"},
        {"tokens": "t"},
        {"tls_client_ca": "ca", "tls_certificate": "c", "tls_key": "k"},
        {"cache_redis_url": None, "cache_keys": None},
    ],
)
def test_caches_start_if_callers_are_identified_or_local(changes: dict[str, Any]) -> None:
    assert CacheSettings(**{"host": "0.0.0.0", "cache_redis_url": "redis://r", "cache_keys": "k", **changes})


async def test_only_a_gateway_may_name_a_tenant(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    settings = {"tokens": tokens(tmp_path, "gateway", "engine"), "cache_gateways": "gateway, other"}
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, **settings) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        theirs = request(tenant=OTHERS_TENANT)
        await store(stub, theirs, bearer("gateway"))
        assert await finds(stub, theirs, bearer("gateway"))
        for call in (
            stub.Lookup(pb.LookupRequest(request=theirs), metadata=bearer("engine")),
            stub.Store(pb.StoreRequest(request=theirs, response=response("forged")), metadata=bearer("engine")),
            stub.Feedback(pb.FeedbackRequest(tenant=OTHERS_TENANT, wrong=True), metadata=bearer("engine")),
            stub.Frequent(pb.FrequentRequest(scope="faq", tenant=OTHERS_TENANT, most=9), metadata=bearer("engine")),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="client engine may not name a tenant") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await store(stub, request(), bearer("engine"))
        assert await finds(stub, request(), bearer("engine"))


@pytest.mark.parametrize(("listed", "status"), [("", "PERMISSION_DENIED"), ("unix", "OK"), ("anonymous", "PERMISSION_DENIED")])
async def test_the_unix_socket_names_a_tenant_only_if_it_is_listed(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, listed: str, status: str
) -> None:
    socket = tmp_path / "run" / "s.sock"
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, unix_socket=socket, cache_gateways=listed),
        grpc.aio.insecure_channel(f"unix:{socket}") as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        asked = pb.LookupRequest(request=request(tenant=OTHERS_TENANT))
        assert (await code(stub.Lookup(asked))).name == status
        assert await code(stub.Lookup(pb.LookupRequest(request=request()))) is grpc.StatusCode.OK


@pytest.mark.parametrize(("listed", "status"), [("", "PERMISSION_DENIED"), ("anonymous", "OK")])
async def test_anonymous_callers_on_loopback_name_a_tenant_only_if_they_are_listed(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, listed: str, status: str
) -> None:
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, cache_gateways=listed) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        assert (await code(stub.Lookup(pb.LookupRequest(request=request(tenant=OTHERS_TENANT))))).name == status
        await store(stub, request())
        assert await finds(stub, request())


async def test_a_verified_certificate_names_its_caller(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, authority: Authority
) -> None:
    own = authority.issue("sidecar")
    sans = {
        "spiffe": "IP:127.0.0.1,URI:spiffe://lpc/gateway,DNS:engine",
        "dns": "DNS:gateway.lpc.svc,URI:spiffe://lpc/gateway",
        "gateway": "IP:127.0.0.1",  # identified by its common name
        "engine": "DNS:engine",
        "unix": "DNS:unix",
        "anonymous": "DNS:anonymous",
        "long": f"URI:spiffe://{'x' * 300}",
    }
    tls = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_ca": own.ca}
    gateways = "spiffe://lpc/gateway,gateway.lpc.svc,gateway,unix,anonymous"
    found = {}
    async with sidecar(tiny_models, tmp_path, redis_server.url, cache_gateways=gateways, **tls) as addresses:
        for name, san in sans.items():
            files = authority.issue(name, san=san)
            assert files.ca and files.key and files.certificate
            shown = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (files.ca, files.key, files.certificate)))
            async with grpc.aio.secure_channel(f"localhost:{addresses.port}", shown) as channel:
                stub = rpc.ResponseCacheStub(channel)
                found[name] = (await code(stub.Lookup(pb.LookupRequest(request=request(tenant=OTHERS_TENANT))))).name
                if name in ("dns", "engine"):
                    await store(stub, request(name))
                    # Certificates do not share answers.
                    assert [await finds(stub, request(other)) for other in ("dns", "engine")] == [name == "dns", name != "dns"]
    nobody = "UNAUTHENTICATED"  # reserved or too long names
    gateway, engine = "OK", "PERMISSION_DENIED"
    assert found == {
        "spiffe": gateway,
        "dns": gateway,
        "gateway": gateway,
        "engine": engine,
        "unix": nobody,
        "anonymous": nobody,
        "long": nobody,
    }


async def test_with_a_token_file_the_token_names_the_caller_and_the_certificate_does_not(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, authority: Authority
) -> None:
    own, shown = authority.issue("sidecar"), authority.issue("gateway", san="DNS:gateway")
    tls = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_ca": own.ca}
    names = {"tokens": tokens(tmp_path, "engine", "gateway"), "cache_gateways": "gateway"}
    assert shown.ca and shown.key and shown.certificate
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (shown.ca, shown.key, shown.certificate)))
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, **tls, **names) as addresses,
        grpc.aio.secure_channel(f"localhost:{addresses.port}", credentials) as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        asked = pb.LookupRequest(request=request(tenant=OTHERS_TENANT))
        assert await code(stub.Lookup(asked)) is grpc.StatusCode.UNAUTHENTICATED
        assert await code(stub.Lookup(asked, metadata=bearer("engine"))) is grpc.StatusCode.PERMISSION_DENIED
        assert await code(stub.Lookup(asked, metadata=bearer("gateway"))) is grpc.StatusCode.OK


async def test_another_tenant_cannot_use_a_ticket(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous") as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        asked = request(tenant="owner")
        stored = await stub.Store(pb.StoreRequest(request=asked, response=response()))
        hit = (await stub.Lookup(pb.LookupRequest(request=asked))).hit
        for entry in (stored.entry_id, hit.entry_id):
            for tenant in ("thief", ""):
                feedback = await stub.Feedback(pb.FeedbackRequest(entry_id=entry, wrong=True, drop=True, tenant=tenant))
                assert not feedback.counted and not feedback.dropped
        assert await finds(stub, asked)
        assert (await stub.Feedback(pb.FeedbackRequest(entry_id=hit.entry_id, wrong=True, tenant="owner"))).counted
        assert (await stub.Feedback(pb.FeedbackRequest(entry_id=stored.entry_id, drop=True, tenant="owner"))).dropped
        assert not await finds(stub, asked)


async def test_another_tenant_cannot_end_a_flight(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    async with (
        sidecar(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous") as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        stub = rpc.ResponseCacheStub(channel)
        own = (await stub.Lookup(pb.LookupRequest(request=request(tenant="owner")))).miss.flight
        assert own
        await stub.Store(pb.StoreRequest(request=request(tenant="thief"), response=response(), flight=own, aborted=True))
        assert (await stub.Lookup(pb.LookupRequest(request=request(tenant="owner")))).miss.reason == pb.REASON_IN_FLIGHT
