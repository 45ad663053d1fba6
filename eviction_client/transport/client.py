"""Client of the sidecar: one asynchronous `Predict` call per request, off the engine's serving path.

The scheduler calls :meth:`PredictorClient.ask` when it admits a request and :meth:`PredictorClient.take` when it frees the
request's blocks. Both only touch dictionaries under a lock that is never held during I/O or encoding: microseconds.
A request without an answer, for whatever reason, gets ``None`` and the group that the engine computes.

A call waits for a connection (:mod:`eviction_client.transport.channel`) until its deadline. The client uses gRPC's synchronous
API because grpc.aio has one poller per process for all event loops: an engine that runs grpc.aio in another thread and this
client would wake each other.

Threads: the *sender* encodes and calls; the channel's watcher keeps the connection; gRPC's own thread delivers the answers.
Create the client after the engine has forked: threads do not survive a fork.
"""

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import grpc

from eviction_client.pace import gives_way
from eviction_client.settings import ClientSettings
from eviction_client.transport.channel import PERMANENT, TOO_LARGE, PredictorChannel, cause_of
from eviction_client.transport.messages import MAX_TOKEN_IDS, Question, SidecarPrediction, TooManyTokens, decode, encode
from eviction_client.transport.predictor import Fate, PredictorCounters
from eviction_client.transport.sidecar_curves import BadCurves, ReuseCurves, SidecarCurves
from eviction_client.transport.tokenizer_upload import FindFiles, LogOnce, Offer, TokenizerState
from lpc.v1 import predictor_pb2
from lpc.wire.access import Access, access_of
from lpc.wire.bugs import log_bug

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

_FATES: Final[dict[grpc.StatusCode, Fate]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
}


@dataclass(slots=True, eq=False)
class _Request:
    """One request. ``deadline``: by the client's clock. ``over``: it has its answer or will get none."""

    key: Hashable
    question: Question | None
    deadline: float
    over: bool = False
    answer: SidecarPrediction | None = None
    call: Any = None


class PredictorClient:
    """The engine's client of the sidecars. Thread-safe; no public method raises, and only ``close`` blocks.

    Args:
        address: gRPC address such as host:port or unix:///path/to/socket. A name may resolve to several sidecars.
        served_model: name under which the sidecar knows the engine's tokenizer; ``ask`` may override it.
        timeout_s: default deadline of ``ask``, seconds from the call.
        capacity: requests remembered, waiting and answered together; beyond it the oldest is dropped.
        access: returns the TLS files and the token, called repeatedly. The default is plain text without a token.
        tokenizer: finds the files of ``served_model``'s tokenizer, to offer them to the sidecar; called in the channel's
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
        self._served_model = served_model
        self._timeout_s = timeout_s
        self._capacity = capacity
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
        """Requests by ``id()``, oldest first; none of them is over."""
        self._to_cancel: deque[Any] = deque(maxlen=capacity)
        """Calls to cancel."""
        self._in_flight = 0
        self._waiting = 0
        self._counts = {one.name: 0 for one in fields(PredictorCounters) if one.name != "causes"}
        self._causes: Counter[str] = Counter()
        self._closed = False

        self._channel = PredictorChannel(
            address, access=access, options=options, probe_s=probe_s, offer=self._offer, opened=self._wake_sender, clock=clock
        )
        self._sender = threading.Thread(target=self._send, name="lpc-predictor-sender", daemon=True)
        self._sender.start()

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

    def take(self, request_id: Hashable) -> SidecarPrediction | None:
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
        return self.reached is True

    @property
    def reached(self) -> bool | None:
        """Whether the last attempt reached a sidecar; None before the first one's end."""
        return self._channel.reached

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
        self._channel.close()
        for join in (self._sender.join, self._channel.join):
            join(max(until - time.monotonic(), 0.0))

    # With the lock held.

    def _drop(self, key: Hashable, fate: Fate) -> None:
        """Forget a request, if known. If it waits, count it as ``fate`` and cancel its call."""
        request = self._requests.pop(key, None)
        if request is not None and not request.over:
            self._end(request, fate)
            if request.call is not None:
                self._to_cancel.append(request.call)
                self._changed.notify()

    def _end(self, request: _Request, fate: Fate, answer: SidecarPrediction | None = None) -> None:
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

    def _wake_sender(self) -> None:
        with self._lock:
            self._changed.notify()

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
        return bool(self._unsent) and self._in_flight < MOST_IN_FLIGHT and self._channel.stub is not None

    def _call(self, request: _Request) -> None:
        question, stub, timeout_s = request.question, self._channel.stub, request.deadline - self._clock()
        if question is None or stub is None or not timeout_s > 0:
            self._ended(request, "late")
            return
        cause = "invalid"
        try:
            message = encode(question, "" if self._offer is None else self._offer.digest_of(question.served_model))
            message.accept_unread = self._offer is not None
            message.known_curves.extend(self._groups.known)
            call = stub.Predict.future(message, timeout=timeout_s, metadata=self._channel.metadata, wait_for_ready=True)
        except TooManyTokens:
            self._log(
                "tokens", logging.WARNING, "prompts of more than %d tokens get no prediction: this is the limit", MAX_TOKEN_IDS
            )
            cause = TOO_LARGE
        except UnicodeError:  # in the caller's session or category
            pass
        except Exception as error:
            if not self._closed:
                log_bug(logger, "encoding a request for the predictor", error)
        else:
            with self._lock:
                request.call = call
                if request.over:
                    self._to_cancel.append(call)
            size = message.ByteSize()
            call.add_done_callback(lambda done: self._answered(request, done, size))
            return
        self._ended(request, "failed", cause=cause)

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
                    with self._lock:
                        self._counts["unread"] += 1
                    self._channel.note_unread()
            else:
                details = call.details() or ""
                cause = cause_of(code, details)
                fate = _FATES.get(code, "failed")
                if code in PERMANENT:
                    self._log(code.name, logging.WARNING, "the predictor refuses requests (%s): %s", code.name, details)
                elif cause == TOO_LARGE or (fate == "failed" and code is not grpc.StatusCode.CANCELLED):
                    self._channel.explain(cause, size, "a prompt")
            if not request.over:
                self._channel.note_status(code)
        except Exception as error:
            log_bug(logger, "reading the predictor's answer", error)
        self._ended(request, fate, answer, cause)

    def _ended(self, request: _Request, fate: Fate, answer: SidecarPrediction | None = None, cause: str = "invalid") -> None:
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
