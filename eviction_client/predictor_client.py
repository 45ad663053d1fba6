"""Asks the sidecars, off the serving path: a call for each request, its answer collected until the request ends.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
No answer, for whatever reason, is ``None``: the request has the group that the engine gives it.

gRPC does the rest (`CHANNEL_OPTIONS`): it looks the address up, calls all sidecars behind it in turn, gives up a connection on
which nothing answers, connects again, and tries once more if a sidecar is gone or overloaded. A call waits for a connection
and ends at its deadline. It is gRPC's synchronous API because grpc.aio has one poller per process, shared by all event loops:
an engine that uses it in another thread would wake ours, and ours theirs.

Threads: a *sender* encodes and calls; a *watcher* offers the tokenizer, renews certificates and probes the sidecar; gRPC's own
thread brings the answers. Make a client after the engine has forked: threads do not survive a fork.
"""

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import grpc

from eviction_client.messages import Prediction, Question, decode, encode
from eviction_client.offer import FindFiles, LogOnce, Offer, TokenizerState
from eviction_client.prior import BadCurves, Groups, ReuseCurves
from eviction_client.settings import ClientSettings
from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.access import Access, access_of
from lpc.wire.bugs import log_bug
from lpc.wire.certificates import CertificateError

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""Age at which an answer is worthless."""
MAX_TIMEOUT_S: Final = 600.0
MOST_IN_FLIGHT: Final = 1024
"""Calls at a time; what is asked beyond them waits here."""
TICK_S: Final = 0.25
"""How exactly deadlines are kept of what waits here."""
PROBE_S: Final = 30.0
"""Seconds between looks at an idle sidecar and at the certificate files."""
RETRY_S: Final = 2.0
"""Seconds between looks while no sidecar answers or the tokenizer is not ready."""
REFUSED_S: Final = 60.0
"""Seconds after which a tokenizer is offered again that was not taken."""
PROBE_TIMEOUT_S: Final = 5.0
OFFER_TIMEOUT_S: Final = 300.0
RETIRE_S: Final = 30.0
"""What calls in flight get on a channel whose certificates have been replaced."""

CHANNEL_OPTIONS: Final = (
    (
        "grpc.service_config",
        json.dumps(
            {
                "loadBalancingConfig": [{"round_robin": {}}],
                "methodConfig": [
                    {
                        "name": [{"service": "lpc.v1.ContinuationPredictor", "method": "Predict"}],
                        # Once: what is asked may be what breaks the sidecars.
                        "retryPolicy": {
                            "maxAttempts": 2,
                            "initialBackoff": "0.05s",
                            "maxBackoff": "1s",
                            "backoffMultiplier": 2,
                            # CANCELLED: by a server that ends before it has answered.
                            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
                        },
                    }
                ],
                # A fleet that is overloaded is not asked everything twice.
                "retryThrottling": {"maxTokens": 1000, "tokenRatio": 0.1},
            }
        ),
    ),
    # What is not kept cannot be sent again: 1 million token ids have 4 MiB.
    ("grpc.per_rpc_retry_buffer_size", 5 << 20),
    # Pings, while calls wait: a host that is gone says nothing.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # What gRPC 1.85 goes by instead (default 60 s), measured.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # How long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ("grpc.max_receive_message_length", 1 << 20),
    # Another client's connections would be shared, and their waiting times.
    ("grpc.use_local_subchannel_pool", 1),
)

Fate = Literal["answered", "late", "failed", "refused", "forgotten"]
"""How a request ends: a counter of :class:`PredictorCounters`."""

_FATES: Final[dict[grpc.StatusCode, Fate]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
}
_OUR_FAULT: Final = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
)
"""Refusals that will not go by themselves."""
_NOT_REACHED: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses that do not show that predictions can be had."""


@dataclass(frozen=True, slots=True)
class PredictorCounters:
    """What became of the requests; each that was asked ends in exactly one of the first five, or is still waiting."""

    answered: int = 0
    late: int = 0
    """No answer before the deadline, or pushed out by newer requests."""
    failed: int = 0
    """The sidecar answered with an error or broke twice, or the request could not be encoded."""
    refused: int = 0
    """The sidecars that were asked had more work than time."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    unread: int = 0
    """Answers to prompts that the sidecar could not read. They also count as answered."""

    @property
    def ended(self) -> int:
        """Requests that do not wait any more."""
        return self.answered + self.late + self.failed + self.refused + self.forgotten


@dataclass(slots=True, eq=False)
class _Request:
    """One request. Times are seconds of the client's clock. ``over``: it has its answer, or will get none."""

    key: Hashable
    question: Question | None
    deadline: float
    over: bool = False
    answer: Prediction | None = None
    call: Any = None


