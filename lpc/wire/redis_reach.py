"""A Redis that may be away, on an event loop: nobody waits for it longer than the time-out, and nobody twice in a row."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import redis

from lpc.errors import LpcError
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import REFUSALS, Health, cause_of

T = TypeVar("T")

CONNECTIONS: Final = 64
"""To one server."""


class RedisFailed(LpcError):
    """Redis did not do what it was asked."""


class RedisAway(RedisFailed):
    """Redis does not answer, or did not a moment ago."""


class RedisRefused(RedisFailed):
    """Redis refused one command: it is full, or a key holds another type. Other commands and keys are not concerned."""


class RedisReach:
    """Asks a Redis. After a failure one caller in a while tries again, and all others learn at once that it is away.

    An answer may take the connection's time-out, connecting and waiting for a free connection included.

    Args:
        connection: to the server or Cluster; not opened yet.
        what: the server is for, for the log.
        refused: called with the cause (`redis_health.REFUSALS`) of each command that Redis refuses.
    """

    def __init__(self, connection: Connection, what: str, refused: Callable[[str], object] = lambda _cause: None) -> None:
        self._connection = connection
        self._what = what
        self._health = Health(connection, what, refused)
        self._client: Any = None

    @property
    def away(self) -> bool:
        """Whether it did not answer when it was asked last."""
        return self._health.failures > 0

    async def ask(self, question: Callable[[Any], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Return what a question to redis-py's client answers. Raises RedisAway, RedisRefused.

        ``timeout_s``: of long background work, for which nobody waits.
        """
        health, limit_s = self._health, self._connection.timeout_s
        if health.failures:
            if health.resting:
                raise RedisAway(f"Redis {self._what} is away")
            health.rest(limit_s)  # the others wait for what this one finds
        try:
            async with asyncio.timeout(timeout_s or limit_s):
                if self._client is None:
                    self._client = self._connection.open_async(CONNECTIONS)
                answer = await question(self._client)
        except ERRORS as error:
            if cause_of(error) not in REFUSALS:
                health.failed(error)
                raise RedisAway(f"Redis {self._what} is away") from None
            health.answered()
            raise RedisRefused(f"Redis {self._what} refuses a command ({health.refused(error)})") from None
        health.answered()
        return answer

    async def read(self, *command: str) -> Any:
        """Return the answer to a command that changes nothing. Raises RedisAway, RedisRefused."""

        async def read(client: Any) -> Any:
            try:
                return await client.execute_command(*command)
            except redis.ConnectionError:
                # Perhaps it was closed while it lay idle, as by a restart, which redis-py does not see on an event loop.
                return await client.execute_command(*command)

        return await self.ask(read)

    async def ask_each(self, add: Callable[[Any], object], timeout_s: float | None = None) -> list[Any]:
        """Return the answers to the commands of one pipeline, an error in place of each that failed. Raises RedisAway.

        ``add``: adds the commands to a pipeline of redis-py.
        """
        answers = await self.ask(lambda client: _executed(client, add, raise_on_error=False), timeout_s)
        for answer in answers:
            if isinstance(answer, redis.ResponseError) and cause_of(answer) in REFUSALS:
                self._health.refused(answer)
        return answers

    async def ask_all(self, add: Callable[[Any], object], timeout_s: float | None = None) -> list[Any]:
        """Return the answers to the commands of one pipeline. Raises RedisAway, RedisRefused if it refuses one of them."""
        return await self.ask(lambda client: _executed(client, add), timeout_s)

    async def run(self, script: str, keys: Sequence[str], *arguments: Any, timeout_s: float | None = None) -> Any:
        """Return what a script answers. Raises RedisAway, RedisRefused."""
        return await self.ask(lambda client: client.eval(script, len(keys), *keys, *arguments), timeout_s)

    async def close(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*ERRORS):
                await client.aclose()


async def _executed(client: Any, add: Callable[[Any], object], *, raise_on_error: bool = True) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    add(pipe)
    answers: list[Any] = await pipe.execute(raise_on_error=raise_on_error)
    return answers
