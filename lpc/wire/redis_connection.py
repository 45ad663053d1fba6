"""A connection to Redis, single or Cluster: how it is opened, and what may go wrong on it."""

import hashlib
import logging
from pathlib import Path
from typing import Any, Final

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.cluster
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from lpc.wire.certificates import CertificateFiles
from lpc.wire.redis_url import NOBODY, RedisLogin, RedisUrl

logger = logging.getLogger(__name__)

NO_FILES: Final = CertificateFiles()

ERRORS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""Everything that redis-py raises for a server or network at fault."""

AWAY: Final = (
    redis.ConnectionError,  # also a refused login and a server that still loads its data
    redis.TimeoutError,
    redis.exceptions.InvalidResponse,
    redis.exceptions.ClusterError,  # also CLUSTERDOWN and MASTERDOWN
    redis.exceptions.MovedError,
    redis.exceptions.RedisClusterException,
    OSError,
)
"""What says that no command can be answered now. Any other error of ERRORS is about one command or key."""


class PasswordFileError(redis.AuthenticationError):
    """The file with the password cannot be read, or is empty."""


class PasswordFile(CredentialProvider):
    """A user whose password lies in a file, which is read at each connection."""

    def __init__(self, user: str | None, path: Path) -> None:
        self._user = user
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or user and password. Raises PasswordFileError."""
        try:
            password = self._path.read_text().strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise PasswordFileError(f"{self._path}: {reason}") from None
        if not password:
            raise PasswordFileError(f"{self._path}: it is empty")
        return (password,) if self._user is None else (self._user, password)


class Connection:
    """A server or Cluster, and one client of it that is kept until something is wrong with it. Not thread-safe but for `open`.

    Args:
        url: redis://, rediss:// or unix:// URL, user and password in it percent-encoded.
        cluster: the URL names a node of a Redis Cluster.
        timeout_s: time for a connection and for one answer.
        files: certificates for rediss://; read at each connection.
        login: user and password, where they are not in the URL.

    Attributes:
        where: host and port, or the path of a Unix socket: what may be written into a log.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        cluster: bool = False,
        timeout_s: float = 1.0,
        files: CertificateFiles = NO_FILES,
        login: RedisLogin = NOBODY,
    ) -> None:
        parsed = RedisUrl.parse(url)
        redis.connection.parse_url(parsed.bare)  # type: ignore[no-untyped-call]  # for what it refuses in the query
        self._url, self.where = parsed.bare, parsed.where
        self.cluster = cluster
        self._options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        user = login.user or parsed.user
        if login.password_file is not None:
            self._options["credential_provider"] = PasswordFile(user, login.password_file)
        else:
            self._options |= {"username": user, "password": login.password or parsed.password}
        if url.startswith("rediss://"):
            names = {"ssl_ca_certs": files.ca, "ssl_certfile": files.certificate, "ssl_keyfile": files.key}
            self._options |= {name: str(path) for name, path in names.items() if path is not None}
        self._client: Any = None
        self._connections: Any = None
        # Of a Cluster, as last seen: the URL's own node may be the one that died.
        self._nodes: list[tuple[str, int]] = []

    def open(self) -> Any:
        """Return a new client of redis-py that never retries by itself and gives up on every answer after the time-out.

        Nothing is sent yet, except by a Cluster's, which asks the URL's node, or one seen before, for the slots. Raises one of
        ERRORS when the Cluster cannot be reached or is not formed.
        """
        if not self.cluster:
            return redis.Redis.from_url(self._url, **self._options)
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._nodes]  # type: ignore[no-untyped-call]
        return redis.cluster.RedisCluster.from_url(self._url, startup_nodes=nodes, **self._options)

    def open_async(self, connections: int) -> Any:
        """As `open`, a client for an event loop, of at most so many connections to a server."""
        options = {**self._options, "retry": redis.asyncio.retry.Retry(NoBackoff(), 0), "max_connections": connections}
        if self.cluster:
            return redis.asyncio.cluster.RedisCluster.from_url(self._url, **options)
        # Who finds no connection free waits for one as long as for an answer.
        patience = {"timeout": options["socket_timeout"]}
        pool = redis.asyncio.BlockingConnectionPool.from_url(self._url, **patience, **options)
        return redis.asyncio.Redis.from_pool(pool)

    def make_async_connection(self) -> Any:
        """Return a new connection of redis-py for an event loop, not opened yet, whose answers may take as long as they like.

        Not of a Cluster, whose client must choose the node.
        """
        if self._connections is None:
            options = {**self._options, "retry": redis.asyncio.retry.Retry(NoBackoff(), 0), "socket_timeout": None}
            self._connections = redis.asyncio.ConnectionPool.from_url(self._url, **options)
        return self._connections.make_connection()

    @property
    def client(self) -> Any:
        """The client that is kept; opened where there is none. Raises as `open` does."""
        if self._client is None:
            self._client = self.open()
            self._remember_nodes()
        return self._client

    def close(self) -> None:
        """Let go of the client that is kept."""
        if self._client is None:
            return
        self._remember_nodes()
        try:
            self._client.close()
        except ERRORS:
            logger.debug("closing the connection to Redis failed", exc_info=True)
        self._client = None

    def _remember_nodes(self) -> None:
        if self.cluster:
            self._nodes = [(node.host, node.port) for node in self._client.get_nodes()] or self._nodes


def pipeline(client: Any) -> Any:
    """Return a pipeline without a transaction."""
    # Only a plain client knows transactions, and scores need none.
    return client.pipeline(transaction=False) if isinstance(client, redis.Redis) else client.pipeline()


def evaluate(client: Any, script: str, commands: list[tuple[Any, ...]]) -> list[Any]:
    """Run a script once for each of ``commands``, as `evaluate_each`. Raises the first error; the others may have been run."""
    answers = evaluate_each(client, script, commands)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def evaluate_each(client: Any, script: str, commands: list[tuple[Any, ...]]) -> list[Any]:
    """Run a script once for each of ``commands`` in one pipeline; return the answers, or their errors, in order.

    A server that does not know the script (restarted, failed over) gets its text.
    """
    sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
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
    return answers
