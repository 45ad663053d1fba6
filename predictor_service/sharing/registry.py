"""Shares a sidecar's turns with the fleet, in one thread that uses Redis.

A turn's answer waits for Redis at most PATIENCE_S, usually two or three round trips. The turn is then stored, so that a next
turn at once after the answer finds it from any sidecar. Turns that arrive meanwhile are sent in one pipeline. If Redis fails,
turns are not looked up, answers do not wait, and one message is logged.
"""

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Literal, NamedTuple, TypeAlias

from redis.backoff import EqualJitterBackoff

from lpc.clock import MonotoneClock
from lpc.model.returns.hazards import EDGES
from lpc.model.returns.memory import NO_PAST, Past
from lpc.model.returns.users import NO_USER, UserPast
from lpc.wire.bugs import log_bug
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health, cause_of
from predictor_service.labels.names import CLIENT_BYTES, Names
from predictor_service.labels.tracker import TurnTracker
from predictor_service.labels.turn import Turn
from predictor_service.metrics import Metrics
from predictor_service.sharing import records
from predictor_service.sharing.records import ID_BYTES, SharedTurn

log = logging.getLogger(__name__)

PATIENCE_S: Final = 0.05
"""Longest time that an answer waits for Redis."""
RETURNS_S: Final = 1.0
"""Interval at which returns to other sidecars are read."""
REST_S: Final = 0.25
"""Interval at which the thread checks whether a failed Redis may be tried again."""
KEY_S: Final = 600.0
"""Interval at which the fleet's key is read again."""
MAX_QUEUED: Final = 4096
"""Turns queued for Redis, above which new ones are not looked up."""
MAX_PIPELINE: Final = 256
"""Turns of one pipeline."""
FULL_S: Final = 600.0
"""Time for which no users are shared after Redis was full."""
CLOSE_S: Final = 2.0
LONGEST_GAP_S: Final = float(EDGES[-1])
"""Shortest bound of a gap between two turns that is believed. A longer label horizon extends it."""

Found: TypeAlias = Literal["first", "own", "elsewhere", "repeated", "unasked"]
"""Where the previous turn was found: nowhere; here; at another sidecar. repeated: another sidecar got this same turn before.
unasked: Redis was not reachable in time."""


