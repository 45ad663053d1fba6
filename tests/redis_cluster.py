"""A real Redis Cluster on loopback."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.processes import RedisServer, free_port
from tests.eventually import patiently, until


def node(folder: Path) -> RedisServer:
    return RedisServer(folder, cluster_enabled="yes", cluster_port=str(free_port()), cluster_node_timeout="2000")


def form(nodes: list[RedisServer]) -> None:
    addresses = [f"127.0.0.1:{server.port}" for server in nodes]
    subprocess.run(
        ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"], check=True, capture_output=True, timeout=patiently()
    )
    for server in nodes:
        with contextlib.closing(server.client()) as client:
            assert until(lambda client=client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", 40)


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three primaries on loopback."""
    folder = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node(folder / str(n))) for n in range(3)]
        form(nodes)
        yield nodes
