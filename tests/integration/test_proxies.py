"""Proxies in the environment: never for this machine; elsewhere a failed connection names the variable."""

import asyncio
from pathlib import Path

import pytest

from eviction_client.settings import ClientSettings
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.access import Access, proxy_for
from lpc_cli.checks import examine
from lpc_cli.predict import PredictError, asking
from response_cache.client import ResponseCacheClient
from testing.processes import free_port
from tests.eventually import patiently
from tests.integration.test_server import sidecar

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
ALL = (*VARIABLES, "no_grpc_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)


def dead_proxy() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("address", ["127.0.0.1:{}", "localhost:{}", "dns:///localhost:{}", "ipv4:127.0.0.1:{}"])
async def test_a_sidecar_on_this_machine_is_reached_without_the_proxy(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    async with sidecar(tiny_models) as (_, addresses):
        monkeypatch.setenv(variable, dead_proxy())
        at = address.format(addresses.port)
        with asking(ClientSettings(predictor_address=at), 20) as ask:
            answer = await asyncio.to_thread(ask, pb.Conversation(prompt="hello"))
        assert 0 <= answer.probability <= 1
        async with Access().aio_channel(at) as channel:
            await asyncio.wait_for(channel.channel_ready(), patiently())
        if not address.startswith("ipv4"):
            found = {one.check: one for one in await asyncio.to_thread(examine, ClientSettings(predictor_address=at))}
            assert found["health"].status == "ok"


async def test_the_unix_socket_and_the_gateways_cache_need_no_proxy(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("http_proxy", dead_proxy())
    async with sidecar(tiny_models, unix_socket=tmp_path / "s") as (_, addresses):
        for address in (f"unix://{tmp_path / 's'}", f"127.0.0.1:{addresses.port}"):
            client = ResponseCacheClient(address)
            channel, _ = client.channel()
            await asyncio.wait_for(channel.channel_ready(), patiently())
            await client.close()


@pytest.mark.parametrize("variable", VARIABLES)
async def test_a_failed_connection_names_the_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, dead_proxy())
    with (
        asking(ClientSettings(predictor_address="sidecar.example:50051"), 20) as ask,
        pytest.raises(PredictError, match=f"proxy of {variable}.*no_grpc_proxy"),
    ):
        await asyncio.to_thread(ask, pb.Conversation(prompt="hello"))


@pytest.mark.parametrize(
    ("environment", "used"),
    [
        ({}, ""),
        ({"http_proxy": "http://p:1"}, "http_proxy"),
        ({"HTTP_PROXY": "http://p:1"}, ""),  # gRPC does not read it
        ({"http_proxy": "http://p:1", "https_proxy": "http://p:1"}, "https_proxy"),
        ({"http_proxy": "http://p:1", "grpc_proxy": ""}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "other, example"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "example", "no_grpc_proxy": "other"}, "http_proxy"),
        ({"http_proxy": "http://p:1", "no_proxy": "sidecar"}, "http_proxy"),
    ],
)
def test_the_variable_is_found_as_grpc_finds_it(environment: dict[str, str], used: str) -> None:
    assert proxy_for("sidecar.example:50051", environment) == used
    assert proxy_for("dns:///sidecar.example:50051", environment) == used


def test_networks_in_no_proxy_and_this_machine_are_excluded() -> None:
    proxy = {"http_proxy": "http://p:1"}
    assert proxy_for("10.0.0.7:1", {**proxy, "no_proxy": "10.0.0.0/8"}) == ""
    assert proxy_for("10.0.0.7:1", {**proxy, "no_proxy": "11.0.0.0/8"}) == "http_proxy"
    local = ("[::1]:1", "127.0.0.2:1", "[::ffff:127.0.0.1]:1", "LOCALHOST:1", "localhost.:1", "unix:///a", "ipv6:[::1]:1")
    assert not any(proxy_for(address, proxy) for address in local)
