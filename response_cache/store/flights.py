"""Single flight: one of several equal requests calls the engine (the leader), and the others wait for its answer.

A flight is a key in Redis that expires, so that a dead leader does not block others. A leader that renews its flight gets a
short lease (`LEASE_S`), so that followers wait for a dead one no longer than that; another one gets `flight_s`. If a look-up is
given up while it takes a flight, the flight ends at once. Redis keeps time by its wall clock. If that was set back, a lease is
longer than any can be, and it is over.

The followers at one sidecar share one poll of Redis, every 10 to 50 ms. If the leader stores its answer at the same sidecar,
they are notified at once.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from lpc.wire.redis_reach import RedisFailed, RedisReach
from response_cache.keys.canonical import EntryId, Scope
from response_cache.store import layout

TOKEN_BYTES: Final = 12
NOT_KEPT: Final = b"-"
"""Replaces the token of a flight whose answer was not cached, so that nobody waits for the next one."""
NOT_KEPT_MS: Final = 2000
LEASE_S: Final = 3.0
"""Seconds after which a flight ends if its leader does not renew it."""
RENEWED: Final = b"r"
"""Start of the token of a flight that its leader renews."""
LONGEST_LEASE_MS: Final = 2 * int(LEASE_S * 1000)
"""Another sidecar may have a longer lease."""
FIRST_POLL_S: Final = 0.01
LONGEST_POLL_S: Final = 0.05

State: TypeAlias = Literal["stored", "free", "flying", "not_kept"]

_LIVE: Final = """
local function live(key, most, lease)
  local left, token = redis.call('PTTL', key), redis.call('GET', key)
  if token and (token == '-' or string.sub(token, 1, 1) == 'r') then most = lease end
  if left == -1 or left > most + 0 then
    redis.call('DEL', key)
    return false
  end
  return token
end
"""
"""Start of a script: reads a flight. One that lasts longer than any is forged, or the clock of Redis was set back: followers
would wait for it too long."""
_FLYING: Final = f"{_LIVE} return live(KEYS[1], ARGV[1], ARGV[2])"
TAKE: Final = f"""{_LIVE}
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then return 'stored' end
live(KEYS[2], ARGV[4], ARGV[5])
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
_RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
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
        flight_s: seconds after which a leader that does not renew its flight counts as dead.
    """

    def __init__(self, redis: RedisReach, flight_s: float) -> None:
        self._redis = redis
        self._flight_ms = max(1, int(flight_s * 1000))
        self._longest_ms = max(2 * self._flight_ms, NOT_KEPT_MS)  # another sidecar may have a longer time
        self._lease_ms = min(self._flight_ms, int(LEASE_S * 1000))
        self._waits: dict[tuple[Scope, EntryId], _Wait] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def take(
        self, scope: Scope, entry: EntryId, *, unless_stored: bool = True, renews: bool = False
    ) -> tuple[State, bytes]:
        """Try to become the leader of a request; return "free" and the flight's token on success. Raises RedisFailed.

        If the caller is cancelled, it leads no flight.

        Args:
            scope: name of the scope.
            entry: name of the request.
            unless_stored: whether an existing entry prevents it; False if that entry cannot be used.
            renews: whether the leader renews its flight.
        """
        token = (RENEWED if renews else b"") + secrets.token_hex(TOKEN_BYTES).encode()
        # Redis may execute the command although the caller has gone, so that the flight can end only after the answer.
        taking = self._start(self._take(scope, entry, token, unless_stored=unless_stored, renews=renews))
        try:
            state = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(partial(self._release_taken, scope, entry, token))
            raise
        return state, token if state == "free" else b""

    async def _take(self, scope: Scope, entry: EntryId, token: bytes, *, unless_stored: bool, renews: bool) -> State:
        life_ms = self._lease_ms if renews else self._flight_ms
        arguments = (token, life_ms, int(unless_stored), self._longest_ms, LONGEST_LEASE_MS)
        found: bytes = await self._redis.run(TAKE, self._keys(scope, entry), *arguments)
        states: dict[bytes, State] = {b"taken": "free", b"stored": "stored", b"not_kept": "not_kept"}
        return states.get(found, "flying")

    def release(self, scope: Scope, entry: EntryId, token: bytes) -> None:
        """End a flight in the background, because its leader has gone: a follower should try."""
        self._start(self._released(scope, entry, token))

    async def _released(self, scope: Scope, entry: EntryId, token: bytes) -> None:
        with contextlib.suppress(RedisFailed):  # it expires
            await self.end(scope, entry, token, kept=False, again=True)

    def _release_taken(self, scope: Scope, entry: EntryId, token: bytes, taking: "asyncio.Task[State]") -> None:
        if not taking.cancelled() and (taking.exception() is not None or taking.result() == "free"):
            self.release(scope, entry, token)

    def _start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def renew(self, flights: Sequence[tuple[Scope, EntryId, bytes]]) -> int:
        """Renew the leases of flights, each with its token, that have not ended; return how many. Raises RedisAway."""
        renewed = [flight for flight in flights if flight[2].startswith(RENEWED)]
        if not renewed:
            return 0

        def add(pipe: Any) -> None:
            for scope, entry, token in renewed:
                pipe.eval(_RENEW, 1, self._keys(scope, entry)[1], token, self._lease_ms)

        return sum(done == 1 for done in await self._redis.ask_each(add))

    async def close(self) -> None:
        """Wait until flights whose leader has gone were ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

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
        flight: bytes | None = await self._redis.run(_FLYING, self._keys(scope, entry)[1:], self._longest_ms, LONGEST_LEASE_MS)
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
                wait.outcome.cancel()  # ends the poll as well if redis-py swallows the poll's cancellation
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
                outcome.exception()  # if all callers have gone, nobody else reads it, and it is not a bug

    def _notify(self, scope: Scope, entry: EntryId, state: State) -> None:
        wait = self._waits.pop((scope, entry), None)
        if wait is not None and not wait.outcome.done():
            wait.outcome.set_result(state)

    def _keys(self, scope: Scope, entry: EntryId) -> tuple[str, str]:
        return layout.key(scope, "e", layout.text(entry)), layout.key(scope, "f", layout.text(entry))
