"""Asks the sidecars, off the serving path: a stream to each, answers collected until the request ends.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
No answer, for whatever reason, is ``None``: the request has the group that the engine gives it.

Which sidecars there are is :mod:`eviction_client.peers`'s; a thread for each keeps it connected (:mod:`eviction_client.link`);
what happens on one connection, and in which threads, is :mod:`eviction_client.connection`'s. It is gRPC's synchronous API
because grpc.aio has one poller per process, shared by all event loops: an engine that uses it in another thread would wake
ours, and ours theirs. Make a client after the engine has forked: threads do not survive a fork.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from eviction_client.book import Book, PredictorCounters
from eviction_client.connection import Connection
from eviction_client.lane import Request
from eviction_client.link import Link, Patience, Reachability
from eviction_client.messages import Prediction, Question
from eviction_client.offer import FindFiles, Offer, TokenizerState
from eviction_client.peers import RESOLVE_S, Peer, chosen, may_change, peers_of
from eviction_client.prior import Groups, ReuseCurves
from eviction_client.said import Said
from eviction_client.settings import ClientSettings
from lpc.wire.access import Access, access_of
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

MAX_TIMEOUT_S: Final = 600.0


class PredictorClient:
    """The engine's side of PredictStream. Thread-safe; no public method blocks (but ``close``) or raises.

    Args:
        address: host:port or unix:///path/to/socket; of a name with several addresses each is a sidecar.
        served_model: name under which the sidecar knows the engine's tokenizer, for ``ask`` calls that give none.
        timeout_s: age at which an answer is worthless, for ``ask`` calls that give none.
        capacity: requests remembered, waiting and answered together.
        access: says how to get in (TLS, token); asked for every connection. Without it: in plain text, without a token.
        tokenizer: finds the files of ``served_model``'s tokenizer, which the sidecar is offered; called in a thread of the
            client's. Without it none is offered: the sidecar's operator must have configured it.
        connect_timeout_s: time that a connection may take to become ready.
        silence_s: longest silence on a stream on which requests wait.
        resolve_s: between two look-ups of a name.
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
        tokenizer: FindFiles | None = None,
        connect_timeout_s: float = 5.0,
        silence_s: float = 10.0,
        resolve_s: float = RESOLVE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._served_model = served_model
        self._timeout_s = timeout_s
        self._access = access
        self._patience = Patience(connect_timeout_s, silence_s)
        self._resolve_s = resolve_s
        self._clock = clock
        self._book = Book(capacity)
        self._said = Said()
        self._offer = None if tokenizer is None else Offer(served_model, tokenizer, self._said)
        self._groups = Groups(clock)
        self._reachability = Reachability(address)
        self._engine = os.urandom(16)
        self._links: dict[Peer, Link] = {}
        self._closed = threading.Event()
        self._resolver = threading.Thread(target=self._resolve, name="lpc-predictor", daemon=True)
        self._resolver.start()

    @classmethod
    def of(cls, settings: ClientSettings, served_model: str, tokenizer: FindFiles) -> "PredictorClient":
        """Return what an engine asks by its settings. ``served_model``: unless they name another."""
        return cls(
            settings.predictor_address,
            served_model=settings.served_model or served_model,
            timeout_s=settings.predictor_timeout_s,
            capacity=settings.predictor_capacity,
            access=access_of(settings),
            tokenizer=tokenizer,
        )

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
                if not book.closed:
                    book.enter(request)
        except Exception as error:
            # An id that cannot be hashed, a time-out that is not a number: whatever it is, serving goes on.
            with book.changed:
                book.count(asked=1, rejected=1, bugs=1)
            log_bug(logger, "asking the predictor", error)

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer and forget the request; None, and nothing changes, when there is none yet.

        Callers that are done with a request that has no answer call :meth:`forget`.
        """
        try:
            with self._book.changed:
                return self._book.take(request_id)
        except TypeError:
            return None

    def forget(self, request_id: Hashable) -> None:
        """Forget a request; tell the sidecar if it still works on it. Unknown ids are ignored."""
        try:
            with self._book.changed:
                self._book.drop(request_id, "forgotten", self._clock())
        except TypeError:
            return

    @property
    def reuse_curves(self) -> ReuseCurves | None:
        """The predicted curves of the groups that predictions name; None while none are known.

        They are kept for `prior.KEPT_S` after the connection is lost. Another epoch means other groups.
        """
        return self._groups.curves

    @property
    def healthy(self) -> bool:
        """Whether a stream to a sidecar is up."""
        return self._reachability.up is True

    @property
    def tokenizer_state(self) -> TokenizerState:
        """How the sidecars stand with the tokenizer of ``served_model``."""
        return "unknown" if self._offer is None else self._offer.state

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
        until = time.monotonic() + timeout
        with self._book.changed:
            self._book.close()
        self._closed.set()
        self._resolver.join(max(until - time.monotonic(), 0.0))
        for link in list(self._links.values()):
            link.join(max(until - time.monotonic(), 0.0))

    # The resolver's thread.

    def _resolve(self) -> None:
        """Have a link to each sidecar that there is, and to no other."""
        while not self._closed.is_set():
            try:
                peers = chosen(peers_of(self._address), self._engine)
            except (OSError, ValueError):  # ValueError: a name that cannot be one
                # No answer is no news; at the start gRPC says what is wrong with the name.
                peers = list(self._links) or [Peer(self._address)]
            for peer in set(self._links) - set(peers):
                self._links.pop(peer).retire()
            for peer in peers:
                if peer not in self._links and not self._closed.is_set():
                    self._links[peer] = Link(
                        peer, self._connect, self._book, self._access, self._reachability, self._patience, self._clock
                    )
            if not may_change(self._address):
                return
            self._closed.wait(self._resolve_s * random.uniform(0.75, 1.25))

    def _connect(self) -> Connection:
        return Connection(self._book, self._clock, self._offer, self._said, self._groups)
