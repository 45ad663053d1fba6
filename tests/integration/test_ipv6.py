"""IPv6: the images listen on both families, so that a cluster with IPv6 alone, with IPv4 alone or with both reaches them."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from eviction_client.settings import ClientSettings
from lpc.wire.listening import listen, serve_metrics
from lpc.wire.redis_connection import Connection, RedisUrl
from lpc.wire.redis_reach import RedisReach
from lpc.wire.server_settings import ServerSettings
from testing.processes import RedisServer, free_port
from tests.dockerfile import stages
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import patiently, until
from tests.integration.response_cache.gateway.conftest import CHAT, a_gateway, chat
from tests.integration.test_server import sidecar
from tests.only import ROOT
from tests.redis_stores import BLOCKS, A, ends, record, storing

HEALTHCHECK = ROOT / "deploy/image/healthcheck.py"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("url", ["redis://[::1]:7000/0", "rediss://u:p@[2001:db8::1]:7000/0", "redis://u@[::1]:7000"])
def test_a_redis_url_with_an_ipv6_address_is_shown_with_brackets(url: str) -> None:
    parsed = RedisUrl.parse(url)
    assert parsed.where == url.rpartition("//")[2].rpartition("@")[2].removesuffix("/0")
    assert ClientSettings(redis_url=url).redis_url is not None


PLACES = ("[::1]", "127.0.0.1")


@pytest.mark.parametrize("image", ["cpu", "gpu", "caches"])
def test_the_images_listen_on_all_addresses_of_both_families(image: str) -> None:
    environment = stages()[1][image].env()
    assert (environment["LPC_HOST"], environment["LPC_METRICS_HOST"]) == ("::", "::")
    assert ServerSettings(host=environment["LPC_HOST"], port=0, metrics_port=None, drain_timeout_s=1).host == "::"


@needs_ipv6
async def test_a_gateway_on_all_addresses_is_healthy_on_both_families_and_names_clients_as_before() -> None:
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, host="::", metrics_host="::", gateway_cache=False) as gateway,
    ):
        for place, client in zip(PLACES, ("::1", "127.0.0.1"), strict=True):
            url, metrics = (each.replace("127.0.0.1", place) for each in (gateway.url, gateway.metrics_url))
            assert (await gateway.client.get(f"{url}/lpc/health")).status_code == 200
            assert (await gateway.client.get(metrics)).status_code == 200
            assert (await gateway.client.post(f"{url}{CHAT}", json=chat("six"))).status_code == 200
            assert engine.completions[-1].header("x-forwarded-for") == client


@needs_ipv6
def test_the_gate_of_lmcache_answers_on_both_families(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    port, env = free_port(), {**os.environ, "LPC_LMCACHE_TOKEN_FILE": str(tmp_path / "token"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lpc_cli", "lmcache", "front", "--host", "::", "--port", str(port)]
    with subprocess.Popen(command, env=env, cwd=tmp_path) as process:
        try:
            for place in PLACES:
                url = f"http://{place}:{port}/metrics"
                assert until(lambda url=url: status(url)) == 401
        finally:
            process.terminate()


def status(url: str) -> int | None:
    """Return the status of an answer; None: there is none."""
    try:
        return httpx2.get(url, timeout=patiently(), trust_env=False).status_code
    except httpx2.HTTPError:
        return None


@pytest.mark.parametrize("host", ["::", "[::]", "0:0:0:0:0:0:0:0"])
def test_all_addresses_are_those_of_ipv4_on_a_machine_without_ipv6(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_ipv6", False)
    with listen(host, 0) as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 30).close()
    with serve_metrics(CollectorRegistry(), host, 0) as port:
        socket.create_connection(("127.0.0.1", port), 30).close()


@needs_ipv6
async def test_redis_is_reached_over_ipv6(tmp_path: Path) -> None:
    with RedisServer(tmp_path, bind="127.0.0.1 ::1") as server:
        url = f"redis://[::1]:{server.port}/0"
        reach = RedisReach(Connection(url), "of the test")
        assert await reach.run("return redis.call('SET', KEYS[1], ARGV[1])", ["k"], "v")
        await reach.close()
        with storing(url) as store:
            record(store, A, BLOCKS, 1.0)
            assert store.flush() and ends(store, BLOCKS) == [1.0] * len(BLOCKS)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]", "::", "[::]", "0.0.0.0", "127.0.0.1"])
async def test_the_health_check_asks_at_the_address_of_the_sidecar_in_spite_of_a_proxy(tiny_models: Path, host: str) -> None:
    async with sidecar(tiny_models, host=host, tokens=None) as (_, addresses):
        env = {**os.environ, "LPC_HOST": host, "LPC_PORT": str(addresses.port), "http_proxy": f"http://127.0.0.1:{free_port()}"}
        env.pop("LPC_UNIX_SOCKET", None)
        env["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, str(HEALTHCHECK)]
        done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
