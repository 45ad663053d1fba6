"""A sidecar's side of the turns that a fleet shares: one thread that speaks to Redis, and what is asked of it.

A turn's answer waits for Redis for PATIENCE_S at most, a round trip or two as a rule. What gathers meanwhile goes in one
pipeline. Whatever is wrong with Redis: turns are not asked about, answers do not wait, the log says it once.
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

from lpc.wire.bugs import log_bug
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health
from predictor_service.labels.memory import Labels, Turn
from predictor_service.labels.names import Names
from predictor_service.metrics import Metrics
from predictor_service.sharing import records
from predictor_service.sharing.records import ID_BYTES, SharedTurn

log = logging.getLogger(__name__)

PATIENCE_S: Final = 0.05
"""Longest time that an answer waits for Redis: it takes one on a machine that infers anyway."""
RETURNS_S: Final = 1.0
"""Seconds between two looks for returns to other sidecars."""
REST_S: Final = 0.25
"""Seconds between two looks whether Redis, which failed, is asked again."""
KEY_S: Final = 600.0
"""Seconds between two looks whether the fleet's key is still the same."""
MOST_ASKED: Final = 4096
"""Turns that wait for Redis; more are not asked about."""
AT_ONCE: Final = 256
"""Turns of one pipeline."""
CLOSE_S: Final = 2.0

Found: TypeAlias = Literal["first", "own", "elsewhere", "repeated", "unasked"]
"""What is known of the turn before: there is none; it was here, or at another sidecar; it is this turn that was there; or
nobody could be asked."""


