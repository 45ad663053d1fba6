"""A real Redis behind proxies that do not know some commands: what works goes on, and messages name the command."""

import logging
import re
from pathlib import Path

import pytest
import redis
from redis import exceptions

from eviction_client.errors import StoreError
from eviction_client.stores.redis import RedisStore
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health, cause_of, explain
from lpc.wire.redis_reach import RedisAway, RedisReach, RedisRefused
from lpc.wire.redis_settings import REFUSALS
from predictor_service.sharing import records
from response_cache.service.outcomes import CacheHit, CacheMiss
from testing.processes import RedisServer
from tests.integration.response_cache.test_cache import ask, fill
from tests.redis_proxy import redis_proxy
from tests.redis_stores import NAMESPACE
from tests.response_cache import Caches, asked

SCRIPT = "EVAL if string.find(found.err, 'WRONGTYPE', 1, true) then NOPERM READONLY"
"""A command that a Cluster's client quotes in its errors, before the server's message."""
MODERN = ("HELLO", "CLIENT")
"""Commands that older proxies do not know."""


@pytest.mark.parametrize("error", ["ERR unknown command '{}'", ""], ids=["error", "hangs up"])
async def test_response_caches_work_behind_a_proxy_that_knows_no_resp3(
    redis_server: RedisServer, tmp_path: Path, error: str
) -> None:
    with redis_proxy(redis_server.port, *MODERN, error=error) as proxy:
        caches = Caches(proxy.url, tmp_path)
        await fill(caches, asked("Is it?"))
        assert isinstance(await ask(caches, asked("Is it?")), CacheHit)
        assert proxy.refused == []
        await caches.close()


def test_engines_and_shared_turns_work_behind_a_proxy_that_knows_no_resp3(redis_server: RedisServer) -> None:
    with redis_proxy(redis_server.port, *MODERN, error="") as proxy:
        connection = Connection(proxy.url, timeout_s=10.0)
        store = RedisStore(connection, NAMESPACE)
        store.check()
        assert len(records.fleet_key(connection.client)) == records.KEY_BYTES
        store.close()
        assert proxy.refused == []


async def test_a_url_can_ask_for_resp3_and_the_log_names_what_the_proxy_lacks(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_proxy(redis_server.port, *MODERN) as proxy:
        reach = RedisReach(Connection(f"{proxy.url}?protocol=3", timeout_s=10.0), "of the test")
        with pytest.raises(RedisAway):
            await reach.ask(lambda client: client.get("k"))
        await reach.close()
    assert "the command HELLO" in caplog.text and "add ?protocol=2 to LPC_REDIS_URL" in caplog.text
    assert "too old" not in caplog.text


async def test_a_proxy_without_scripts_is_named_and_reads_go_on(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_proxy(redis_server.port, "EVAL") as proxy:
        causes: list[str] = []
        reach = RedisReach(Connection(proxy.url, timeout_s=10.0), "of the test", causes.append)
        with pytest.raises(RedisRefused):
            await reach.run("return redis.call('GET', KEYS[1])", ["secret"])
        assert await reach.read("GET", "k") is None
        await reach.close()
        with pytest.raises(StoreError, match="does not run the command EVAL"):
            RedisStore(Connection(proxy.url, timeout_s=10.0), NAMESPACE).check()
        caches = Caches(proxy.url, tmp_path)
        assert isinstance(await ask(caches, asked("Is it?")), CacheMiss)
        await caches.close()
    assert causes == ["unknown"]
    assert "does not run the command EVAL" in caplog.text
    assert "too old" not in caplog.text and "secret" not in caplog.text and "bug" not in caplog.text


@pytest.mark.parametrize(
    ("url", "unknown", "message"),
    [
        ("redis://:secret@{}", "AUTH", "the command AUTH.*leave user and password out of LPC_REDIS_URL"),
        ("redis://{}/1", "SELECT", "the command SELECT.*leave the database's number out of LPC_REDIS_URL"),
    ],
)
def test_a_proxy_that_refuses_a_step_of_the_login_is_named(
    redis_server: RedisServer, url: str, unknown: str, message: str
) -> None:
    with redis_proxy(redis_server.port, unknown) as proxy:
        connection = Connection(url.format(proxy.url.removeprefix("redis://").removesuffix("/0")), timeout_s=10.0)
        with pytest.raises(redis.RedisError) as caught:
            connection.client.get("k")
        assert cause_of(caught.value) not in REFUSALS
        assert re.search(message, explain(caught.value, connection))
        connection.close()


def test_a_proxy_that_is_not_a_cluster_is_named(redis_server: RedisServer) -> None:
    with redis_proxy(redis_server.port, "CLUSTER") as proxy:
        connection = Connection(proxy.url, cluster=True, timeout_s=10.0)
        with pytest.raises(ERRORS) as caught:
            connection.client.get("k")
        assert "is not a Cluster: unset LPC_REDIS_CLUSTER" in explain(caught.value, connection)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (exceptions.ClusterError("TTL exhausted."), "moving"),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), "moving"),
        (exceptions.AskError("1 127.0.0.1:1"), "moving"),
        (exceptions.MovedError("1 127.0.0.1:1"), "moving"),
        (exceptions.ClusterDownError("The cluster is down"), "cluster"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
        (exceptions.ResponseError("BUSY Valkey is busy running a script."), "busy"),
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "OOM"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS"),
        (exceptions.TimeoutError("Timeout reading from socket"), "timeout"),
        (TimeoutError(), "timeout"),
        (exceptions.TimeoutError(f"Command # 1 ({SCRIPT}) of pipeline caused error: Timeout reading from socket"), "timeout"),
        (exceptions.ConnectionError(f"Command # 1 ({SCRIPT}) of pipeline caused error: Connection closed"), "away"),
        (exceptions.OutOfMemoryError(f"Command # 1 ({SCRIPT}) of pipeline caused error: command not allowed"), "OOM"),
        (exceptions.NoPermissionError("this user has no permissions to run the 'eval' command"), "NOPERM"),
        (exceptions.AuthenticationError("Client sent AUTH, but no password is set"), "unneeded password"),
    ],
)
def test_an_answer_of_a_server_or_cluster_is_not_logged_as_a_bug(
    caplog: pytest.LogCaptureFixture, error: Exception, cause: str
) -> None:
    connection = Connection("redis://127.0.0.1:1/0", cluster=True)
    assert cause_of(error, cluster=True) == cause
    health = Health(connection, "of the test")
    if cause in REFUSALS:
        assert health.refused(error) == cause
    else:
        health.failed(error)
    assert caplog.records and "bug" not in caplog.text
    moving = [record for record in caplog.records if record.levelno > logging.WARNING]
    assert not moving or cause != "moving"


def test_a_refusal_that_names_a_command_names_no_value() -> None:
    connection = Connection("redis://127.0.0.1:1/0")
    for text in (
        "Command # 1 (EVAL canary) of pipeline caused error: unknown command 'CANARY', with args beginning with: `canary`",
        "unknown command 'EVAL', with args beginning with: `canary`",
        "this user has no permissions to access the 'canary' key used in the 'get' command",
    ):
        assert "canary" not in explain(exceptions.ResponseError(text), connection).lower()
