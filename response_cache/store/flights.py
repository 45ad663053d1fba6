"""Single flight: one of several equal requests calls the engine (the leader), and the others wait for its answer.

A flight is a key in Redis that expires, so that a dead leader does not block others. The followers at one sidecar share one
poll of Redis, every 10 to 50 ms. If the leader stores its answer at the same sidecar, they are notified at once.
"""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from lpc.wire.redis_reach import RedisReach
from response_cache.keys.canonical import EntryId, Scope
from response_cache.store import layout

TOKEN_BYTES: Final = 12
NOT_KEPT: Final = b"-"
"""Replaces the token of a flight whose answer was not cached, so that nobody waits for the next one."""
NOT_KEPT_MS: Final = 2000
FIRST_POLL_S: Final = 0.01
LONGEST_POLL_S: Final = 0.05

State: TypeAlias = Literal["stored", "free", "flying", "not_kept"]

_LIVE: Final = """
local function live(key, most)
  local left = redis.call('PTTL', key)
  if left == -1 or left > most + 0 then redis.call('DEL', key) end
  return redis.call('GET', key)
end
"""
"""Start of a script: reads a flight. One that lasts longer than any is forged, and would make followers wait for good."""
_FLYING: Final = f"{_LIVE} return live(KEYS[1], ARGV[1])"
_TAKE: Final = f"""{_LIVE}
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then return 'stored' end
live(KEYS[2], ARGV[4])
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then return 'taken' end
if redis.call('GET', KEYS[2]) == '-' then return 'not_kept' end
return 'flying'
"""
_END: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], '-', 'PX', ARGV[2])
return 1
"""


@dataclass(slots=True)
class _Wait:
    outcome: "asyncio.Future[State]"
    poll: "asyncio.Task[None]"
    waiting: int = 0


class Flights:
    """Flights of all scopes in one Redis. Lives on one event loop.

    Args:
        redis: the response caches' Redis.
        flight_s: seconds after which a leader counts as dead.
    """

    def __init__(self, redis: RedisReach, flight_s: float) -> None:
        self._redis = redis
        self._flight_ms = max(1, int(flight_s * 1000))
        self._longest_ms = max(2 * self._flight_ms, NOT_KEPT_MS)  # another sidecar may have a longer time
        self._waits: dict[tuple[Scope, EntryId], _Wait] = {}

    async def take(self, scope: Scope, entry: EntryId, *, unless_stored: bool = True) -> tuple[State, bytes]:
        """Try to become the leader of a request; return "free" and the flight's token on success. Raises RedisFailed.

        Args:
            scope: name of the scope.
            entry: name of the request.
            unless_stored: whether an existing entry prevents it; False if that entry cannot be used.
        """
        token = secrets.token_hex(TOKEN_BYTES).encode()
        keys = self._keys(scope, entry)
        arguments = (token, self._flight_ms, int(unless_stored), self._longest_ms)
        found: bytes = await self._redis.run(_TAKE, keys, *arguments)
        if found == b"taken":
            return "free", token
        return {b"stored": "stored", b"not_kept": "not_kept"}.get(found, "flying"), b""  # type: ignore[return-value]

    async def end(self, scope: Scope, entry: EntryId, token: bytes, *, kept: bool, again: bool = False) -> None:
        """End a flight, if the token still owns it. Raises RedisFailed.

        Args:
            scope: name of the scope.
            entry: name of the request.
            token: the flight's token.
            kept: whether the answer was stored, by which the store has ended the flight.
            again: whether a follower should try, because there was no answer.
        """
        if kept:
            self._notify(scope, entry, "stored")
            return
        key = self._keys(scope, entry)[1]
        if await self._redis.run(_END, [key], token, 0 if again else NOT_KEPT_MS):
            self._notify(scope, entry, "free" if again else "not_kept")

    async def flying(self, scope: Scope, entry: EntryId) -> bool:
        """Return whether a flight is open. Raises RedisFailed."""
        flight: bytes | None = await self._redis.run(_FLYING, self._keys(scope, entry)[1:], self._longest_ms)
        return flight not in (None, NOT_KEPT)

    async def wait(self, scope: Scope, entry: EntryId, wait_s: float) -> State:
        """Wait up to ``wait_s`` seconds for the end of a flight; return its outcome. Raises RedisFailed."""
        request = (scope, entry)
        wait = self._waits.get(request)
        if wait is None:
            outcome: asyncio.Future[State] = asyncio.get_running_loop().create_future()
            wait = self._waits[request] = _Wait(outcome, asyncio.create_task(self._poll(request, outcome)))
        wait.waiting += 1
        try:
            done, _ = await asyncio.wait((wait.outcome,), timeout=wait_s)
        finally:
            wait.waiting -= 1
            if not wait.waiting:
                wait.poll.cancel()
                if self._waits.get(request) is wait:
                    del self._waits[request]
        return wait.outcome.result() if done else "flying"

    async def _poll(self, request: tuple[Scope, EntryId], outcome: "asyncio.Future[State]") -> None:
        keys = self._keys(*request)
        pause_s = FIRST_POLL_S
        try:
            while not outcome.done():
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
                record, flight = await self._redis.ask_all(lambda pipe: pipe.exists(keys[0]).get(keys[1]))
                if flight is None or flight == NOT_KEPT:
                    self._notify(*request, "not_kept" if flight else "stored" if record else "free")
                    return
        except Exception as error:  # waiting callers must get it
            if not outcome.done():
                outcome.set_exception(error)

    def _notify(self, scope: Scope, entry: EntryId, state: State) -> None:
        wait = self._waits.pop((scope, entry), None)
        if wait is not None and not wait.outcome.done():
            wait.outcome.set_result(state)

    def _keys(self, scope: Scope, entry: EntryId) -> tuple[str, str]:
        return layout.key(scope, "e", layout.text(entry)), layout.key(scope, "f", layout.text(entry))
