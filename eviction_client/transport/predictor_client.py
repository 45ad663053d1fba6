"""Client of the sidecar: one asynchronous `Predict` call per request, off the engine's serving path.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
A request without an answer, for whatever reason, gets ``None`` and the group that the engine computes.

gRPC does the rest (`CHANNEL_OPTIONS`): it resolves the address, calls the sidecars behind it in turn, drops dead connections,
reconnects, and retries once if a sidecar is gone or overloaded. A call waits for a connection until its deadline. The client
uses gRPC's synchronous API because grpc.aio has one poller per process for all event loops: an engine that runs grpc.aio in
another thread and this client would wake each other.

Threads: the *sender* encodes and calls; the *watcher* offers the tokenizer, renews certificates and probes the sidecar; gRPC's
own thread delivers the answers. Create the client after the engine has forked: threads do not survive a fork.
"""

import json
import logging
import re
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import grpc

from eviction_client.pace import gives_way
from eviction_client.settings import ClientSettings
from eviction_client.transport.messages import MAX_TOKEN_IDS, Prediction, Question, TooManyTokens, decode, encode
from eviction_client.transport.sidecar_curves import BadCurves, ReuseCurves, SidecarCurves
from eviction_client.transport.tokenizer_upload import FindFiles, LogOnce, Offer, TokenizerState
from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.access import Access, access_of, proxy_advice
from lpc.wire.bugs import log_bug
from lpc.wire.certificates import CertificateError

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""Default deadline of a call."""
MAX_TIMEOUT_S: Final = 600.0
MOST_IN_FLIGHT: Final = 1024
"""Concurrent calls; further requests wait in the client."""
TICK_S: Final = 0.25
"""How often unsent requests are checked for expiry."""
PROBE_S: Final = 30.0
"""Interval of probes of an idle sidecar, and of checks of the certificate files."""
RETRY_S: Final = 2.0
"""Interval of probes while no sidecar answers, and of offers while the tokenizer is not ready."""
REFUSED_S: Final = 60.0
"""Pause before a rejected tokenizer is offered again."""
PROBE_TIMEOUT_S: Final = 5.0
OFFER_TIMEOUT_S: Final = 300.0
RETIRE_S: Final = 30.0
"""How long calls in flight may finish on a channel whose certificates were replaced."""

CHANNEL_OPTIONS: Final = (
    (
        "grpc.service_config",
        json.dumps(
            {
                "loadBalancingConfig": [{"round_robin": {}}],
                "methodConfig": [
                    {
                        "name": [{"service": "lpc.v1.ContinuationPredictor", "method": "Predict"}],
                        # One retry: the request itself may be what crashes the sidecars.
                        "retryPolicy": {
                            "maxAttempts": 2,
                            "initialBackoff": "0.05s",
                            "maxBackoff": "1s",
                            "backoffMultiplier": 2,
                            # CANCELLED: the server stopped before it answered.
                            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
                        },
                    }
                ],
                # An overloaded fleet must not get every request twice.
                "retryThrottling": {"maxTokens": 1000, "tokenRatio": 0.1},
            }
        ),
    ),
    # gRPC retries only what fits in this buffer: 1 million token ids take 4 MiB.
    ("grpc.per_rpc_retry_buffer_size", 5 << 20),
    # Pings while calls wait: a host that is gone closes no connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC 1.85 uses this one instead (default 60 s), as measured.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Time limit of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ("grpc.max_receive_message_length", 1 << 20),
    # Else clients of one process would share connections and their reconnect backoff.
    ("grpc.use_local_subchannel_pool", 1),
)

_HTTP: Final = re.compile(r"Received http2 header with status: (\d{3})")
"""gRPC's message if a proxy on the way answers with an HTTP error, and not the sidecar."""
_OVER_LIMIT: Final = "larger than max"
"""gRPC's message about a request above the sidecar's limit."""
TOO_LARGE: Final = "too_large"
"""Cause of a failure: a proxy, the sidecar or the protocol takes no message of this size."""

Fate = Literal["answered", "late", "failed", "refused", "forgotten"]
"""How a request ended: the name of a counter in :class:`PredictorCounters`."""

