"""A Redis that may be away, on an event loop: nobody waits for it longer than the time-out, and nobody twice in a row."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import redis

from lpc.errors import LpcError
from lpc.wire.redis_connection import AWAY, ERRORS, Connection, PasswordFileError
from lpc.wire.redis_refusals import Refusals

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS: Final = 64
"""To one server."""
HELD: Final = 16
"""Further connections, on which single commands are read."""
FIRST_S: Final = 0.25
LONGEST_S: Final = 5.0
"""Pauses after a failure: the first, and what they double up to."""


class RedisFailed(LpcError):
    """Redis did not do what it was asked."""


class RedisAway(RedisFailed):
    """Redis does not answer, or did not a moment ago."""


class RedisRefused(RedisFailed):
    """Redis refused one command: it is full, or a key holds another type. Other commands and keys are not concerned."""


class RedisReach:
    """Asks a Redis. After a failure one caller in a while tries again, and all others learn at once that it is away.

    Args:
        connection: to the server or Cluster; not opened yet.
        timeout_s: that an answer may take, connecting and waiting for a free connection included.
        what: the server is for, for the log.
        refused: called with the cause (`redis_refusals.ADVICE`) of each command that Redis refuses.
    """

    def __init__(
        self, connection: Connection, timeout_s: float, what: str, refused: Callable[[str], object] = lambda _cause: None
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._what = what
        self._refusals = Refusals(what, connection.where, refused)
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
        """Return what a question to redis-py's client answers. Raises RedisAway, RedisRefused.

        ``timeout_s``: of long background work, for which nobody waits.
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
        except (TimeoutError, *AWAY) as error:
            self._lost(error, loop.time())
            raise RedisAway(f"Redis {self._what} is away") from None
        except redis.RedisError as error:
            self._found()
            raise RedisRefused(f"Redis {self._what} refuses a command ({self._refusals.note(error)})") from None
        self._found()
        return answer

    async def read(self, *command: str) -> Any:
        """Return the answer to a command that changes nothing. Raises RedisAway, RedisRefused.

        It is read on a connection of redis-py that is held for such commands: taking one from the pool, and the client around
        it, cost as much as the command itself.
        """
        return await self.ask(lambda client: self._read(client, command))

    async def ask_each(self, add: Callable[[Any], object], timeout_s: float | None = None) -> list[Any]:
        """Return the answers to the commands of one pipeline, an error in place of each that failed. Raises RedisAway.

        ``add``: adds the commands to a pipeline of redis-py.
        """

        async def execute(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            add(pipe)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
            return answers

        answers = await self.ask(execute, timeout_s)
        for answer in answers:
            if isinstance(answer, redis.ResponseError) and not isinstance(answer, AWAY):
                self._refusals.note(answer)
        return answers

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
            return ": it is not a node of a Redis Cluster: unset LPC_CACHE_REDIS_CLUSTER"
        if isinstance(error, PasswordFileError):
            return f": {error}"
        if isinstance(error, redis.AuthenticationError):
            return ": it refuses user or password (docs/how-to/security.md)"
        if isinstance(error, TimeoutError | redis.TimeoutError):
            return f": no answer within {self._timeout_s:g} s"
        return ""

    def _found(self) -> None:
        if self._pause_s:
            self._pause_s = 0.0
            log.info("Redis %s is back", self._what)

    def _lost(self, error: BaseException, now: float) -> None:
        if not self._pause_s:
            # Its kind alone: a message of Redis may quote a command.
            where, kind = self._connection.where, type(error).__name__
            log.warning("Redis %s at %s cannot be used (%s)%s", self._what, where, kind, self._advice(error))
        self._pause_s = min(max(2 * self._pause_s, FIRST_S), LONGEST_S)
        self._again_at = now + self._pause_s