class _Lookup(NamedTuple):
    """A turn, its names under the fleet's key, and the pending result, cancelled by a caller that does not wait any more."""

    turn: Turn
    names: Names
    answer: "Future[Found]"

    def resolve(self, found: Found) -> None:
        """Set the result; thread-safe."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(found)


class TurnRegistry:
    """Publishes this sidecar's turns, and finds those of other sidecars.

    Args:
        redis: connection to the fleet's Redis.
        tracker: this sidecar's turns, which may return to other sidecars.
        clock: time of the turns. Times in Redis are those of the wall clock, because other machines read them.

    Attributes:
        key: key of the fleet's hashes; None while Redis is unreachable.
    """

    def __init__(self, redis: Connection, tracker: TurnTracker, metrics: Metrics, clock: MonotoneClock) -> None:
        self.key: bytes | None = None
        self._redis = redis
        self._tracker = tracker
        self._metrics = metrics
        self._clock = clock
        self._sidecar = os.urandom(ID_BYTES)
        backoff = EqualJitterBackoff(cap=30.0, base=0.5)
        self._health = Health(redis, "of shared turns", metrics.redis_refusals("turns"), backoff=backoff)
        self._own: weakref.WeakValueDictionary[bytes, Turn] = weakref.WeakValueDictionary()
        """This sidecar's turns by id in Redis, while `TurnTracker` stores them; used by the thread only."""
        self._clients: set[bytes] = set()
        """Clients that named users: the first bytes of users' names."""
        self._users_at = 0.0
        """Time from which users are shared, monotonic seconds."""
        self._queue: queue.Queue[_Lookup | None] = queue.Queue(MAX_QUEUED)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turn-registry", daemon=True)
        metrics.turns_shared.set_function(lambda: self.key is not None)
        self._thread.start()

    async def arrive(self, turn: Turn, names: Names | None) -> Found:
        """Share a turn that has just arrived, and link it to the previous one; return where that was found.

        ``names``: the turn's names under the fleet's key; None: there is no key.
        """
        found: Found = "unasked"
        if names is not None:
            lookup = _Lookup(turn, names, Future())
            with contextlib.suppress(queue.Full, TimeoutError):
                self._queue.put_nowait(lookup)
                found = await asyncio.wait_for(asyncio.wrap_future(lookup.answer), PATIENCE_S)
        self._metrics.turns.labels(found).inc()
        return found

    def close(self) -> None:
        """Stop using Redis."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)

    # The methods below run in the thread.

    def _run(self) -> None:
        returns_at = keyed_at = 0.0
        while not self._closing.is_set():
            lookups: list[_Lookup] = []
            try:
                if self._health.resting:
                    self._closing.wait(REST_S)
                    continue
                if self.key is None or time.monotonic() - keyed_at > KEY_S:
                    self.key, keyed_at = records.fleet_key(self._redis.client), time.monotonic()
                    self._health.answered()
                lookups = self._gather(RETURNS_S - (time.monotonic() - returns_at))
                if lookups:
                    self._share(lookups)
                if time.monotonic() - returns_at >= RETURNS_S:
                    self._take_returns()
                    returns_at = time.monotonic()
                if self._health.outdated:
                    self._reconnect()
            except Exception as error:  # an error of Redis or a bug: each sidecar goes on by itself
                if not isinstance(error, ERRORS):
                    log_bug(log, "the shared turns", error)
                self.key = None
                self._health.failed(error)
                self._reconnect()
                self._refuse(lookups)
        self._refuse([])
        self._redis.close()

    def _reconnect(self) -> None:
        """Close the connections, so that the next command opens new ones."""
        self._health.outdated = False
        self._redis.close()

    def _gather(self, timeout: float) -> list[_Lookup]:
        """Return the queued lookups; wait at most ``timeout`` seconds for the first."""
        lookups: list[_Lookup] = []
        with contextlib.suppress(queue.Empty):
            one = self._queue.get(timeout=max(timeout, 0.001))
            while one is not None:
                lookups.append(one)
                if len(lookups) >= MAX_PIPELINE:
                    break
                one = self._queue.get_nowait()
        return [one for one in lookups if not one.answer.cancelled()]

    def _refuse(self, lookups: list[_Lookup]) -> None:
        """Resolve these and all queued lookups as unasked."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (one := self._queue.get_nowait()) is not None:
                    lookups.append(one)
        for one in lookups:
            if not one.answer.done():
                one.resolve("unasked")

    def _share(self, lookups: Sequence[_Lookup]) -> None:
        """Find the previous turn of each turn, store a record for the next turn, and resolve the lookup."""
        client = self._redis.client
        # Two turns of one conversation in the same pipeline do not find each other here; `TurnTracker` has linked them already.
        ahead = self._clock.ahead()
        new: list[_Lookup] = []
        for one, stored in zip(lookups, records.look_up(client, [one.names.own for one in lookups]), strict=True):
            if isinstance(stored, Exception):
                self._health.refused(stored)
                one.resolve("unasked")
            elif stored == "invalid":  # the script that appends this turn's record replaces it
                self._invalid("turns")
                new.append(one)
            elif any(self._same(one, shared) for shared in stored):
                one.resolve("repeated")
            else:
                new.append(one)
        wanted = [
            (one.names.before, one.turn.previous_id, one.turn.sent.turn_count) for one in new if one.names.before is not None
        ]
        taken = iter(records.take(client, self._sidecar, wanted))
        users = self._users_of(new, ahead)
        returns: list[tuple[SharedTurn, float]] = []
        left: list[tuple[bytes, SharedTurn]] = []
        answers: list[tuple[_Lookup, Found]] = []
        for one in new:
            turn, names = one.turn, one.names
            before = None if names.before is None else next(taken)
            found: Found = "own" if turn.previous_id else "first"
            if isinstance(before, Exception):
                self._health.refused(before)
                one.resolve("unasked")
                continue
            if before == "invalid":
                self._invalid("turns")
            elif before is not None and not turn.previous_id:
                returns.append((before, turn.arrival.asked_at + ahead))
                found = "elsewhere"
                self._tracker.continue_from(turn, before.conversation, self._past_of(before, ahead))
            if names.user in users:  # two turns of a user: the second follows the first
                users[names.user] = self._tracker.user_elsewhere(turn, users[names.user])
            turn.shared_id = os.urandom(ID_BYTES)
            self._own[turn.shared_id] = turn
            arrival, count = turn.arrival, turn.sent.turn_count
            past = _later(arrival.past, ahead)
            shared = SharedTurn(self._sidecar, turn.shared_id, names.text, arrival.conversation, count, past)
            left.append((names.own, shared))
            answers.append((one, found))
        known = [(name, past._replace(latest=past.latest + ahead)) for name, past in users.items()]
        self._clients.update(name[:CLIENT_BYTES] for name, _ in known)
        if time.monotonic() < self._users_at:
            known = []
        put = records.put(client, left, self._tracker.horizon_s, returns, known)
        if self._clients and time.monotonic() >= self._users_at and any(map(_is_full, put)):
            # Without a turn its conversation is not found. Without its user a prediction only knows less.
            self._users_at = time.monotonic() + FULL_S
            records.shed_users(client, self._clients)
            answered = [answer for answer in put[: len(left) + len(returns)] if not _is_full(answer)]
            full = [one for one, answer in zip([*left, *returns], put, strict=False) if _is_full(answer)]
            turns = [one for one in left if one in full]
            put = [*answered, *records.put(client, turns, self._tracker.horizon_s, [one for one in returns if one in full])]
        for answer in put:
            if isinstance(answer, Exception):
                self._health.refused(answer)
        for one, found in answers:
            one.resolve(found)

    def _users_of(self, lookups: Sequence[_Lookup], ahead: float) -> dict[bytes, UserPast]:
        """Return what the fleet knows of the turns' users, in this sidecar's time, without users whose key is refused."""
        names = list(dict.fromkeys(one.names.user for one in lookups if one.names.user))
        users: dict[bytes, UserPast] = {}
        for name, found in zip(names, records.look_up_users(self._redis.client, names), strict=True):
            if isinstance(found, Exception):
                self._health.refused(found)
                continue
            users[name] = NO_USER
            past = found._replace(latest=found.latest - ahead) if isinstance(found, UserPast) else None
            if past is not None and records.plausible_user(past, self._clock.now()):
                users[name] = past
            elif found is not None:
                self._invalid("users")
        return users

    def _past_of(self, turn: SharedTurn, ahead: float) -> Past:
        """Return the history in a record, in this sidecar's time; an empty one if no sidecar would have written it."""
        past = _later(turn.past, -ahead)
        if records.plausible(past, self._clock.now(), max(self._tracker.horizon_s, LONGEST_GAP_S)):
            return past
        self._invalid("turns")
        return NO_PAST

    def _invalid(self, what: str) -> None:
        self._metrics.invalid_values.labels(what).inc()

    def _same(self, one: _Lookup, shared: SharedTurn) -> bool:
        """Return whether another sidecar got the same turn before."""
        return (
            one.names.certain
            and shared.text == one.names.text
            and shared.turn_count == one.turn.sent.turn_count
            and shared.sidecar != self._sidecar
        )

    def _take_returns(self) -> None:
        """Record which of this sidecar's turns have returned to other sidecars."""
        found = records.take_returns(self._redis.client, self._sidecar)
        if isinstance(found, Exception):
            self._health.refused(found)
            return
        if found == "invalid":
            self._invalid("returns")
            return
        now, ahead = self._clock.now(), self._clock.ahead()
        for name, wall_at in found:
            turn, at = self._own.get(name), wall_at - ahead
            if turn is not None and turn.next_at is None:
                if not records.plausible_return(at, turn.arrival.asked_at, now):
                    self._invalid("returns")
                    at = now  # the turn has returned, a moment ago unless Redis was unreachable
                self._tracker.returned_elsewhere(turn, at)
                self._metrics.turns.labels("heard").inc()


def _is_full(answer: object) -> bool:
    return isinstance(answer, Exception) and cause_of(answer) == "OOM"


def _later(past: Past, seconds: float) -> Past:
    """Return a history whose arrivals are later by some seconds."""
    return past._replace(history=past.history._replace(latest=past.history.latest + seconds))
