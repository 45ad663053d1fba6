"""Commands to a Redis on an event loop. A call waits at most the time-out, and fails at once shortly after a failure."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import redis

from lpc.errors import LpcError
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health, cause_of
from lpc.wire.redis_settings import REFUSALS

T = TypeVar("T")

CONNECTIONS: Final = 64
"""Largest number of connections to one server."""
CLUSTER_FAILURES: Final = 10
"""Consecutive failures after which the client of a Cluster is replaced: perhaps all its nodes have new addresses."""


class RedisFailed(LpcError):
    """Redis did not execute a command."""


class RedisAway(RedisFailed):
    """Redis does not answer, or has failed a moment ago."""


class RedisRefused(RedisFailed):
    """Redis refused one command: it is full, or a key has another type. Other commands and keys still work."""


class _Opened:
    """A client of redis-py, which is closed when it has been replaced and its last command has ended."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.users = 0


class RedisReach:
    """Sends commands to a Redis. After a failure only one caller at a time retries; the others fail at once.

    The connection's time-out covers connecting, waiting for a free connection, and the answer.

    After a failure, and after a refusal that another server might not give, new commands use new connections: the address may
    lead to another server since a failover, while the old connections stay at the old one.

    Args:
        connection: the server or Cluster; not opened yet.
        what: what the server is used for, for the log.
        refused: called with the cause (`redis_settings.REFUSALS`) of each command that Redis refuses.
    """

    def __init__(self, connection: Connection, what: str, refused: Callable[[str], object] = lambda _cause: None) -> None:
        self._connection = connection
        self._what = what
        self._health = Health(connection, what, refused)
        self._opened: _Opened | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def away(self) -> bool:
        """Whether the last call failed."""
        return self._health.failures > 0

    async def ask(self, question: Callable[[Any], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Call ``question`` with redis-py's client and return the result. Raises RedisAway or RedisRefused.

        ``timeout_s``: longer time limit, for background work.
        """
        health, limit_s = self._health, self._connection.timeout_s
        if health.failures:
            if health.resting:
                raise RedisAway(f"Redis {self._what} is away")
            health.rest(limit_s)  # other calls fail at once until this one has ended
        if self._opened is None:
            self._opened = _Opened(self._connection.open_async(CONNECTIONS))
        opened = self._opened
        opened.users += 1
        try:
            async with asyncio.timeout(timeout_s or limit_s):
                answer = await question(opened.client)
        except ERRORS as error:
            if cause_of(error, cluster=self._connection.cluster) not in REFUSALS:
                if opened is self._opened:  # else a command has failed that began before a newer connection
                    health.failed(error)
                raise RedisAway(f"Redis {self._what} is away") from None
            health.answered()
            raise RedisRefused(f"Redis {self._what} refuses a command ({health.refused(error)})") from None
        else:
            health.answered()
            return answer
        finally:
            self._leave(opened)

    def _leave(self, opened: _Opened) -> None:
        """End one use of a client, and replace or close it if that is due."""
        opened.users -= 1
        if self._health.outdated and opened is self._opened:
            # A Cluster's client finds the nodes by itself, and a new one cannot begin while the first slots' node is down.
            if not self._connection.cluster or self._health.failures >= CLUSTER_FAILURES:
                self._opened = None
            self._health.outdated = False
        if opened is not self._opened and not opened.users:
            closing = asyncio.create_task(self._close(opened))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, opened: _Opened) -> None:
        self._connection.note_nodes(opened.client)
        with contextlib.suppress(*ERRORS):
            await opened.client.aclose()

    async def read(self, *command: str) -> Any:
        """Return the answer to a read-only command. Raises RedisAway or RedisRefused."""

        async def read(client: Any) -> Any:
            try:
                return await client.execute_command(*command)
            except redis.ConnectionError:
                # redis-py does not notice on an event loop that an idle connection was closed, for example by a restart.
                return await client.execute_command(*command)

        return await self.ask(read)

    async def ask_each(self, add: Callable[[Any], object], timeout_s: float | None = None) -> list[Any]:
        """Return the answers to the commands of one pipeline, with an error for each that is refused. Raises RedisAway.

        ``add``: adds the commands to a pipeline of redis-py.
        """
        cluster = self._connection.cluster

        async def each(client: Any) -> list[Any]:
            answers = await _executed(client, add, raise_on_error=False)
            for answer in answers:  # a Cluster's client also returns the errors of a node that does not answer
                if isinstance(answer, ERRORS) and cause_of(answer, cluster=cluster) not in REFUSALS:
                    raise answer
            return answers

        answers = await self.ask(each, timeout_s)
        for answer in answers:
            if isinstance(answer, ERRORS):
                self._health.refused(answer)
        return answers

    async def ask_all(self, add: Callable[[Any], object], timeout_s: float | None = None) -> list[Any]:
        """Return the answers to the commands of one pipeline. Raises RedisAway, or RedisRefused if one is refused."""
        return await self.ask(lambda client: _executed(client, add), timeout_s)

    async def run(self, script: str, keys: Sequence[str], *arguments: Any, timeout_s: float | None = None) -> Any:
        """Return the answer of a script. Raises RedisAway or RedisRefused."""
        return await self.ask(lambda client: client.eval(script, len(keys), *keys, *arguments), timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await self._close(opened)
        await asyncio.gather(*self._closing)


async def _executed(client: Any, add: Callable[[Any], object], *, raise_on_error: bool = True) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    add(pipe)
    answers: list[Any] = await pipe.execute(raise_on_error=raise_on_error)
    return answers