class _Asked(NamedTuple):
    """A turn, its names in the fleet's hashes, and what is answered; cancelled if nobody waits for it any more."""

    turn: Turn
    names: Names
    answer: "Future[Found]"

    def resolve(self, found: Found) -> None:
        """Answer, from any thread."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(found)


class TurnRegistry:
    """Shares this sidecar's turns with the others, and finds theirs.

    Args:
        redis: of the fleet.
        labels: of this sidecar, whose turns may return elsewhere.

    Attributes:
        key: of the fleet's hashes; None while Redis is away.
    """

    def __init__(self, redis: Connection, labels: Labels, metrics: Metrics) -> None:
        self.key: bytes | None = None
        self._redis = redis
        self._labels = labels
        self._metrics = metrics
        self._sidecar = os.urandom(ID_BYTES)
        backoff = EqualJitterBackoff(cap=30.0, base=0.5)
        self._health = Health(redis, "of shared turns", metrics.redis_refusals("turns"), backoff=backoff)
        self._mine: weakref.WeakValueDictionary[bytes, Turn] = weakref.WeakValueDictionary()
        """By their ids in Redis, as long as they are remembered; the thread's alone."""
        self._queue: queue.Queue[_Asked | None] = queue.Queue(MOST_ASKED)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turn-registry", daemon=True)
        metrics.turns_shared.set_function(lambda: self.key is not None)
        self._thread.start()

    async def arrive(self, turn: Turn, names: Names | None) -> Found:
        """Share a turn that has just arrived, and place it behind the one before; return what was found.

        ``names``: of the turn, in the fleet's hashes; None while there is no key.
        """
        found: Found = "unasked"
        if names is not None:
            asked = _Asked(turn, names, Future())
            with contextlib.suppress(queue.Full, TimeoutError):
                self._queue.put_nowait(asked)
                found = await asyncio.wait_for(asyncio.wrap_future(asked.answer), PATIENCE_S)
        self._metrics.turns.labels(found).inc()
        return found

    def close(self) -> None:
        """Stop using Redis."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)

    # In the thread.

    def _run(self) -> None:
        returns_at = keyed_at = 0.0
        while not self._closing.is_set():
            asked: list[_Asked] = []
            try:
                if self._health.resting:
                    self._closing.wait(REST_S)
                    continue
                if self.key is None or time.monotonic() - keyed_at > KEY_S:
                    self.key, keyed_at = records.fleet_key(self._redis.client), time.monotonic()
                    self._health.answered()
                asked = self._gather(RETURNS_S - (time.monotonic() - returns_at))
                if asked:
                    self._share(asked)
                if time.monotonic() - returns_at >= RETURNS_S:
                    self._take_returns()
                    returns_at = time.monotonic()
            except Exception as error:  # of Redis, or a fault of ours: serving goes on, each sidecar by itself
                if not isinstance(error, ERRORS):
                    log_bug(log, "the shared turns", error)
                self.key = None
                self._redis.close()
                self._health.failed(error)
                self._refuse(asked)
        self._refuse([])
        self._redis.close()

    def _gather(self, patience: float) -> list[_Asked]:
        """Return what is asked, at once if there is anything, else after so many seconds nothing."""
        asked: list[_Asked] = []
        with contextlib.suppress(queue.Empty):
            one = self._queue.get(timeout=max(patience, 0.001))
            while one is not None:
                asked.append(one)
                if len(asked) >= AT_ONCE:
                    break
                one = self._queue.get_nowait()
        return [one for one in asked if not one.answer.cancelled()]

    def _refuse(self, asked: list[_Asked]) -> None:
        """Answer these, and all that wait, that nobody could be asked."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (one := self._queue.get_nowait()) is not None:
                    asked.append(one)
        for one in asked:
            if not one.answer.done():
                one.resolve("unasked")

    def _share(self, asked: Sequence[_Asked]) -> None:
        """Find what came before each turn, answer, and leave what the next ones need."""
        client = self._redis.client
        # One of two turns that came at once cannot know that the other is its next one; labels have seen to that.
        new: list[_Asked] = []
        for one, there in zip(asked, records.look(client, [one.names.own for one in asked]), strict=True):
            if isinstance(there, Exception):
                self._health.refused(there)
                one.resolve("unasked")
            elif any(self._same(one, known) for known in there):
                one.resolve("repeated")
            else:
                new.append(one)
        wanted = [(one.names.before, one.turn.follows, one.turn.turn_count) for one in new if one.names.before is not None]
        taken = iter(records.take(client, self._sidecar, wanted))
        returns: list[tuple[SharedTurn, float]] = []
        left: list[tuple[bytes, SharedTurn]] = []
        for one in new:
            turn, names = one.turn, one.names
            before = None if names.before is None else next(taken)
            found: Found = "own" if turn.follows else "first"
            if isinstance(before, Exception):
                self._health.refused(before)
                one.resolve("unasked")
                continue
            if before is not None and not turn.follows:
                returns.append((before, turn.asked_at))
                found = "elsewhere"
                turn.follow(before.past)
                turn.conversation = before.conversation
            turn.shared_as = os.urandom(ID_BYTES)
            self._mine[turn.shared_as] = turn
            shared = SharedTurn(self._sidecar, turn.shared_as, names.text, turn.conversation, turn.turn_count, turn.past)
            left.append((names.own, shared))
            one.resolve(found)
        for answer in records.put(client, left, self._labels.horizon_s) + records.put_returns(client, returns):
            if isinstance(answer, Exception):
                self._health.refused(answer)

    def _same(self, one: _Asked, known: SharedTurn) -> bool:
        """Say whether a shared turn is the same one, asked elsewhere."""
        return (
            one.names.certain
            and known.text == one.names.text
            and known.turn_count == one.turn.turn_count
            and known.sidecar != self._sidecar
        )

    def _take_returns(self) -> None:
        """Learn which of this sidecar's turns have returned elsewhere."""
        found = records.take_returns(self._redis.client, self._sidecar)
        if isinstance(found, Exception):
            self._health.refused(found)
            return
        for name, at in found:
            turn = self._mine.get(name)
            if turn is not None and turn.next_at is None:
                self._labels.returned_elsewhere(turn, at)
                self._metrics.turns.labels("heard").inc()
