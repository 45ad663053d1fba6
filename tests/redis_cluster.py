"""A fixture of a real Redis Cluster."""

from collections.abc import Iterator

import pytest

from testing.processes import RedisServer
from testing.redis_cluster import cluster_of


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three primaries on loopback."""
    with cluster_of(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes
