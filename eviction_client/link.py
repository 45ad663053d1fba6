"""One sidecar's place in a client: a thread that connects, watches and reconnects for as long as the sidecar is one of its.

Its connections come one after the other; what waits for an answer when one breaks goes on another, of any sidecar. A sidecar
ends a stream of some age of itself, after answering what it has read: then the next connection is opened at once, nothing is
lost, and nobody calls it a failure.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from redis.backoff import EqualJitterBackoff

from eviction_client.book import TICK_S, Book
from eviction_client.connection import Connection
from eviction_client.peers import Peer
from lpc.wire.access import Access

logger = logging.getLogger(__name__)

BACKOFF_CAP_S: Final = 5.0
BACKOFF_BASE_S: Final = 0.05
RETIRE_S: Final = 30.0
"""How long a sidecar that is not one any more may take for the answers that are under way."""


@dataclass(frozen=True)
class Patience:
    """How long a link waits, seconds: for a connection to become ready; on a silent stream on which requests wait."""

    connect_s: float = 5.0
    silence_s: float = 10.0


class Reachability:
    """Whether any sidecar can be reached; says so in the log when it changes. Guarded by the book's lock.

    Attributes:
        up: None before the first attempt has ended.
    """

    def __init__(self, address: str) -> None:
        self.up: bool | None = None
        self._address = address

    def found(self) -> None:
        """A connection is up."""
        if self.up is not True:
            logger.info("connected to the predictor at %s", self._address)
        self.up = True

    def lost(self, reason: str) -> None:
        """The last connection is over, or none could be made."""
        if self.up is not False:
            logger.warning(
                "no connection to the predictor at %s (%s): no predictions until it is back",
                self._address,
                reason,
            )
        self.up = False


class Link:
    """Keeps a connection to one sidecar up until it is retired or the book is closed."""

    def __init__(
        self,
        peer: Peer,
        connect: Callable[[], Connection],
        book: Book,
        access: Callable[[], Access],
        reachability: Reachability,
        patience: Patience,
        clock: Callable[[], float],
    ) -> None:
        self._peer = peer
        self._connect = connect
        self._book = book
        self._access = access
        self._reachability = reachability
        self._patience = patience
        self._clock = clock
        self._backoff = EqualJitterBackoff(cap=BACKOFF_CAP_S, base=BACKOFF_BASE_S)
        self._connection: Connection | None = None
        self._connections = 0
        self._retired_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="lpc-predictor-link", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Ask the sidecar nothing more; take the answers that are under way, then hang up."""
        with self._book.changed:
            self._retired_at = now = self._clock()
            if self._connection is not None and self._connection.lane is not None:
                self._book.retire(self._connection.lane, now)
            self._book.changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout)

    @property
    def _done(self) -> bool:
        return self._book.closed or self._retired_at is not None

    def _run(self) -> None:
        book = self._book
        failures = 0
        while not self._done:
            began = self._clock()
            connection = self._connect()
            if connection.open(self._peer, self._access, self._patience.connect_s):
                self._connected(connection)
                self._watch(connection)
            # Of an idle engine nothing is heard.
            settled = connection.heard or (self._clock() - began > BACKOFF_CAP_S and connection.ended)
            failures = 0 if settled else min(failures + 1, 16)
            self._hang_up(connection)
            if connection.ended and settled:
                continue
            retry_at = self._clock() + self._backoff.compute(failures)
            with book.changed:
                while not self._done and (left := retry_at - self._clock()) > 0:
                    book.changed.wait(min(left, TICK_S))
                    book.expire(self._clock())

    def _connected(self, connection: Connection) -> None:
        with self._book.changed:
            self._connection = connection
            self._connections += 1
            if self._connections > 1:
                self._book.count(reconnects=1)
            self._reachability.found()
            if self._retired_at is not None and connection.lane is not None:
                self._book.retire(connection.lane, self._clock())
        connection.start_reading()

    def _watch(self, connection: Connection) -> None:
        """Keep deadlines until the connection is over."""
        book, lane = self._book, connection.lane
        with book.changed:
            while not connection.over and not book.closed and lane is not None:
                now = self._clock()
                book.expire(now)
                if lane.silent_for(now) > self._patience.silence_s:
                    return
                if self._retired_at is not None and now - self._retired_at > RETIRE_S:
                    return
                book.wait()

    def _hang_up(self, connection: Connection) -> None:
        book = self._book
        with book.changed:
            connection.over = True
            self._connection = None
            if connection.lane is not None:
                book.close_lane(connection.lane, self._clock(), ended=connection.ended)
            if not (connection.ended or self._done):
                book.count(connection_failures=1)
                if not book.connected:
                    self._reachability.lost(connection.reason)
        connection.close()
