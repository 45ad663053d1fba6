"""Fixtures of a real redis-server."""

import contextlib
from collections.abc import Iterator

import pytest

from testing.processes import RedisServer


@pytest.fixture(scope="session")
def redis_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that do not kill or configure it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(redis_session: RedisServer) -> RedisServer:
    """A running server without data."""
    with contextlib.closing(redis_session.client()) as client:
        client.flushall()
    return redis_session
