"""IPv6 addresses of Redis and of the sidecar's health check."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import RedisServer, free_port
from eviction_client.settings import ClientSettings
from lpc.wire.redis_connection import Connection, RedisUrl
from lpc.wire.redis_reach import RedisReach
from tests.integration.test_server import sidecar
from tests.only import ROOT
from tests.redis_stores import BLOCKS, A, storing

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


@needs_ipv6
async def test_redis_is_reached_over_ipv6(tmp_path: Path) -> None:
    with RedisServer(tmp_path, bind="127.0.0.1 ::1") as server:
        url = f"redis://[::1]:{server.port}/0"
        reach = RedisReach(Connection(url), "of the test")
        assert await reach.run("return redis.call('SET', KEYS[1], ARGV[1])", ["k"], "v")
        await reach.close()
        with storing(url) as store:
            store.record(A, BLOCKS, 1.0)
            assert store.flush() and store.retain_until(BLOCKS) == [1.0] * len(BLOCKS)


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
