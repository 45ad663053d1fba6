"""Asks the sidecar, off the serving path: one stream per engine, answers collected until the request ends.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
No answer, for whatever reason, is ``None``: the caller uses its prior.

Threads: a *supervisor* connects, watches deadlines and reconnects; a *reader* collects the answers of the current
stream; gRPC pulls the requests out of :meth:`PredictorClient._outgoing` in a thread of its own, and so encodes them there.
It is gRPC's synchronous API because grpc.aio has one poller per process, shared by all event loops: an engine that
uses it in another thread would wake ours, and ours theirs. Make a client after the engine has forked: threads do not
survive a fork.

What a dead peer looks like. Connection refused or reset: gRPC says so. A peer that accepts and is silent never
greets: ``connect_timeout_s``. A peer that falls silent later is left when requests wait and nothing has come for
``silence_s`` (keepalive pings would not do: a gRPC core answers them while its application hangs). Each attempt uses a
new connection, since gRPC would otherwise go on using the dead one.
"""

import logging
import math
import sys
import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from redis.backoff import EqualJitterBackoff

from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.access import Access
from lpc.wire.certificates import CertificateError

logger = logging.getLogger(__name__)

FAIR_WAIT_S: Final = 1.0
"""A request that is forgotten sooner than this after it was sent says nothing about whether the peer is alive."""
TICK_S: Final = 0.25
"""How exactly deadlines are kept while anything waits."""
IDLE_TICK_S: Final = 60.0
ANSWER_LIFE_S: Final = 3600.0
"""Age at which a request is forgotten whose answer nobody took."""
MAX_TIMEOUT_S: Final = 600.0
MAX_TOKEN_IDS: Final = 2**20
"""A longer prompt (4 MiB) is not sent: a message over the sidecar's limit would end the stream for all."""
MAX_SENDS: Final = 2
"""A request that was on a stream when it broke is sent once more and then given up: it may be what broke the sidecar."""
BACKOFF_CAP_S: Final = 5.0
BACKOFF_BASE_S: Final = 0.05

