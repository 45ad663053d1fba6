"""One connection to the sidecar and its stream: open once, over once, over for good.

What a dead peer looks like. Connection refused or reset: gRPC says so. A peer that accepts and is silent never greets:
``connect_timeout_s``. A peer that falls silent later is left when requests wait and nothing has come for ``silence_s``
(keepalive pings would not do: a gRPC core answers them while its application hangs). Each attempt uses a new connection,
since gRPC would otherwise go on using the dead one.

Threads: the supervisor opens, watches and closes; a *reader* collects the answers; gRPC pulls the requests out of
:meth:`Connection._outgoing` in a thread of its own, and so encodes them there.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from eviction_client.book import TICK_S, Book, Fate
from eviction_client.lane import Lane
from eviction_client.messages import cancel, decode, encode
from eviction_client.offer import REQUEST_ID, Offer
from eviction_client.peers import Peer
from eviction_client.prior import BadCurves, Groups, ReuseCurves, curves_of, greeted
from eviction_client.said import Said
from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.access import Access
from lpc.wire.bugs import log_bug
from lpc.wire.certificates import CertificateError
from lpc.wire.tokenizer_files import CHUNK_BYTES

logger = logging.getLogger(__name__)

_FATES: Final[dict[int, Fate]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0]: "late",
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: "refused",
}
"""What errors make of a request; all others: failed."""
_OUR_FAULT: Final = {
    status.value[0]: status.name
    for status in (
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INTERNAL,
    )
}
"""Refusals that will not go by themselves."""
_CHANNEL_OPTIONS: Final = (
    # Otherwise gRPC hands a new channel the old one's dead connection and its waiting time.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 1 << 20),
)


class Connection:
    """A stream that sends what a book says and enters the answers into it.

    Args:
        clock: monotonic seconds.
        offer: of the engine's tokenizer; None where none is made.
        said: what has been said in the log.
        groups: of requests, which sidecars number.

    Attributes:
        heard: whether anything was heard on the stream.
        ended: the peer has answered all that it read and ended the stream: a connection of some age, or a sidecar that stops.
        lane: its part of the book; None before it is up.
        over: set with the book's lock held.
    """

    def __init__(self, book: Book, clock: Callable[[], float], offer: Offer | None, said: Said, groups: Groups) -> None:
        self.heard = False
        self.ended = False
        self.over = False
        self.lane: Lane | None = None
        self._book = book
        self._clock = clock
        self._offer = offer
        self._said = said
        self._groups = groups
        self._sends_groups = False
        self._part_bytes = CHUNK_BYTES
        self._most_bytes = 0
        """Of one message, that the sidecar takes; 0: it does not say."""
        self._parts: Iterator[predictor_pb2.PredictStreamRequest] | None = None
        """Of the tokenizer, while the sidecar wants it; guarded by the book's lock."""
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._ready = False
        self._error: Exception | None = None

    def open(self, peer: Peer, access: Callable[[], Access], connect_timeout_s: float) -> bool:
        """Connect, greet and open the stream; return whether it is up. Keeps the book's deadlines meanwhile."""
        try:
            entrance = access()
            self._channel = entrance.channel(peer.target, (*_CHANNEL_OPTIONS, *peer.options))
            stub = predictor_pb2_grpc.ContinuationPredictorStub(self._channel)
            self._error = self._greet(stub, entrance, connect_timeout_s)
            self._ready = self._error is None
            if self._ready and not self._book.closed:
                with self._book.changed:
                    lane = self.lane = self._book.open_lane(self._clock())
                self._call = stub.PredictStream(self._outgoing(lane), metadata=entrance.metadata)
        except Exception as error:
            # An address that gRPC cannot even parse, for example.
            self._error = error
        if self._call is None:
            self.over = True
        return not self.over

    def start_reading(self) -> None:
        """Start the reader."""
        threading.Thread(target=self._read, args=(self.lane,), name="lpc-predictor-reader", daemon=True).start()

    def close(self) -> None:
        """Hang up. ``over`` must have been set, so that nothing more is sent."""
        if self._offer is not None:
            self._offer.gone(self)
        self._groups.gone(self)
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            self._channel.close()

    @property
    def reason(self) -> str:
        """Why it is over."""
        if isinstance(self._error, grpc.Call):
            return str(self._error.code())
        if isinstance(self._error, CertificateError):
            return str(self._error)
        if self._error is not None:
            return type(self._error).__name__
        if self.ended:
            return "it ended the stream"
        return "it fell silent" if self._ready else "nothing answers"

    def _greet(
        self, stub: predictor_pb2_grpc.ContinuationPredictorStub, entrance: Access, timeout_s: float
    ) -> Exception | None:
        """Ask the peer who it is; return what is wrong with it, if anything.

        An answer shows that the sidecar itself is up, not only its port. (gRPC's own watch of a channel's state cannot be
        used: its thread fails when the channel is closed under it.)
        """
        book = self._book
        greeting = stub.GetModelInfo.future(predictor_pb2.GetModelInfoRequest(), timeout=timeout_s, metadata=entrance.metadata)

        def done(_: object) -> None:
            with book.changed:
                book.changed.notify_all()

        greeting.add_done_callback(done)
        with book.changed:
            while not (greeting.done() or book.closed):
                book.changed.wait(TICK_S)
                book.expire(self._clock())
        if not greeting.done():
            greeting.cancel()
            return None
        error: Exception | None = greeting.exception()
        if error is None:
            info = greeting.result()
            self._hear_curves(lambda: greeted(info))
            self._most_bytes = info.limits.max_request_bytes
            if info.limits.max_request_bytes:
                self._part_bytes = min(CHUNK_BYTES, info.limits.max_request_bytes // 2)
        return error

    # gRPC's sending thread.

    def _outgoing(self, lane: Lane) -> Iterator[predictor_pb2.PredictStreamRequest]:
        book, offer = self._book, self._offer
        if offer is not None:
            yield offer.message()
        while True:
            with lane.sendable:
                while lane.open and not (self.over or book.closed or lane.anything_to_send or self._parts):
                    lane.sendable.wait()
                if self.over or book.closed or not lane.open:
                    return
                now = self._clock()
                following, parts = book.next_to_send(lane, now), self._parts
            # Questions and parts of the tokenizer by turns.
            if parts is not None and (part := self._next_of(lane, parts)) is not None:
                yield part
            if following is None:
                continue
            number, request = following
            if request is None:
                yield cancel(number)
                continue
            try:
                digest = "" if offer is None else offer.digest_of(request.question.served_model)
                message = encode(number, request.question, request.deadline - now, digest)
                fits = not 0 < self._most_bytes < message.ByteSize()  # else it would end the stream for all
            except UnicodeError:  # what a caller has sent as its session or class
                fits = False
            except Exception as error:
                fits = False
                self._bug("encoding a request for the predictor", error)
            if fits:
                yield message
            else:
                with lane.sendable:
                    book.reject(lane, request)

    def _bug(self, where: str, error: Exception) -> None:
        with self._book.changed:
            self._book.count(bugs=1)
        log_bug(logger, where, error)

    def _next_of(
        self, lane: Lane, parts: Iterator[predictor_pb2.PredictStreamRequest]
    ) -> predictor_pb2.PredictStreamRequest | None:
        part = next(parts, None)
        if part is None:
            with lane.sendable:
                if self._parts is parts:
                    self._parts = None
        return part

    # The reader's thread.

    def _read(self, lane: Lane) -> None:
        book = self._book
        ended = False
        try:
            for message in self._call:
                self._receive(lane, message)
            ended = True
        except grpc.RpcError as error:
            self._error = error
        except Exception as error:
            self._error = error
            if not self.over:
                self._bug("reading the predictor's answers", error)
        with book.changed:
            self.ended = ended
            self.over = True
            book.changed.notify_all()

    def _receive(self, lane: Lane, message: predictor_pb2.PredictStreamResponse) -> None:
        if message.request_id == REQUEST_ID and self._offer is not None:
            self._hear_of_offer(lane, message, self._offer)
            return
        if message.WhichOneof("result") == "reuse_curves":
            if self._sends_groups:
                self._hear_curves(lambda: curves_of(message.reuse_curves))
            return
        answer = decode(message, lambda group: self._groups.number(self, group))
        number = int(message.request_id) if message.request_id.isdecimal() else 0
        if answer is not None and answer.unread and self._offer is not None:
            self._offer.answered_unread(self)
        if message.error.code in _OUR_FAULT:
            status = _OUR_FAULT[message.error.code]
            self._said.once(status, logging.WARNING, "the predictor refuses requests (%s): %s", status, message.error.message)
        book = self._book
        with book.changed:
            self.heard = True
            book.receive(lane, number, answer, _FATES.get(message.error.code, "failed"), self._clock())

    def _hear_curves(self, read: Callable[[], ReuseCurves | None]) -> None:
        try:
            curves = read()
        except BadCurves as error:
            with self._book.changed:
                self._book.count(bad_curves=1)
            self._said.once("curves", logging.WARNING, "the predictor's reuse curves cannot be used: %s", error)
            return
        if curves is not None:
            self._sends_groups = True
            self._groups.heard(self, curves)
            if self.over:
                self._groups.gone(self)

    def _hear_of_offer(self, lane: Lane, message: predictor_pb2.PredictStreamResponse, offer: Offer) -> None:
        wanted = False
        if message.WhichOneof("result") == "tokenizer":
            wanted = offer.heard(self, message.tokenizer)
        elif message.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
            offer.ignored(self)
        with lane.sendable:
            lane.heard(self._clock())
            self._parts = offer.parts(self._part_bytes) if wanted else None
            if self.over:
                offer.gone(self)
            lane.sendable.notify()
