"""Connections to Redis, single server or Cluster: parses URLs, and creates clients of redis-py."""

import contextlib
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.cluster
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, parse_url
from redis.credentials import CredentialProvider
from redis.retry import Retry

from lpc.wire.certificates import CertificateFiles

NO_FILES: Final = CertificateFiles()

ERRORS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""All errors of redis-py that a server or the network can cause."""

_NAMELESS: Final[dict[str, None]] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}  # before redis-py 7
)
"""Options without which a connection begins with CLIENT SETINFO: some proxies hang up on it."""

_USER: Final = r"(?:(?:[^/?#@\[\]%]|%[0-9A-Fa-f]{2})*@)?"
_URL: Final = re.compile(rf"(rediss?://){_USER}([^/?#@]*(?:/[^?#@]*)?(?:\?[^#@]*)?)|(unix://){_USER}(/[^?#]+(?:\?[^#@]*)?)")
"""Excludes raw / # ? in passwords: redis-py would parse the part before it as the host, and quote the rest in its error."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The parts of a Redis URL.

    Attributes:
        bare: the URL without user and password.
        where: host and port, or the path of a Unix socket; safe to log.
        node: host and port.
        user, password: percent-decoded; None: the URL has none.
    """

    bare: str
    where: str
    node: tuple[str, int]
    user: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError, with the remedy and without the URL, if it is malformed."""
        found = _URL.fullmatch(url)
        try:
            if found is None:
                raise ValueError
            parts = parse_url(url)  # type: ignore[no-untyped-call]
            redis.ConnectionPool.from_url(url).make_connection()  # checks the URL's options; does not connect
        except (TypeError, ValueError):
            raise ValueError(
                "cannot be parsed: write redis://HOST:PORT/DATABASE, rediss://... (TLS) or unix:///PATH; in user and "
                "password write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B, ] as %5D and % as %25, or write the "
                "password unchanged into a file and set LPC_REDIS_PASSWORD_FILE"
            ) from None
        host, port = parts.get("host", "localhost"), parts.get("port", 6379)
        bare = "".join(found.group(1, 2) if found[1] else found.group(3, 4))
        where = parts.get("path") or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return cls(bare, where, (host, port), parts.get("username"), parts.get("password"))


class PasswordFileError(redis.AuthenticationError):
    """The file with the password is unreadable or empty."""


class PasswordFile(CredentialProvider):
    """Credentials whose password is read from a file at each connection."""

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

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """See :meth:`get_credentials`."""
        return self.get_credentials()


class Connection:
    """Creates clients of redis-py for a server or Cluster. The clients have time-outs and never retry.

    Args:
        url: redis://, rediss:// or unix:// URL, with percent-encoded user and password.
        cluster: whether the URL is a node of a Redis Cluster.
        timeout_s: time limit of a connection and of one answer.
        files: certificates for rediss://; read at each connection.
        password_file: file with the password of the URL's user; read at each connection, so that a new one needs no restart.
        settings: prefix of its settings' names, for messages.

    Attributes:
        where: host and port, or the path of a Unix socket; safe to log.

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
        password_file: Path | None = None,
        settings: str = "LPC_REDIS",
    ) -> None:
        parsed = RedisUrl.parse(url)
        self._url, self.where = parsed.bare, parsed.where
        self.cluster, self.timeout_s, self.settings = cluster, timeout_s, settings
        self._options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            # RESP3 begins with HELLO, which some proxies do not know, and is not needed. A URL may have ?protocol=3.
            "protocol": 2,
            **_NAMELESS,
        }
        if password_file is not None:
            self._options["credential_provider"] = PasswordFile(parsed.user, password_file)
        else:
            self._options |= {"username": parsed.user, "password": parsed.password}
        if url.startswith("rediss://"):
            names = {"ssl_ca_certs": files.ca, "ssl_certfile": files.certificate, "ssl_keyfile": files.key}
            self._options |= {name: str(path) for name, path in names.items() if path is not None}
        self._client: Any = None
        self._nodes: list[tuple[str, int]] = []
        """Nodes of a Cluster as last seen, in case the URL's node is down."""
        self._own_node = parsed.node
        self._opened = 0

    @property
    def client(self) -> Any:
        """The synchronous client, created on first use; use it in one thread only.

        For a Cluster this connects to the URL's node or one seen before, and raises one of ERRORS if that fails.
        """
        if self._client is None and self.cluster:
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._nodes]  # type: ignore[no-untyped-call]
            self._client = redis.cluster.RedisCluster.from_url(self._url, startup_nodes=nodes, **self._options)
        elif self._client is None:
            self._client = redis.Redis.from_url(self._url, **self._options)
        return self._client

    def open_async(self, connections: int) -> Any:
        """Return an asyncio client. ``connections``: largest number of connections to a server."""
        options = {**self._options, "retry": redis.asyncio.retry.Retry(NoBackoff(), 0), "max_connections": connections}
        if self.cluster:
            # A node that does not answer takes all of a call's time, so that each call begins with another one.
            nodes = [self._own_node, *self._nodes]
            first, self._opened = self._opened % len(nodes), self._opened + 1
            starts = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in nodes[first:] + nodes[:first]]
            return redis.asyncio.cluster.RedisCluster.from_url(self._url, startup_nodes=starts, **options)
        # A call waits for a free connection as long as for an answer.
        pool = redis.asyncio.BlockingConnectionPool.from_url(self._url, timeout=self.timeout_s, **options)
        return redis.asyncio.Redis.from_pool(pool)

    def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*ERRORS):
                self.note_nodes(client)
                client.close()

    def note_nodes(self, client: Any) -> None:
        """Remember the nodes that a client of a Cluster has seen, for the next client."""
        if self.cluster:
            self._nodes = [(node.host, node.port) for node in client.get_nodes()] or self._nodes


def evaluate(client: Any, script: str, commands: list[tuple[Any, ...]], *, raise_on_error: bool = True) -> list[Any]:
    """Run a script once for each of ``commands`` in one pipeline; return the answers in order.

    The whole script, about a kilobyte, is sent each time, so that it need not be loaded first. Redis compiles it once.

    Args:
        raise_on_error: raise the first error, although other commands may have run; otherwise return errors as answers.
    """
    batch = client.pipeline(transaction=False)
    for command in commands:
        batch.execute_command("EVAL", script, *command)
    answers: list[Any] = batch.execute(raise_on_error=raise_on_error)
    return answers
