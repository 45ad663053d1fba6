"""A Redis that may be away, on an event loop: nobody waits for it longer than the time-out, and nobody twice in a row."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import redis

from lpc.errors import LpcError
from lpc.wire.redis_connection import ERRORS, Connection, PasswordFileError

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS: Final = 64
"""To one server."""
HELD: Final = 16
"""Connections beside them on which single commands are read."""
FIRST_S: Final = 0.25
LONGEST_S: Final = 5.0
"""Pauses after a failure: the first, and what they double up to."""


class RedisAway(LpcError):
    """Redis does not answer, or did not a moment ago."""


class RedisReach:
    """Asks a Redis. After a failure one caller in a while tries again, and all others are told at once that it is away.

    Args:
        connection: to the server or Cluster; not opened yet.
        timeout_s: that an answer may take, connecting and waiting for a free connection included.
        what: the server is for, for the log.
    """

    def __init__(self, connection: Connection, timeout_s: float, what: str) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._what = what
        self._client: Any = None
        self._free: list[Any] = []
        self._held = 0
        self._again_at = 0.0
        self._pause_s = 0.0

    @property
    def away(self) -> bool:
        """Whether it did not answer when it was asked last."""
        return self._pause_s > 0

    async def ask(self, question: Callable[[Any], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Return what a question to redis-py's client answers. Raises RedisAway.

        ``timeout_s``: of long work beside serving, which waits for no one.
        """
        loop = asyncio.get_running_loop()
        if self._pause_s:
            now = loop.time()
            if now < self._again_at:
                raise RedisAway(f"Redis {self._what} is away")
            self._again_at = now + self._timeout_s  # the others wait for what this one finds
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                if self._client is None:
                    self._client = self._connection.open_async(CONNECTIONS)
                answer = await question(self._client)
        except (TimeoutError, *ERRORS) as error:
            self._lost(error, loop.time())
            raise RedisAway(f"Redis {self._what} is away") from None
        if self._pause_s:
            self._pause_s = 0.0
            log.info("Redis %s is back", self._what)
        return answer

    async def read(self, *command: str) -> Any:
        """Return the answer to a command that changes nothing. Raises RedisAway.

        It is read on a connection of redis-py that is held for such commands: taking one from the pool, and the client around
        it, cost as much as the command itself.
        """
        return await self.ask(lambda client: self._read(client, command))

    async def close(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        try:
            if client is not None:
                await client.aclose()
            while self._free:
                await self._free.pop().disconnect()
        except ERRORS:
            log.debug("closing the connection to Redis failed", exc_info=True)
        self._held = 0

    async def _read(self, client: Any, command: tuple[str, ...]) -> Any:
        if self._connection.cluster or not (self._free or self._held < HELD):
            return await client.execute_command(*command)
        if self._free:
            held = self._free.pop()
        else:
            held = self._connection.make_async_connection()
            self._held += 1
        was_open = held.is_connected
        try:
            try:
                await held.send_command(*command)
                return await held.read_response()
            except redis.ConnectionError:
                # Closed by the server while it lay idle, as by a restart: another one may be had.
                if not was_open:
                    raise
                await held.send_command(*command)
                return await held.read_response()
        finally:
            # After whatever went wrong it is closed, and opens again when it is asked.
            self._free.append(held)

    def _advice(self, error: BaseException) -> str:
        """Say what is known of the cause, and what to set where the server is not what the settings call it."""
        if isinstance(error, redis.exceptions.MovedError) and not self._connection.cluster:
            return ": it is a node of a Redis Cluster: set LPC_CACHE_REDIS_CLUSTER=true"
        if self._connection.cluster and "Cluster mode is not enabled" in str(error):
            return ": it is no node of a Redis Cluster: unset LPC_CACHE_REDIS_CLUSTER"
        if isinstance(error, PasswordFileError):
            return f": {error}"
        if isinstance(error, redis.exceptions.NoPermissionError | redis.AuthenticationError):
            return ": it refuses user, password or what they may do (docs/security.md)"
        if isinstance(error, TimeoutError | redis.TimeoutError):
            return f": no answer within {self._timeout_s:g} s"
        return ""

    def _lost(self, error: BaseException, now: float) -> None:
        if not self._pause_s:
            # Its kind alone: a message of Redis may quote a command.
            where, kind = self._connection.where, type(error).__name__
            log.warning("Redis %s at %s cannot be used (%s)%s", self._what, where, kind, self._advice(error))
        self._pause_s = min(max(2 * self._pause_s, FIRST_S), LONGEST_S)
        self._again_at = now + self._pause_s
