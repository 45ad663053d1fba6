"""Single flight: of all who ask the same at once, one asks the engine and the others wait for what it hands in.

A flight is a key in Redis with a life of its own, so that a leader who dies frees it. The followers of one sidecar wait
together: however many they are, one of them looks, every 10 to 50 ms. When the answer is handed in at the same sidecar they
know at once.
"""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from lpc.responses import layout
from lpc.responses.canonical import EntryId, Scope
from lpc.wire.redis_reach import RedisReach

TOKEN_BYTES: Final = 12
NOT_KEPT: Final = b"-"
"""Stands in place of a flight whose answer was not kept: the others need not wait for another one like it."""
NOT_KEPT_MS: Final = 2000
FIRST_POLL_S: Final = 0.01
LONGEST_POLL_S: Final = 0.05

Taken: TypeAlias = bytes
State: TypeAlias = Literal["stored", "free", "flying", "not_kept"]

_TAKE: Final = """
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then return 'stored' end
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

    ``flight_s``: after so many seconds a leader that has not come back is taken for dead.
    """

    def __init__(self, redis: RedisReach, flight_s: float) -> None:
        self._redis = redis
        self._flight_ms = max(1, int(flight_s * 1000))
        self._waits: dict[tuple[Scope, EntryId], _Wait] = {}

    async def take(self, scope: Scope, entry: EntryId, *, unless_stored: bool = True) -> tuple[State, Taken]:
        """Become the leader of a request; "free" and the flight's token where that was possible. Raises RedisFailed.

        ``unless_stored``: not where an entry is there; False where the one that is there is of no use.
        """
        token = secrets.token_hex(TOKEN_BYTES).encode()
        keys = self._keys(scope, entry)
        arguments = (token, self._flight_ms, int(unless_stored))
        found: bytes = await self._redis.run(_TAKE, keys, *arguments)
        if found == b"taken":
            return "free", token
        return {b"stored": "stored", b"not_kept": "not_kept"}.get(found, "flying"), b""  # type: ignore[return-value]

    async def end(self, scope: Scope, entry: EntryId, token: Taken, *, kept: bool, again: bool = False) -> None:
        """End a flight, if it is still this one's. Raises RedisFailed.

        Args:
            scope, entry, token: of the flight.
            kept: the answer is stored: the store has ended the flight with it.
            again: nothing came of it, and one of the others should try.
        """
        if kept:
            self._tell(scope, entry, "stored")
            return
        key = self._keys(scope, entry)[1]
        for_others = 0 if again else NOT_KEPT_MS
        ended = await self._redis.run(_END, [key], token, for_others)
        if ended:
            self._tell(scope, entry, "free" if again else "not_kept")

    async def flying(self, scope: Scope, entry: EntryId) -> bool:
        """Say whether a caller asks the engine now. Raises RedisFailed."""
        flight: bytes | None = await self._redis.read("GET", self._keys(scope, entry)[1])
        return flight not in (None, NOT_KEPT)

    async def wait(self, scope: Scope, entry: EntryId, wait_s: float) -> State:
        """Wait until a flight has ended, at most so long; return what became of it. Raises RedisFailed."""
        place = (scope, entry)
        wait = self._waits.get(place)
        if wait is None:
            outcome: asyncio.Future[State] = asyncio.get_running_loop().create_future()
            wait = self._waits[place] = _Wait(outcome, asyncio.create_task(self._poll(place, outcome)))
        wait.waiting += 1
        try:
            done, _ = await asyncio.wait((wait.outcome,), timeout=wait_s)
        finally:
            wait.waiting -= 1
            if not wait.waiting:
                wait.poll.cancel()
                if self._waits.get(place) is wait:
                    del self._waits[place]
        return wait.outcome.result() if done else "flying"

    async def _poll(self, place: tuple[Scope, EntryId], outcome: "asyncio.Future[State]") -> None:
        keys = self._keys(*place)
        pause_s = FIRST_POLL_S
        try:
            while not outcome.done():
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
                record, flight = await self._redis.ask_all(lambda pipe: pipe.exists(keys[0]).get(keys[1]))
                if flight is None or flight == NOT_KEPT:
                    self._tell(*place, "not_kept" if flight else "stored" if record else "free")
                    return
        except Exception as error:  # waiting callers must get it
            if not outcome.done():
                outcome.set_exception(error)

    def _tell(self, scope: Scope, entry: EntryId, state: State) -> None:
        wait = self._waits.pop((scope, entry), None)
        if wait is not None and not wait.outcome.done():
            wait.outcome.set_result(state)

    def _keys(self, scope: Scope, entry: EntryId) -> tuple[str, str]:
        return layout.key(scope, "e", layout.text(entry)), layout.key(scope, "f", layout.text(entry))