_FATES: Final[dict[grpc.StatusCode, Fate]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
}
_PERMANENT: Final = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
)
"""Errors that last until an operator fixes the setup."""
_INCONCLUSIVE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses that do not prove that a sidecar works."""


@dataclass(frozen=True, slots=True)
class PredictorCounters:
    """How requests ended. Each request counts in exactly one of the first five, or still waits."""

    answered: int = 0
    late: int = 0
    """No answer before the deadline, or dropped for newer requests."""
    failed: int = 0
    """The sidecar returned an error or crashed twice, or the request could not be encoded."""
    refused: int = 0
    """The sidecars were overloaded, or take no message of this size."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    unread: int = 0
    """Answers to prompts that the sidecar could not read. They also count in ``answered``."""
    causes: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Those in ``failed`` by cause, and in ``refused`` with `TOO_LARGE`: else ``http_`` and a proxy's status, a status of
    gRPC, or ``invalid``."""

    @property
    def ended(self) -> int:
        """Requests that do not wait for an answer."""
        return self.answered + self.late + self.failed + self.refused + self.forgotten


@dataclass(slots=True, eq=False)
class _Request:
    """One request. ``deadline``: by the client's clock. ``over``: it has its answer or will get none."""

    key: Hashable
    question: Question | None
    deadline: float
    over: bool = False
    answer: Prediction | None = None
    call: Any = None


