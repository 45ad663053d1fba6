"""A sidecar's part in the fleet's sightings: one thread that speaks to Redis, and what is asked of it.

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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from redis.backoff import EqualJitterBackoff

from lpc.wire.bugs import log_bug
from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health
from predictor_service.labels.memory import Labels, Turn
from predictor_service.labels.names import Names
from predictor_service.metrics import Metrics
from predictor_service.sightings import board
from predictor_service.sightings.record import ID_BYTES, Sighting

log = logging.getLogger(__name__)

PATIENCE_S: Final = 0.05
"""Longest time that an answer waits for Redis: it takes one on a machine that infers anyway."""
HEAR_S: Final = 1.0
"""Seconds between two looks for news."""
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


@dataclass(eq=False, slots=True)
class _Asked:
    turn: Turn
    names: Names
    answer: "asyncio.Future[Found]"
    loop: asyncio.AbstractEventLoop
    given_up: bool = False

    def resolve(self, found: Found) -> None:
        """Answer, from any thread."""
        if not self.given_up:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                self.loop.call_soon_threadsafe(self._set, found)

    def _set(self, found: Found) -> None:
        if not self.answer.done():
            self.answer.set_result(found)


class Sightings:
    """Tells other sidecars of this one's turns, and hears of theirs.

    Args:
        redis: of the fleet.
        labels: of this sidecar, whose turns may return elsewhere.
        clock: seconds since the epoch.

    Attributes:
        key: of the fleet's hashes; None while Redis is away.
    """

    def __init__(
        self,
        redis: Connection,
        labels: Labels,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.key: bytes | None = None
        self._redis = redis
        self._labels = labels
        self._metrics = metrics
        self._clock = clock
        self._sidecar = os.urandom(ID_BYTES)
        self._health = Health(redis, "of sightings", metrics.redis_refusals("sightings"))
        self._mine: OrderedDict[bytes, Turn] = OrderedDict()
        """Turns that others may see the next one of, oldest first; the thread's alone."""
        self._queue: queue.Queue[_Asked | None] = queue.Queue(MOST_ASKED)
        self._backoff = EqualJitterBackoff(cap=30.0, base=0.5)
        self._failures = 0
        self._said_away = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sightings", daemon=True)
        metrics.watch_sightings(lambda: self.key is not None)
        self._thread.start()

    async def arrive(self, turn: Turn, names: Names | None) -> Found:
        """Leave a sighting of a turn that has just arrived, and place it behind the one before; return what was found.

        ``names``: of the turn, in the fleet's hashes; None while there is no key.
        """
        found: Found = "unasked"
        loop = asyncio.get_running_loop()
        if names is not None:
            asked = _Asked(turn, names, loop.create_future(), loop)
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(asked)
                await asyncio.wait((asked.answer,), timeout=PATIENCE_S)
                if asked.answer.done():
                    found = asked.answer.result()
                asked.given_up = True
        self._metrics.sightings.labels(found).inc()
        return found

    def close(self) -> None:
        """Stop using Redis."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)

    # In the thread.

    def _run(self) -> None:
        heard = keyed = 0.0
        while not self._closing.is_set():
            asked: list[_Asked] = []
            try:
                if self.key is None or time.monotonic() - keyed > KEY_S:
                    self.key = board.fleet_key(self._redis.client)
                    keyed = time.monotonic()
                    self._found()
                asked = self._gather(HEAR_S - (time.monotonic() - heard))
                if asked:
                    self._round(asked)
                if time.monotonic() - heard >= HEAR_S:
                    self._hear()
                    heard = time.monotonic()
            except Exception as error:  # of Redis, or a fault of ours: serving goes on, each sidecar by itself
                self._lost(error)
                for one in asked:
                    one.resolve("unasked")
                self._drain()
                self._failures = min(self._failures + 1, 16)
                self._closing.wait(self._backoff.compute(self._failures))
        self._drain()
        self._redis.close()

    def _gather(self, patience: float) -> list[_Asked]:
        """Return what is asked, at once if there is anything, else after so many seconds nothing."""
        asked: list[_Asked] = []
        try:
            first = self._queue.get(timeout=max(patience, 0.001))
            while first is not None:
                asked.append(first)
                if len(asked) >= AT_ONCE:
                    break
                first = self._queue.get_nowait()
        except queue.Empty:
            pass
        return [one for one in asked if not one.given_up]

    def _drain(self) -> None:
        while True:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return
            if one is not None:
                one.resolve("unasked")

    def _round(self, asked: Sequence[_Asked]) -> None:
        """Find what came before each turn, answer, and leave what the next ones need."""
        client = self._redis.client
        # One of two turns that came at once cannot know that the other is its next one; labels have seen to that.
        looked = board.look(client, [one.names.own for one in asked])
        news: list[_Asked] = []
        for one, there in zip(asked, looked, strict=True):
            if isinstance(there, Exception):
                self._health.refused(there)
                one.resolve("unasked")
            elif any(self._same(one, sighting) for sighting in there):
                one.resolve("repeated")
            else:
                news.append(one)
        follows = [one for one in news if one.names.before is not None]
        wanted = [(one.names.before or b"", one.turn.follows, one.turn.turn_count) for one in follows]
        taken = dict(zip(map(id, follows), board.take(client, self._sidecar, wanted), strict=True)) if wanted else {}
        told: list[tuple[Sighting, float]] = []
        left: list[tuple[bytes, Sighting]] = []
        for one in news:
            turn, before = one.turn, taken.get(id(one))
            found: Found = "own" if turn.follows else "first"
            if isinstance(before, Exception):
                self._health.refused(before)
                one.resolve("unasked")
                continue
            if turn.follows:
                self._mine.pop(turn.follows, None)
            elif before is not None:
                told.append((before, turn.asked_at))
                found = "elsewhere"
                turn.follow(before.past)
                turn.conversation = before.conversation
            turn.shared_as = os.urandom(ID_BYTES)
            self._mine[turn.shared_as] = turn
            if len(self._mine) > 2 * self._labels.capacity:
                self._mine.popitem(last=False)
            text, conversation = one.names.text, turn.conversation
            sighting = Sighting(self._sidecar, turn.shared_as, text, conversation, turn.turn_count, turn.past)
            left.append((one.names.own, sighting))
            one.resolve(found)
        answers = board.put(client, left, self._labels.horizon_s) if left else []
        answers += board.tell(client, told) if told else []
        for answer in answers:
            if isinstance(answer, Exception):
                self._health.refused(answer)

    def _same(self, one: _Asked, sighting: Sighting) -> bool:
        """Say whether a sighting is of the same turn, asked elsewhere."""
        return (
            one.names.certain
            and sighting.text == one.names.text
            and sighting.turn_count == one.turn.turn_count
            and sighting.sidecar != self._sidecar
        )

    def _hear(self) -> None:
        """Learn which of this sidecar's turns have returned elsewhere."""
        heard = board.hear(self._redis.client, self._sidecar)
        if isinstance(heard, Exception):
            self._health.refused(heard)
            heard = []
        for name, at in heard:
            turn = self._mine.pop(name, None)
            if turn is not None:
                self._labels.returned_elsewhere(turn, at)
                self._metrics.sightings.labels("heard").inc()
        now = self._clock()
        while self._mine:
            oldest = next(iter(self._mine))
            if self._mine[oldest].asked_at + self._labels.horizon_s > now:
                break
            del self._mine[oldest]

    def _found(self) -> None:
        self._failures = 0
        if self._said_away:
            self._said_away = False
            log.info("Redis is back: sidecars tell each other of their turns again")

    def _lost(self, error: Exception) -> None:
        if not isinstance(error, ERRORS):
            log_bug(log, "the sightings", error)
        self.key = None
        self._redis.close()
        if not self._said_away:
            self._said_away = True
            log.warning(
                "Redis cannot be used (%s): until it can, a return to another sidecar is not seen", type(error).__name__
            )