_DEADLINE_EXCEEDED: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_CHANNEL_OPTIONS: Final = (
    # Otherwise gRPC hands a new channel the old one's dead connection and its waiting time.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 1 << 20),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the sidecar thinks of a conversation.

    Attributes:
        probability: that it has a further user turn, in (0, 1).
        model_version: of the model that answered.
        think_log_mean, think_log_sigma: mean and standard deviation of ln(seconds until that turn); None while the
            model does not know.
        turn_count: user turns that the model was given.
    """

    probability: float
    model_version: str
    think_log_mean: float | None
    think_log_sigma: float | None
    turn_count: int


@dataclass(frozen=True, slots=True)
class PredictorCounters:
    """What became of the requests; each that was asked ends in exactly one of the fates, or is still waiting."""

    asked: int = 0
    answered: int = 0
    late: int = 0
    """No answer before the deadline."""
    failed: int = 0
    """The sidecar answered with an error, or the stream broke under the request twice."""
    dropped: int = 0
    """Over the capacity: the oldest goes."""
    rejected: int = 0
    """Nonsense that cannot be encoded."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    untaken: int = 0
    """Answered, then not taken for too long or pushed out. Not a fate of its own: counted as answered before."""
    reconnects: int = 0
    """Connections after the first."""
    connection_failures: int = 0


@dataclass(slots=True)
class _Request:
    key: Hashable
    number: int
    token_ids: Sequence[int]
    served_model: str
    turn_count: int | None
    category: str
    conversation_id: str
    asked_at: float
    deadline: float
    sends: int = 0
    answer: Prediction | None = None


class _Stream:
    """One connection and its stream: over once, over for good."""

    def __init__(self) -> None:
        self.channel: grpc.Channel | None = None
        self.call: Any = None
        self.ready = False
        self.over = False
        self.error: Exception | None = None
        self.heard_at = 0.0
        self.waiting_since: float | None = None


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
        self._capacity = capacity
        self._access = access
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._clock = clock
        lock = threading.Lock()
        self._sendable = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        # Two conditions of one lock: an ask wakes the sending thread, and the supervisor only out of idleness.
        self._idle = False
        # Everything below is guarded by the condition's lock. In order of asking:
        self._requests: OrderedDict[Hashable, _Request] = OrderedDict()
        self._unsent: OrderedDict[int, _Request] = OrderedDict()
        self._in_flight: dict[int, _Request] = {}
        self._cancels: deque[int] = deque(maxlen=capacity)
        self._numbers = 0
        self._counters = PredictorCounters()
        self._stream: _Stream | None = None
        self._connected = False
        self._connections = 0
        self._told: bool | None = None
        self._closing = False
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
        try:
            now = self._clock()
            patience = self._timeout_s if timeout_s is None else min(float(timeout_s), MAX_TIMEOUT_S)
            model = self._served_model if served_model is None else served_model
            request = _Request(request_id, 0, token_ids, model, turn_count, category, conversation_id, now, now + patience)
            with self._changed:
                if self._closing:
                    return
                self._count(asked=1)
                if request_id in self._requests:
                    self._drop(request_id, "forgotten")
                self._numbers += 1
                request.number = self._numbers
                self._requests[request_id] = request
                self._unsent[request.number] = request
                if len(self._requests) > self._capacity:
                    self._drop(next(iter(self._requests)), "dropped")
                self._sendable.notify()
                if self._idle:
                    self._idle = False
                    self._changed.notify()
        except Exception:
            # An id that cannot be hashed, a time-out that is no number: whatever it is, serving goes on.
            with self._changed:
                self._count(asked=1, rejected=1)

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer and forget the request; None, and nothing changes, when there is none yet.

        Callers that are done with a request that has no answer call :meth:`forget`.
        """
        try:
            with self._changed:
                request = self._requests.get(request_id)
                if request is None or request.answer is None:
                    return None
                del self._requests[request_id]
                return request.answer
        except TypeError:
            return None

    def forget(self, request_id: Hashable) -> None:
        """Forget a request; tell the sidecar if it still works on it. Unknown ids are ignored."""
        try:
            with self._changed:
                if request_id in self._requests:
                    self._drop(request_id, "forgotten")
        except TypeError:
            return

    @property
    def healthy(self) -> bool:
        """Whether a stream to the sidecar is up."""
        return self._connected

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""
        return self._counters

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._unsent) + len(self._in_flight)

    def close(self, timeout: float = 2.0) -> None:
        """Hang up and end the threads, within ``timeout`` seconds. Later calls do nothing."""
        with self._changed:
            self._closing = True
            self._requests.clear()
            self._unsent.clear()
            self._in_flight.clear()
            self._changed.notify_all()
            self._sendable.notify_all()
        if threading.current_thread() is not self._supervisor:
            self._supervisor.join(timeout)

    # Below: called with the lock held.

    def _count(self, **more: int) -> None:
        counters = self._counters
        self._counters = replace(counters, **{name: getattr(counters, name) + n for name, n in more.items()})

    def _drop(self, key: Hashable, fate: str) -> None:
        """Forget a request; ``fate`` counts it unless it has its answer."""
        request = self._requests.pop(key)
        if request.answer is not None:
            if fate != "forgotten":
                self._count(untaken=1)
            return
        waited = self._unsent.pop(request.number, None) or self._in_flight.get(request.number)
        if self._in_flight.pop(request.number, None) is not None:
            self._cancels.append(request.number)
            self._sendable.notify()
            stream = self._stream
            if (
                stream is not None
                and stream.waiting_since is not None
                and not self._in_flight
                and self._clock() - max(stream.waiting_since, stream.heard_at) < FAIR_WAIT_S
            ):
                stream.waiting_since = None
        if waited is not None:
            self._count(**{fate: 1})

    def _end_without_answer(self, request: _Request, fate: str) -> None:
        self._unsent.pop(request.number, None)
        self._in_flight.pop(request.number, None)
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        self._count(**{fate: 1})

    def _expire(self, now: float) -> None:
        late = [
            request for waiting in (self._unsent, self._in_flight) for request in waiting.values() if request.deadline <= now
        ]
        for request in late:
            self._end_without_answer(request, "late")
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if oldest.asked_at + ANSWER_LIFE_S > now:
                break
            self._drop(oldest.key, "late")

    # The supervisor's thread.

    def _supervise(self) -> None:
        failures = 0
        while not self._closing:
            stream = self._open()
            heard = self._watch(stream)
            failures = 0 if heard else min(failures + 1, 16)
            self._hang_up(stream)
            if self._closing:
                return
            retry_at = self._clock() + self._backoff.compute(failures)
            with self._changed:
                while not self._closing and (left := retry_at - self._clock()) > 0:
                    self._changed.wait(min(left, TICK_S))
                    self._expire(self._clock())

    def _open(self) -> _Stream:
        """Connect and open a stream. It is over already when that fails."""
        stream = _Stream()
        try:
            access = self._access()
            stream.channel = access.channel(self._address, _CHANNEL_OPTIONS)
            stub = predictor_pb2_grpc.ContinuationPredictorStub(stream.channel)
            stream.error = self._greet(stub, access)
            stream.ready = stream.error is None
            if stream.ready and not self._closing:
                stream.heard_at = self._clock()
                stream.call = stub.PredictStream(self._outgoing(stream), metadata=access.metadata)
        except Exception as error:
            # An address that gRPC cannot even parse, for example.
            stream.error = error
        if stream.call is None:
            stream.over = True
            return stream
        with self._changed:
            self._stream = stream
            self._connected = True
            self._connections += 1
            if self._connections > 1:
                self._count(reconnects=1)
        if self._told is not True:
            logger.info("connected to the predictor at %s", self._address)
        self._told = True
        threading.Thread(target=self._read, args=(stream,), name="lpc-predictor-reader", daemon=True).start()
        return stream

    def _greet(self, stub: predictor_pb2_grpc.ContinuationPredictorStub, access: Access) -> Exception | None:
        """Ask the peer who it is; return what is wrong with it, if anything.

        An answer shows that the sidecar itself is up, not only its port. (gRPC's own watch of a channel's state cannot be
        used: its thread fails when the channel is closed under it.)
        """
        greeting = stub.GetModelInfo.future(
            predictor_pb2.GetModelInfoRequest(), timeout=self._connect_timeout_s, metadata=access.metadata
        )

        def done(_: object) -> None:
            with self._changed:
                self._changed.notify_all()

        greeting.add_done_callback(done)
        with self._changed:
            while not (greeting.done() or self._closing):
                self._changed.wait(TICK_S)
                self._expire(self._clock())
        if not greeting.done():
            greeting.cancel()
            return None
        error: Exception | None = greeting.exception()
        return error

    def _watch(self, stream: _Stream) -> bool:
        """Keep deadlines until the stream is over; return whether anything was heard on it."""
        opened = stream.heard_at
        with self._changed:
            while not stream.over and not self._closing:
                now = self._clock()
                self._expire(now)
                waiting = stream.waiting_since
                if waiting is not None and now - max(waiting, stream.heard_at) > self._silence_s:
                    stream.over = True
                    break
                self._idle = not (self._unsent or self._in_flight)
                self._changed.wait(IDLE_TICK_S if self._idle else TICK_S)
                self._idle = False
            return stream.heard_at > opened

    def _hang_up(self, stream: _Stream) -> None:
        with self._changed:
            stream.over = True
            was_connected, self._connected = self._connected, False
            self._stream = None
            self._cancels.clear()
            self._sendable.notify_all()
            broken = list(self._in_flight.values())
            self._in_flight.clear()
            for request in reversed(broken):
                if request.sends >= MAX_SENDS:
                    self._end_without_answer(request, "failed")
                else:
                    self._unsent[request.number] = request
                    self._unsent.move_to_end(request.number, last=False)
            if not self._closing:
                self._count(connection_failures=1)
        if stream.call is not None:
            stream.call.cancel()
        if stream.channel is not None:
            stream.channel.close()
        if not self._closing and (was_connected or self._told is None):
            if self._told is not False:
                logger.warning(
                    "no connection to the predictor at %s (%s); requests get the prior until it is back",
                    self._address,
                    _reason(stream),
                )
            self._told = False

    # gRPC's sending thread.

    def _outgoing(self, stream: _Stream) -> Iterator[predictor_pb2.PredictStreamRequest]:
        while True:
            with self._changed:
                while not (stream.over or self._closing or self._cancels or self._unsent):
                    self._sendable.wait()
                if stream.over or self._closing:
                    return
                now = self._clock()
                if self._cancels:
                    number, request = self._cancels.popleft(), None
                else:
                    number, request = self._unsent.popitem(last=False)
                    if request.deadline <= now:
                        self._end_without_answer(request, "late")
                        continue
                    request.sends += 1
                    self._in_flight[number] = request
                    if stream.waiting_since is None:
                        stream.waiting_since = now
            if request is None:
                yield predictor_pb2.PredictStreamRequest(request_id=str(number), cancel=predictor_pb2.Cancel())
                continue
            try:
                message = _encode(request, now)
            except Exception:
                with self._changed:
                    if self._in_flight.get(number) is request:
                        self._end_without_answer(request, "rejected")
                    if not self._in_flight:
                        stream.waiting_since = None
                continue
            yield message

    # The reader's thread.

    def _read(self, stream: _Stream) -> None:
        try:
            for message in stream.call:
                self._receive(stream, message)
        except grpc.RpcError as error:
            stream.error = error
        except Exception as error:
            stream.error = error
            if not stream.over:
                logger.error("reading the predictor's answers failed", exc_info=error)
        with self._changed:
            stream.over = True
            self._changed.notify_all()

    def _receive(self, stream: _Stream, message: predictor_pb2.PredictStreamResponse) -> None:
        answer = _decode(message)
        with self._changed:
            now = self._clock()
            stream.heard_at = now
            number = int(message.request_id) if message.request_id.isdecimal() else 0
            request = self._in_flight.pop(number, None)
            stream.waiting_since = now if self._in_flight else None
            if request is None:
                # Too late, forgotten, or never asked.
                return
            if request.deadline <= now or message.error.code == _DEADLINE_EXCEEDED:
                self._end_without_answer(request, "late")
            elif answer is None:
                self._end_without_answer(request, "failed")
            else:
                request.answer = answer
                request.token_ids = ()
                self._count(answered=1)


def _reason(stream: _Stream) -> str:
    if isinstance(stream.error, grpc.Call):
        return str(stream.error.code())
    if isinstance(stream.error, CertificateError):
        return str(stream.error)
    if stream.error is not None:
        return type(stream.error).__name__
    return "it fell silent" if stream.ready else "nothing answers"


def _encode(request: _Request, now: float) -> predictor_pb2.PredictStreamRequest:
    """Build the message; raises whatever is wrong with what the caller gave.

    The ids are packed by ``array`` and parsed back as one field: 8,000 of them hold the GIL for 40 microseconds instead of 120.
    """
    ids = array("I", request.token_ids)
    if not 0 < len(ids) <= MAX_TOKEN_IDS:
        raise ValueError("no token ids, or too many")
    if sys.byteorder == "big":
        ids.byteswap()
    raw = ids.tobytes()
    tokens = predictor_pb2.TokenIds.FromString(b"\x0a" + _varint(len(raw)) + raw)
    tokens.served_model = request.served_model
    conversation = predictor_pb2.Conversation(
        tokens=tokens,
        turn_count=request.turn_count,
        category=request.category,
        conversation_id=request.conversation_id,
    )
    timeout_ms = max(1, round((request.deadline - now) * 1000))
    return predictor_pb2.PredictStreamRequest(request_id=str(request.number), conversation=conversation, timeout_ms=timeout_ms)


def _varint(n: int) -> bytes:
    encoded = bytearray()
    while n > 0x7F:
        encoded.append(n & 0x7F | 0x80)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


def _decode(message: predictor_pb2.PredictStreamResponse) -> Prediction | None:
    """Return the prediction; None for an error item and for a probability that is none."""
    if message.WhichOneof("result") != "prediction":
        return None
    prediction = message.prediction
    if not 0.0 <= prediction.probability <= 1.0:
        return None
    mean: float | None = None
    sigma: float | None = None
    if prediction.HasField("think_time"):
        think = prediction.think_time
        if math.isfinite(think.log_mean) and math.isfinite(think.log_sigma) and think.log_sigma >= 0:
            mean, sigma = think.log_mean, think.log_sigma
    return Prediction(prediction.probability, prediction.model_version, mean, sigma, prediction.turn_count)