class PredictorClient:
    """The engine's side of the sidecar. Thread-safe; no public method blocks (but ``close``) or raises.

    Args:
        address: host:port, unix:///path/to/socket or another of gRPC's; of a name with several addresses each is a sidecar.
        served_model: name under which the sidecar knows the engine's tokenizer, for ``ask`` calls that give none.
        timeout_s: age at which an answer is worthless, for ``ask`` calls that give none.
        capacity: requests remembered, waiting and answered together; over it the oldest goes.
        access: says how to get in (TLS, token); asked now and then. Without it: in plain text, without a token.
        tokenizer: finds the files of ``served_model``'s tokenizer, which the sidecar is offered; called in a thread of the
            client's. Without it none is offered: the sidecar's operator must have configured it.
        probe_s: between looks at an idle sidecar.
        options: of gRPC's channel, on top of `CHANNEL_OPTIONS`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        served_model: str = "",
        timeout_s: float = TIMEOUT_S,
        capacity: int = 8192,
        access: Callable[[], Access] = Access,
        tokenizer: FindFiles | None = None,
        probe_s: float = PROBE_S,
        options: Sequence[tuple[str, Any]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._served_model = served_model
        self._timeout_s = timeout_s
        self._capacity = capacity
        self._read_access = access
        self._probe_s = probe_s
        self._options = tuple({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
        self._clock = clock
        self._log = LogOnce()
        self._offer = None if tokenizer is None else Offer(served_model, tokenizer, self._log)
        self._groups = Groups(clock)

        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Wakes the sender."""
        # With the lock held:
        self._requests: OrderedDict[Hashable, _Request] = OrderedDict()
        self._unsent: OrderedDict[int, _Request] = OrderedDict()
        """By id, in order of asking; not over."""
        self._unwanted: deque[Any] = deque(maxlen=capacity)
        """Calls to be cancelled."""
        self._in_flight = 0
        self._waiting = 0
        self._counts = dict.fromkeys((field.name for field in fields(PredictorCounters)), 0)
        self._closed = False

        self._access = Access()
        self._channel: grpc.Channel | None = None
        self._stub: predictor_pb2_grpc.ContinuationPredictorStub | None = None
        self._reached: bool | None = None
        self._heard_at = self._probed_at = self._offered_at = -float("inf")
        self._suspicious = False
        """A call has failed as if no sidecar could be reached, since the last probe."""
        self._unread = False
        """A sidecar could not read a prompt, since the last offer."""
        self._look = threading.Event()
        """Wakes the watcher."""
        self._threads = [
            threading.Thread(target=run, name=f"lpc-predictor-{name}", daemon=True)
            for name, run in (("sender", self._send), ("watcher", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def of(cls, settings: ClientSettings, served_model: str, tokenizer: FindFiles) -> "PredictorClient":
        """Return what an engine asks by its settings. ``served_model``: unless they name another."""
        return cls(
            settings.predictor_address,
            served_model=settings.served_model or served_model,
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
        try:
            patience = self._timeout_s if timeout_s is None else min(float(timeout_s), MAX_TIMEOUT_S)
            model = self._served_model if served_model is None else served_model
            question = Question(token_ids, model, turn_count, category, conversation_id)
            request = _Request(request_id, question, self._clock() + patience)
            with self._lock:
                if self._closed:
                    return
                self._drop(request_id, "forgotten")
                self._requests[request_id] = request
                self._unsent[id(request)] = request
                self._waiting += 1
                if len(self._requests) > self._capacity:
                    self._drop(next(iter(self._requests)), "late")
                self._changed.notify()
        except Exception as error:
            # An id that cannot be hashed, a time-out that is not a number: whatever it is, serving goes on.
            with self._lock:
                self._counts["failed"] += 1
            log_bug(logger, "asking the predictor", error)

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer and forget the request; None, and nothing changes, when there is none yet.

        Callers that are done with a request that has no answer call :meth:`forget`.
        """
        try:
            with self._lock:
                request = self._requests.get(request_id)
                if request is None or request.answer is None:
                    return None
                del self._requests[request_id]
                return request.answer
        except TypeError:
            return None

    def forget(self, request_id: Hashable) -> None:
        """Forget a request, and cancel its call. Unknown ids are ignored."""
        try:
            with self._lock:
                self._drop(request_id, "forgotten")
        except TypeError:
            return

    @property
    def reuse_curves(self) -> ReuseCurves | None:
        """The predicted curves of the groups that predictions name; None while none are known.

        Another epoch means other groups.
        """
        return self._groups.curves

    @property
    def healthy(self) -> bool:
        """Whether a sidecar answers, as far as is known."""
        return self._reached is True

    @property
    def tokenizer_state(self) -> TokenizerState:
        """How the sidecar that was offered the tokenizer of ``served_model`` last stands with it."""
        return "unknown" if self._offer is None else self._offer.state

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""
        return PredictorCounters(**self._counts)

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return self._waiting

    def close(self, timeout: float = 2.0) -> None:
        """Hang up and end the threads, within ``timeout`` seconds. Later calls do nothing."""
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            self._requests.clear()
            self._unsent.clear()
            self._changed.notify_all()
        self._look.set()
        if self._channel is not None:
            self._channel.close()
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    # With the lock held.

    def _drop(self, key: Hashable, fate: Fate) -> None:
        """Strike a request out, if there is one; cancel its call. ``fate`` counts it unless it is over."""
        request = self._requests.pop(key, None)
        if request is not None and not request.over:
            self._end(request, fate)
            if request.call is not None:
                self._unwanted.append(request.call)
                self._changed.notify()

    def _end(self, request: _Request, fate: Fate, answer: Prediction | None = None) -> None:
        """Note that a request waits no more, unless it is over. Without an answer it is struck out."""
        if request.over:
            return
        request.over, request.answer = True, answer
        request.question = None  # its token ids are not kept for the answer's sake
        self._unsent.pop(id(request), None)
        self._waiting -= 1
        self._counts[fate] += 1
        if answer is None and self._requests.get(request.key) is request:
            del self._requests[request.key]

    def _expire(self, now: float) -> None:
        for request in [request for request in self._unsent.values() if request.deadline <= now]:
            self._end(request, "late")

    # The sender's thread.

    def _send(self) -> None:
        while True:
            with self._lock:
                while not (self._closed or self._unwanted or self._sendable):
                    self._changed.wait(TICK_S if self._unsent else None)
                    self._expire(self._clock())
                if self._closed:
                    return
                calls = list(self._unwanted)
                self._unwanted.clear()
                request = None
                if self._sendable:
                    request = self._unsent.popitem(last=False)[1]
                    self._in_flight += 1
            for call in calls:
                call.cancel()
            if request is not None:
                self._call(request)

    @property
    def _sendable(self) -> bool:
        return bool(self._unsent) and self._in_flight < MOST_IN_FLIGHT and self._stub is not None

    def _call(self, request: _Request) -> None:
        question, stub, timeout_s = request.question, self._stub, request.deadline - self._clock()
        if question is None or stub is None or not timeout_s > 0:
            self._ended(request, "late")
            return
        try:
            message = encode(question, "" if self._offer is None else self._offer.digest_of(question.served_model))
            message.accept_unread = self._offer is not None
            message.known_curves.extend(self._groups.known)
            call = stub.Predict.future(message, timeout=timeout_s, metadata=self._access.metadata, wait_for_ready=True)
        except UnicodeError:  # what a caller has sent as its session or class
            self._ended(request, "failed")
            return
        except Exception as error:
            if not self._closed:
                log_bug(logger, "encoding a request for the predictor", error)
            self._ended(request, "failed")
            return
        with self._lock:
            request.call = call
            if request.over:
                self._unwanted.append(call)
        call.add_done_callback(lambda done: self._answered(request, done))

    # gRPC's thread.

    def _answered(self, request: _Request, call: Any) -> None:
        fate: Fate = "failed"
        answer = None
        try:
            code = call.code()
            if code is grpc.StatusCode.OK:
                response = call.result()
                answer = decode(response.prediction, self._group(response))
                fate = "failed" if answer is None else "answered"
                if answer is not None and answer.unread:
                    self._note_unread()
            else:
                fate = _FATES.get(code, "failed")
                if code in _OUR_FAULT:
                    self._log(code.name, logging.WARNING, "the predictor refuses requests (%s): %s", code.name, call.details())
            if not request.over:
                self._heard(code)
        except Exception as error:
            log_bug(logger, "reading the predictor's answer", error)
        self._ended(request, fate, answer)

    def _ended(self, request: _Request, fate: Fate, answer: Prediction | None = None) -> None:
        with self._lock:
            self._in_flight -= 1
            self._end(request, fate, answer)
            if self._unsent:
                self._changed.notify()

    def _group(self, response: predictor_pb2.PredictResponse) -> int:
        try:
            return self._groups.number(response)
        except BadCurves as error:
            self._log("curves", logging.WARNING, "the predictor's reuse curves cannot be used: %s", error)
            return 0

    def _note_unread(self) -> None:
        with self._lock:
            self._counts["unread"] += 1
        if self._offer is None or self._unread:
            return
        if self._offer.state == "ready":
            self._log(
                "foreign",
                logging.WARNING,
                "a predictor that was offered the tokenizer of %s did not read a prompt: it is offered again; if that goes on, "
                "the sidecar's log and `lpc doctor` give the reason",
                self._offer.served_model,
            )
        self._unread = True
        self._look.set()

    def _heard(self, code: grpc.StatusCode) -> None:
        """Note what a call shows of whether sidecars answer. Any thread."""
        if code not in _NOT_REACHED:
            self._heard_at = self._clock()
            self._note_reached(True, "")
        elif self._reached is not False and not self._suspicious:
            self._suspicious = True
            self._look.set()

    def _note_reached(self, reached: bool, reason: str) -> None:
        with self._lock:
            if self._closed or self._reached is reached:
                return
            self._reached = reached
        if reached:
            logger.info("connected to the predictor at %s", self._address)
        else:
            logger.warning("no connection to the predictor at %s (%s): no predictions until it is back", self._address, reason)

    # The watcher's thread.

    def _watch(self) -> None:
        if self._offer is not None:
            self._offer.look()
        while not self._closed:
            self._look.clear()
            try:
                self._open()
                if self._offer is not None and self._offer_due_s() <= 0:
                    self._make_offer(self._offer)
                if self._probe_due_s() <= 0:
                    self._probe()
            except Exception as error:
                if not self._closed:
                    log_bug(logger, "watching the predictor", error)
            self._look.wait(max(min(self._offer_due_s(), self._probe_due_s()), 0.05))

    def _open(self) -> None:
        """Make the channel, and another when the certificates have changed; read the token."""
        try:
            access = self._read_access()
            if self._channel is not None and access.pem == self._access.pem:
                self._access = access
                return
            channel = access.channel(self._address, self._options)
        except Exception as error:
            # A file that cannot be used, or an address that gRPC cannot even parse.
            reason = str(error) if isinstance(error, CertificateError) else type(error).__name__
            if self._channel is None:
                self._note_reached(False, reason)
            else:
                self._log("access", logging.WARNING, "new certificates or a new token are not used: %s", reason)
            return
        with self._lock:
            if self._closed:
                channel.close()
                return
            old, self._channel, self._access = self._channel, channel, access
            self._stub = predictor_pb2_grpc.ContinuationPredictorStub(channel)
            self._changed.notify()
        if old is not None:
            retire = threading.Timer(RETIRE_S, old.close)
            retire.daemon = True
            retire.start()

    def _offer_due_s(self) -> float:
        """Seconds until the tokenizer is to be offered."""
        if self._offer is None or (self._offer.state == "ready" and not self._unread):
            return float("inf")
        pause = RETRY_S if self._offer.state in ("unknown", "loading", "ready") else REFUSED_S
        return self._offered_at + pause - self._clock()

    def _make_offer(self, offer: Offer) -> None:
        if self._stub is None:
            return
        self._offered_at, self._unread = self._clock(), False
        try:
            answer = self._stub.OfferTokenizer(offer.parts(), timeout=OFFER_TIMEOUT_S, metadata=self._access.metadata)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNIMPLEMENTED, *_OUR_FAULT):
                self._log("offer", logging.WARNING, "the predictor takes no offer of a tokenizer (%s)", code.name)
            return
        offer.heard(answer.status)
        self._heard(grpc.StatusCode.OK)

    def _probe_due_s(self) -> float:
        """Seconds until a look at whether a sidecar answers."""
        if self._reached is True and not self._suspicious:
            return self._heard_at + self._probe_s - self._clock()
        return self._probed_at + RETRY_S - self._clock()

    def _probe(self) -> None:
        if self._stub is None:
            return
        self._probed_at, self._suspicious = self._clock(), False
        try:
            self._stub.GetModelInfo(
                predictor_pb2.GetModelInfoRequest(), timeout=PROBE_TIMEOUT_S, metadata=self._access.metadata
            )
        except grpc.RpcError as error:
            code = error.code()
            if self._heard_at < self._probed_at:  # else another sidecar has answered
                self._note_reached(False, "nothing answers" if code is grpc.StatusCode.DEADLINE_EXCEEDED else str(code))
            return
        self._heard(grpc.StatusCode.OK)
