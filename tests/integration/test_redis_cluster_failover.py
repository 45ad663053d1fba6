"""A Redis Cluster whose nodes disappear: what the others hold can still be read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.cluster

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisFailed, RedisReach
from testing.processes import RedisServer
from testing.redis_cluster import form, node
from tests.eventually import eventually


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Three primaries that go on without one of them."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(node(tmp_path / str(n))) for n in range(3)]
        form(found)
        for server in found:
            server.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield found


def key_of(server: RedisServer) -> str:
    """Return a key that a node holds."""
    with contextlib.closing(redis.cluster.RedisCluster("127.0.0.1", server.port)) as client:
        return next(key for n in range(1000) if client.get_node_from_key(key := f"k{n}").port == server.port)


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
async def test_the_other_nodes_are_used_when_the_first_is_gone(nodes: list[RedisServer], silent: bool) -> None:
    """A new client could not begin without the node of the first slots."""
    reach = RedisReach(Connection(nodes[0].url, cluster=True, timeout_s=1.0), "of the test")
    keys = [key_of(server) for server in nodes]
    for key in keys:
        assert await reach.ask(lambda client, key=key: client.set(key, "v"))  # type: ignore[misc]

    async def reads(key: str) -> bool:
        try:
            return await reach.read("GET", key) == b"v"
        except RedisFailed:
            return False

    nodes[0].freeze() if silent else nodes[0].kill()
    assert not await reads(keys[0])
    await eventually(lambda: reads(keys[1]))
    await eventually(lambda: reads(keys[2]))
    if silent:
        nodes[0].thaw()
        await eventually(lambda: reads(keys[0]))
    await reach.close()
