"""The connection of the sidecar's client: channel, certificates, probes, and offers of the tokenizer.

gRPC does most of it (`CHANNEL_OPTIONS`): it resolves the address, calls the sidecars behind it in turn, drops dead connections,
reconnects, and retries once if a sidecar is gone or overloaded. The *watcher*, a thread, offers the tokenizer, renews
certificates and probes the sidecar.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from eviction_client.transport.tokenizer_upload import LogOnce, Offer
from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.access import Access, proxy_advice
from lpc.wire.bugs import log_bug
from lpc.wire.certificates import CertificateError

logger = logging.getLogger(__name__)

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

PERMANENT: Final = (
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


class PredictorChannel:
    """The channel to the sidecars, and its watcher. Thread-safe; no method raises, and only :meth:`join` blocks.

    Args:
        address, access, probe_s, clock: as in `PredictorClient`.
        options: gRPC channel options, on top of `CHANNEL_OPTIONS`.
        offer: the offer of the engine's tokenizer; None: there is none.
        opened: called in the watcher's thread when `stub` has changed.

    Attributes:
        stub: calls the sidecars; None until the channel is open.
        reached: whether a sidecar answered last time; None: unknown.
    """

    def __init__(
        self,
        address: str,
        *,
        access: Callable[[], Access],
        options: Sequence[tuple[str, Any]],
        probe_s: float,
        offer: Offer | None,
        opened: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._address = address
        self._read_access = access
        self._options = tuple({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
        self._probe_s = probe_s
        self._offer = offer
        self._log = LogOnce()
        self._opened = opened
        self._clock = clock

        self._lock = threading.Lock()
        """Guards `reached`, and the change of the channel against :meth:`close`."""
        self._closed = False
        self._access = Access()
        self._channel: grpc.Channel | None = None
        self.stub: predictor_pb2_grpc.ContinuationPredictorStub | None = None
        self.reached: bool | None = None
        self._answered_at = self._probed_at = self._offered_at = -float("inf")
        self._suspicious = False
        """Whether a call has failed since the last probe as if no sidecar were reachable."""
        self._unread = False
        """Whether a sidecar could not read a prompt since the last offer."""
        self._wake = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lpc-predictor-watcher", daemon=True)
        self._watcher.start()

    @property
    def metadata(self) -> Any:
        """Metadata of each call: the token."""
        return self._access.metadata

    def close(self) -> None:
        """Close the channel, and let the watcher end."""
        with self._lock:
            self._closed = True
        self._wake.set()
        if self._channel is not None:
            self._channel.close()

    def join(self, timeout: float) -> None:
        """Wait for the watcher, at most ``timeout`` seconds."""
        self._watcher.join(timeout)

    def note_status(self, code: grpc.StatusCode) -> None:
        """Update the health from a call's status."""
        if code not in _INCONCLUSIVE:
            self._answered_at = self._clock()
            self._note_reached(True, "")
        elif self.reached is not False and not self._suspicious:
            self._suspicious = True
            self._wake.set()

    def note_unread(self) -> None:
        """Offer the tokenizer again, because a sidecar could not read a prompt."""
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
        self._wake.set()

    def explain(self, cause: str, size: int, what: str) -> None:
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

    def _note_reached(self, reached: bool, reason: str) -> None:
        with self._lock:
            if self._closed or self.reached is reached:
                return
            self.reached = reached
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
            self._wake.clear()
            try:
                self._open()
                if self._offer is not None and self._offer_due_s() <= 0:
                    self._make_offer(self._offer)
                if self._probe_due_s() <= 0:
                    self._probe()
            except Exception as error:
                if not self._closed:
                    log_bug(logger, "watching the predictor", error)
            self._wake.wait(max(min(self._offer_due_s(), self._probe_due_s()), 0.05))

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
            self.stub = predictor_pb2_grpc.ContinuationPredictorStub(channel)
        self._opened()
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
        if self.stub is None:
            return
        self._offered_at, self._unread = self._clock(), False
        try:
            answer = self.stub.OfferTokenizer(offer.parts(), timeout=OFFER_TIMEOUT_S, metadata=self._access.metadata)
        except grpc.RpcError as error:
            code = error.code()
            cause = cause_of(code, error.details() or "")
            if cause == TOO_LARGE or cause.startswith("http_"):
                self.explain(cause, offer.size, "the tokenizer")
            elif code in (grpc.StatusCode.UNIMPLEMENTED, *PERMANENT):
                self._log("offer", logging.WARNING, "the predictor does not accept tokenizers (%s)", code.name)
            return
        offer.update(answer.status)
        self.note_status(grpc.StatusCode.OK)

    def _probe_due_s(self) -> float:
        """Seconds until the next probe of the sidecar."""
        if self.reached is True and not self._suspicious:
            return self._answered_at + self._probe_s - self._clock()
        return self._probed_at + RETRY_S - self._clock()

    def _probe(self) -> None:
        if self.stub is None:
            return
        self._probed_at, self._suspicious = self._clock(), False
        try:
            self.stub.GetModelInfo(predictor_pb2.GetModelInfoRequest(), timeout=PROBE_TIMEOUT_S, metadata=self._access.metadata)
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
                self.note_status(code)
            elif self._answered_at < self._probed_at:  # else another sidecar has answered
                self._note_reached(False, "nothing answers" if code is grpc.StatusCode.DEADLINE_EXCEEDED else str(code))
            return
        self.note_status(grpc.StatusCode.OK)


def cause_of(code: grpc.StatusCode, details: str) -> str:
    """Return the cause of a failed call: `TOO_LARGE`, the HTTP status of a proxy, or gRPC's status."""
    answered = _HTTP.search(details)
    if (answered and answered[1] == "413") or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_LIMIT in details):
        return TOO_LARGE
    return f"http_{answered[1]}" if answered else str(code.name).lower()