class PredictorClient:
    """The engine's client of the sidecars. Thread-safe; no public method raises, and only ``close`` blocks.

    Args:
        address: gRPC address such as host:port or unix:///path/to/socket. A name may resolve to several sidecars.
        served_model: name under which the sidecar knows the engine's tokenizer; ``ask`` may override it.
        timeout_s: default deadline of ``ask``, seconds from the call.
        capacity: requests remembered, waiting and answered together; beyond it the oldest is dropped.
        access: returns the TLS files and the token, called repeatedly. The default is plain text without a token.
        tokenizer: finds the files of ``served_model``'s tokenizer, to offer them to the sidecar; called in the watcher's
            thread. Without it the sidecar's operator must configure the tokenizer.
        probe_s: interval of probes of an idle sidecar, seconds.
        options: gRPC channel options, on top of `CHANNEL_OPTIONS`.
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
        self._groups = SidecarCurves(clock)

        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Wakes the sender."""
        # With the lock held:
        self._requests: OrderedDict[Hashable, _Request] = OrderedDict()
        self._unsent: OrderedDict[int, _Request] = OrderedDict()
        """By ``id()``, oldest first; none of them is over."""
        self._to_cancel: deque[Any] = deque(maxlen=capacity)
        """Calls to cancel."""
        self._in_flight = 0
        self._waiting = 0
        self._counts = {one.name: 0 for one in fields(PredictorCounters) if one.name != "causes"}
        self._causes: Counter[str] = Counter()
        self._closed = False

        self._access = Access()
        self._channel: grpc.Channel | None = None
        self._stub: predictor_pb2_grpc.ContinuationPredictorStub | None = None
        self._reached: bool | None = None
        self._answered_at = self._probed_at = self._offered_at = -float("inf")
        self._suspicious = False
        """Since the last probe, a call has failed as if no sidecar were reachable."""
        self._unread = False
        """Since the last offer, a sidecar could not read a prompt."""
        self._wake_watcher = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"lpc-predictor-{name}", daemon=True)
            for name, run in (("sender", self._send), ("watcher", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def of(cls, settings: ClientSettings, served_model: str, tokenizer: FindFiles) -> "PredictorClient":
        """Return the client for an engine's settings. ``served_model``: used unless the settings name one."""
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
        user: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Request a prediction for a conversation. A second call with the same id replaces the first.

        Args:
            request_id: the engine's; it does not leave the process.
            token_ids: the rendered prompt. Not copied: it must not change until the answer has arrived.
            turn_count: user turns so far, if the engine knows.
            user: digest of who asks; empty: unknown.
            timeout_s: deadline, seconds from now.
        """
        try:
            timeout = self._timeout_s if timeout_s is None else min(float(timeout_s), MAX_TIMEOUT_S)
            model = self._served_model if served_model is None else served_model
            question = Question(token_ids, model, turn_count, category, conversation_id, user)
            request = _Request(request_id, question, self._clock() + timeout)
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
            # An unhashable id, a time-out that is not a number: serving must go on.
            with self._lock:
                self._counts["failed"] += 1
                self._causes["invalid"] += 1
            log_bug(logger, "asking the predictor", error)

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer and forget the request; without an answer return None and change nothing.

        To drop a request that has no answer yet, call :meth:`forget`.
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
        """The predicted curves of the groups in predictions; None while unknown. A new epoch renumbers the groups."""
        return self._groups.curves

    @property
    def healthy(self) -> bool:
        """Whether a sidecar answered last time."""
        return self._reached is True

    @property
    def tokenizer_state(self) -> TokenizerState:
        """The latest answer of a sidecar to the offer of ``served_model``'s tokenizer."""
        return "unknown" if self._offer is None else self._offer.state

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""
        with self._lock:
            return PredictorCounters(**self._counts, causes=dict(self._causes))

    @property
    def waiting(self) -> int:
        """Number of requests that wait for an answer."""
        return self._waiting

    def close(self, timeout: float = 2.0) -> None:
        """Close the connection and stop the threads, within ``timeout`` seconds. Later calls do nothing."""
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            self._requests.clear()
            self._unsent.clear()
            self._changed.notify_all()
        self._wake_watcher.set()
        if self._channel is not None:
            self._channel.close()
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    # With the lock held.

    def _drop(self, key: Hashable, fate: Fate) -> None:
        """Forget a request, if known. If it waits, count it as ``fate`` and cancel its call."""
        request = self._requests.pop(key, None)
        if request is not None and not request.over:
            self._end(request, fate)
            if request.call is not None:
                self._to_cancel.append(request.call)
                self._changed.notify()

    def _end(self, request: _Request, fate: Fate, answer: Prediction | None = None) -> None:
        """Mark a request as over and count it; forget it if it has no answer."""
        if request.over:
            return
        request.over, request.answer = True, answer
        request.question = None  # frees the token ids
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
        gives_way()
        while True:
            with self._lock:
                while not (self._closed or self._to_cancel or self._sendable):
                    self._changed.wait(TICK_S if self._unsent else None)
                    self._expire(self._clock())
                if self._closed:
                    return
                calls = list(self._to_cancel)
                self._to_cancel.clear()
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
        except TooManyTokens:
            self._log(
                "tokens", logging.WARNING, "prompts of more than %d tokens get no prediction: this is the limit", MAX_TOKEN_IDS
            )
            self._ended(request, "failed", cause=TOO_LARGE)
            return
        except UnicodeError:  # in the caller's session or category
            self._ended(request, "failed", cause="invalid")
            return
        except Exception as error:
            if not self._closed:
                log_bug(logger, "encoding a request for the predictor", error)
            self._ended(request, "failed", cause="invalid")
            return
        with self._lock:
            request.call = call
            if request.over:
                self._to_cancel.append(call)
        size = message.ByteSize()
        call.add_done_callback(lambda done: self._answered(request, done, size))

    # gRPC's thread.

    def _answered(self, request: _Request, call: Any, size: int) -> None:
        fate: Fate = "failed"
        answer, cause = None, "invalid"
        try:
            code = call.code()
            if code is grpc.StatusCode.OK:
                response = call.result()
                answer = decode(response.prediction, self._group(response))
                fate = "failed" if answer is None else "answered"
                if answer is not None and answer.unread:
                    self._note_unread()
            else:
                details = call.details() or ""
                cause = cause_of(code, details)
                fate = _FATES.get(code, "failed")
                if code in _PERMANENT:
                    self._log(code.name, logging.WARNING, "the predictor refuses requests (%s): %s", code.name, details)
                elif cause == TOO_LARGE or (fate == "failed" and code is not grpc.StatusCode.CANCELLED):
                    self._explain(cause, size, "a prompt")
            if not request.over:
                self._note_status(code)
        except Exception as error:
            log_bug(logger, "reading the predictor's answer", error)
        self._ended(request, fate, answer, cause)

    def _explain(self, cause: str, size: int, what: str) -> None:
        """Log once why the predictor did not get a message of ``size`` bytes, and what to do."""
        if cause == TOO_LARGE:
            self._log(
                f"{what} {cause}",
                logging.WARNING,
                "%s of %d bytes does not reach the predictor at %s, because a proxy or the sidecar takes no message of this "
                "size: raise the proxy's limit to 64 MiB (nginx: client_max_body_size, 1 MiB by default) and "
                "LPC_MAX_REQUEST_BYTES of the sidecar; until then there are no predictions for such prompts",
                what,
                size,
                self._address,
            )
        else:
            self._log(
                f"{what} {cause}",
                logging.WARNING,
                "%s does not reach the predictor at %s (%s): see the log of the sidecar, and of a proxy on the way",
                what,
                self._address,
                cause,
            )

    def _ended(self, request: _Request, fate: Fate, answer: Prediction | None = None, cause: str = "invalid") -> None:
        with self._lock:
            self._in_flight -= 1
            if (fate == "failed" or cause == TOO_LARGE) and not request.over:
                self._causes[cause] += 1
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
        if self._offer is None or self._unread or self._offer.is_read_in_part:
            return
        if self._offer.state == "ready":
            self._log(
                "foreign",
                logging.WARNING,
                "a predictor could not read a prompt although it was offered the tokenizer of %s. The plug-in offers it again; "
                "if this repeats, see the sidecar's log and `lpc doctor`",
                self._offer.served_model,
            )
        self._unread = True
        self._wake_watcher.set()

    def _note_status(self, code: grpc.StatusCode) -> None:
        """Update the health from a call's status. Any thread."""
        if code not in _INCONCLUSIVE:
            self._answered_at = self._clock()
            self._note_reached(True, "")
        elif self._reached is not False and not self._suspicious:
            self._suspicious = True
            self._wake_watcher.set()

    def _note_reached(self, reached: bool, reason: str) -> None:
        with self._lock:
            if self._closed or self._reached is reached:
                return
            self._reached = reached
        if reached:
            logger.info("connected to the predictor at %s", self._address)
        else:
            reason = "; ".join(filter(None, (reason, proxy_advice(self._address))))
            logger.warning("no connection to the predictor at %s (%s): no predictions until it is back", self._address, reason)

    # The watcher's thread.

    def _watch(self) -> None:
        if self._offer is not None:
            self._offer.read_files()
        while not self._closed:
            self._wake_watcher.clear()
            try:
                self._open()
                if self._offer is not None and self._offer_due_s() <= 0:
                    self._make_offer(self._offer)
                if self._probe_due_s() <= 0:
                    self._probe()
            except Exception as error:
                if not self._closed:
                    log_bug(logger, "watching the predictor", error)
            self._wake_watcher.wait(max(min(self._offer_due_s(), self._probe_due_s()), 0.05))

    def _open(self) -> None:
        """Open the channel, replace it if the certificates have changed, and read the token."""
        try:
            access = self._read_access()
            if self._channel is not None and access.pem == self._access.pem:
                self._access = access
                return
            channel = access.channel(self._address, self._options)
        except Exception as error:
            # An unusable file, or an address that gRPC cannot parse.
            reason = str(error) if isinstance(error, CertificateError) else type(error).__name__
            if self._channel is None:
                self._note_reached(False, reason)
            else:
                self._log("access", logging.WARNING, "cannot use the new certificates or token, using the old ones: %s", reason)
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
        """Seconds until the next offer of the tokenizer."""
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
            cause = cause_of(code, error.details() or "")
            if cause == TOO_LARGE or cause.startswith("http_"):
                self._explain(cause, offer.size, "the tokenizer")
            elif code in (grpc.StatusCode.UNIMPLEMENTED, *_PERMANENT):
                self._log("offer", logging.WARNING, "the predictor does not accept tokenizers (%s)", code.name)
            return
        offer.update(answer.status)
        self._note_status(grpc.StatusCode.OK)

    def _probe_due_s(self) -> float:
        """Seconds until the next probe of the sidecar."""
        if self._reached is True and not self._suspicious:
            return self._answered_at + self._probe_s - self._clock()
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
            if code not in _INCONCLUSIVE:
                self._log(
                    "info",
                    logging.WARNING,
                    "the predictor at %s answers, but not to GetModelInfo (%s). Predictions do not need it: see its log",
                    self._address,
                    code.name,
                )
                self._note_status(code)
            elif self._answered_at < self._probed_at:  # else another sidecar has answered
                self._note_reached(False, "nothing answers" if code is grpc.StatusCode.DEADLINE_EXCEEDED else str(code))
            return
        self._note_status(grpc.StatusCode.OK)


def cause_of(code: grpc.StatusCode, details: str) -> str:
    """Return the cause of a failed call: `TOO_LARGE`, the HTTP status of a proxy, or gRPC's status."""
    answered = _HTTP.search(details)
    if (answered and answered[1] == "413") or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_LIMIT in details):
        return TOO_LARGE
    return f"http_{answered[1]}" if answered else str(code.name).lower()
