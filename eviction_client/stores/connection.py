"""A connection to Redis, single or Cluster: how it is opened, what may go wrong on it, and how a script is run on it."""

from collections.abc import Sequence
from typing import Any, Final

import redis
import redis.cluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from eviction_client.stores.layout import sha1
from lpc.wire.certificates import CertificateFiles

NO_FILES: Final = CertificateFiles()

PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.AuthenticationError,
    redis.exceptions.NoPermissionError,
    redis.exceptions.ClusterError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.RedisClusterException,
    OSError,
)
"""What a repetition may cure. Of other errors the batch is the cause."""

ERRORS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""Everything that redis-py raises for a server or network at fault."""


def connect(
    url: str,
    *,
    cluster: bool = False,
    timeout_s: float = 1.0,
    files: CertificateFiles = NO_FILES,
    known_nodes: Sequence[tuple[str, int]] = (),
) -> Any:
    """Return a client of redis-py that never retries by itself and gives up on every answer after ``timeout_s``.

    Nothing is sent yet, except by a Cluster client, which asks for the slots: the URL's node, or one of ``known_nodes`` (host,
    port). Raises ValueError for a malformed URL, redis.RedisError when the Cluster cannot be reached.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if url.startswith("rediss://"):
        names = {"ssl_ca_certs": files.ca, "ssl_certfile": files.certificate, "ssl_keyfile": files.key}
        options |= {name: str(path) for name, path in names.items() if path is not None}
    if cluster:
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in known_nodes]  # type: ignore[no-untyped-call]
        return redis.cluster.RedisCluster.from_url(url, startup_nodes=nodes, **options)
    return redis.Redis.from_url(url, **options)


def address(url: str) -> str:
    """Return the host and port, or the path, of a Redis URL: what may be written into a log."""
    options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    return options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def pipeline(client: Any) -> Any:
    """Return a pipeline without a transaction."""
    # Only a plain client knows transactions, and scores need none.
    return client.pipeline(transaction=False) if isinstance(client, redis.Redis) else client.pipeline()


def evaluate(client: Any, script: str, commands: list[tuple[Any, ...]]) -> list[Any]:
    """Run a script once for each of ``commands`` in one pipeline; return the answers in order.

    A server that does not know the script (restarted, failed over) gets its text. Raises the first error otherwise; the
    other commands may have been run.
    """
    sha = sha1(script)
    batch = pipeline(client)
    for command in commands:
        batch.execute_command("EVALSHA", sha, *command)
    answers: list[Any] = batch.execute(raise_on_error=False)
    unknown = [i for i, answer in enumerate(answers) if isinstance(answer, redis.exceptions.NoScriptError)]
    if unknown:
        batch = pipeline(client)
        for i in unknown:
            batch.execute_command("EVAL", script, *commands[i])
        for i, answer in zip(unknown, batch.execute(raise_on_error=False), strict=True):
            answers[i] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
