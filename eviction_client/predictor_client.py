"""Asks the sidecar, off the serving path: one stream per engine, answers collected until the request ends.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
No answer, for whatever reason, is ``None``: the blocks get no credit. An answer that comes after the request has ended
(:meth:`PredictorClient.leave`) is handed out by :meth:`PredictorClient.late_answers`.

A *supervisor* thread connects, watches deadlines and reconnects; what happens on one connection, and in which threads, is
:mod:`eviction_client.connection`'s. It is gRPC's synchronous API because grpc.aio has one poller per process, shared by all
event loops: an engine that uses it in another thread would wake ours, and ours theirs. Make a client after the engine has
forked: threads do not survive a fork.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from redis.backoff import EqualJitterBackoff

from eviction_client.book import TICK_S, Book, PredictorCounters, Request
from eviction_client.connection import Connection
from eviction_client.messages import Prediction, Question
from lpc.wire.access import Access

logger = logging.getLogger(__name__)

MAX_TIMEOUT_S: Final = 600.0
BACKOFF_CAP_S: Final = 5.0
BACKOFF_BASE_S: Final = 0.05


class PredictorClient:
    """The engine's side of one PredictStream. Thread-safe; no public method blocks (but ``close``) or raises.

    Args:
        address: host:port or unix:///path/to/socket.
        served_model: name under which the sidecar knows the engine's tokenizer, for ``ask`` calls that give none.
        timeout_s: age at which an answer is worthless, for ``ask`` calls that give none.
        capacity: requests remembered, waiting and answered together.
        access: says how to get in (TLS, token); asked for every connection. Without it: in plain text, without a token.
        connect_timeout_s: time that a connection may take to become ready.
        silence_s: longest silence on a stream on which requests wait.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        served_model: str = "",
        timeout_s: float = 10.0,
        capacity: int = 8192,
        access: Callable[[], Access] = Access,
        connect_timeout_s: float = 5.0,
        silence_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._served_model = served_model
        self._timeout_s = timeout_s
        self._access = access
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._clock = clock
        self._book = Book(capacity)
        self._connection: Connection | None = None
        """The one that is up; guarded by the book's lock."""
        self._connections = 0
        self._logged: bool | None = None
        """The last line in the log: connected, or not; None before the first."""
        self._backoff = EqualJitterBackoff(cap=BACKOFF_CAP_S, base=BACKOFF_BASE_S)
        self._supervisor = threading.Thread(target=self._supervise, name="lpc-predictor", daemon=True)
        self._supervisor.start()

    # The scheduler's side.

    def ask(
        self,
        request_id: Hashable,
        *,
        token_ids: Sequence[int],
        served_model: str | None = None,
        turn_count: int | None = None,
        category: str = "",
        conversation_id: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Ask whether the conversation of a request continues. A second ask under one id replaces the first.

        Args:
            request_id: the engine's; it does not leave the process.
            token_ids: the rendered prompt. Not copied: it must not change until the answer is there.
            turn_count: user turns so far, if the engine knows.
            timeout_s: seconds from now after which an answer is worthless.
        """
        book = self._book
        try:
            now = self._clock()
            patience = self._timeout_s if timeout_s is None else min(float(timeout_s), MAX_TIMEOUT_S)
            model = self._served_model if served_model is None else served_model
            question = Question(token_ids, model, turn_count, category, conversation_id)
            request = Request(request_id, question, now, now + patience)
            with book.changed:
                if not book.closed and book.enter(request) and self._connection is not None:
                    self._connection.excuse(now)
        except Exception:
            # An id that cannot be hashed, a time-out that is not a number: whatever it is, serving goes on.
            with book.changed:
                book.count(asked=1, rejected=1)

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer and forget the request; None, and nothing changes, when there is none yet.

        Callers that are done with a request that has no answer call :meth:`forget`.
        """
        try:
            with self._book.changed:
                return self._book.take(request_id)
        except TypeError:
            return None

    def leave(self, request_id: Hashable) -> bool:
        """Say that a request has ended whose answer is not there; return whether it may still come, until its deadline."""
        try:
            with self._book.changed:
                return self._book.leave(request_id)
        except TypeError:
            return False

    def late_answers(self) -> list[tuple[Hashable, Prediction | None]]:
        """Return what has become of requests that were left: their answers; None for each that gets none."""
        if not self._book.anything_late:
            return []
        with self._book.changed:
            return self._book.take_late()

    def forget(self, request_id: Hashable) -> None:
        """Forget a request; tell the sidecar if it still works on it. Unknown ids are ignored."""
        try:
            with self._book.changed:
                if self._book.drop(request_id, "forgotten") and self._connection is not None:
                    self._connection.excuse(self._clock())
        except TypeError:
            return

    @property
    def healthy(self) -> bool:
        """Whether a stream to the sidecar is up."""
        return self._connection is not None

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""
        return self._book.counters

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return self._book.waiting

    def close(self, timeout: float = 2.0) -> None:
        """Hang up and end the threads, within ``timeout`` seconds. Later calls do nothing."""
        with self._book.changed:
            self._book.close()
        if threading.current_thread() is not self._supervisor:
            self._supervisor.join(timeout)

    # The supervisor's thread.

    def _supervise(self) -> None:
        book = self._book
        failures = 0
        while not book.closed:
            connection = Connection(book, self._clock)
            if connection.open(self._address, self._access, self._connect_timeout_s):
                self._connected(connection)
                self._watch(connection)
            failures = 0 if connection.heard else min(failures + 1, 16)
            self._hang_up(connection)
            if book.closed:
                return
            retry_at = self._clock() + self._backoff.compute(failures)
            with book.changed:
                while not book.closed and (left := retry_at - self._clock()) > 0:
                    book.changed.wait(min(left, TICK_S))
                    book.expire(self._clock())

    def _connected(self, connection: Connection) -> None:
        with self._book.changed:
            self._connection = connection
            self._connections += 1
            if self._connections > 1:
                self._book.count(reconnects=1)
        if self._logged is not True:
            logger.info("connected to the predictor at %s", self._address)
        self._logged = True
        connection.start_reading()

    def _watch(self, connection: Connection) -> None:
        """Keep deadlines until the connection is over."""
        book = self._book
        with book.changed:
            while not connection.over and not book.closed:
                now = self._clock()
                book.expire(now)
                if connection.silent_for(now) > self._silence_s:
                    return
                book.wait()

    def _hang_up(self, connection: Connection) -> None:
        book = self._book
        with book.changed:
            connection.over = True
            was_connected, self._connection = self._connection is not None, None
            book.stream_broke()
            if not book.closed:
                book.count(connection_failures=1)
        connection.close()
        if not book.closed and (was_connected or self._logged is None):
            if self._logged is not False:
                logger.warning(
                    "no connection to the predictor at %s (%s); requests get no credit until it is back",
                    self._address,
                    connection.reason,
                )
            self._logged = False
