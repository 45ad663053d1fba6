"""The client of the response caches. A failed lookup is a miss, so that a request can go on.

A look-up that ends with a flight makes this caller the leader of equal requests. The client renews its flights until they are
stored, so that the others go on soon if this process dies.

`lookup`, `wait_for_answer` and `store` never raise. If the sidecar is not running, gRPC fails at once. If it does not respond,
a few requests wait for the deadline (50 ms); from then on, one request per second checks whether it responds again.
`feedback`, `invalidate`, `stats`, `report` and `frequent` raise :class:`CacheError`.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.errors import LpcError
from lpc.wire.access import Access, proxy_advice
from lpc.wire.certificates import CertificateError

TIMEOUT_S: Final = 0.05
"""Longest time that a lookup may add to a request."""
STORE_TIMEOUT_S: Final = 5.0
"""Long, because no request waits for it."""
ADMIN_TIMEOUT_S: Final = 30.0
SLICE_S: Final = 0.5
"""`wait_for_answer` waits in calls of this length, so that it notices a sidecar that dies."""
RENEW_S: Final = 0.5
"""Interval at which flights are renewed."""
RENEW_TIMEOUT_S: Final = 1.0
"""Less than a lease, so that one silent sidecar of several costs none."""
HELD_S: Final = 60.0
"""Time for which a flight is renewed, at most, in case its caller never stores an answer."""
AT_ONCE: Final = 200
"""Flights that one call renews."""
REOPEN_S: Final = 30.0
"""A failing connection of at least this age is reopened, and certificates are read again."""
SILENCES: Final = 3
"""Consecutive missed deadlines after which most requests skip the cache."""
REST_S: Final = 1.0
"""Then one request per this interval checks the sidecar."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    # A host name with several addresses stands for several sidecars.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)
_UNAVAILABLE: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_UNAVAILABLE))
_REFUSED: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_REFUSED))
DENIED: Final = "permission_denied"
"""Refusal of a miss if the caller sent a tenant and is not in LPC_CACHE_GATEWAYS."""
_DENIED: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_REFUSED, refusal=DENIED))
_NOT_STORED: Final = pb.StoreResponse(refusal="unavailable")


class CacheError(LpcError):
    """A call to the response caches failed."""


class CircuitBreaker:
    """Opens after `SILENCES` consecutive missed deadlines.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timeouts = 0
        self._next_probe = 0.0

    @property
    def open(self) -> bool:
        """Whether most requests skip the sidecar."""
        return self._timeouts >= SILENCES

    def allows(self) -> bool:
        """Return whether this request may call the sidecar; while open, one per `REST_S` may."""
        if not self.open:
            return True
        now = self._clock()
        if now < self._next_probe:
            return False
        self._next_probe = now + REST_S
        return True

    def responded(self) -> None:
        """Close it: the sidecar responded, perhaps with an error."""
        self._timeouts = 0

    def timed_out(self) -> None:
        """Count a missed deadline."""
        self._timeouts += 1
        if self._timeouts == SILENCES:
            self._next_probe = self._clock() + REST_S


class ResponseCacheClient:
    """A client of the sidecar's response caches, for one event loop.

    Args:
        address: the sidecar's address, host:port or unix:///path.
        access: returns TLS credentials and token.
        timeout_s: longest time that a lookup may take.
    """

    def __init__(self, address: str, *, access: Callable[[], Access] = Access, timeout_s: float = TIMEOUT_S) -> None:
        self._address, self._access, self._timeout_s = address, access, timeout_s
        self._breaker = CircuitBreaker()
        self._channel: grpc.aio.Channel | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._opened = -REOPEN_S
        self._closing: set[asyncio.Task[None]] = set()
        self._held: dict[bytes, tuple[str, float]] = {}
        """Flights that this client leads: the tenant, and the time of the end of renewals, monotonic seconds."""
        self._renewing: asyncio.Task[None] | None = None

    @property
    def silent(self) -> bool:
        """Whether the sidecar has missed its deadlines, so that most requests skip it."""
        return self._breaker.open

    def channel(self) -> tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]:
        """Return the channel and the metadata for calls on it. Raises CertificateError."""
        if self._channel is None:
            access = self._access()
            self._channel = access.aio_channel(self._address, _OPTIONS)
            self._metadata, self._opened = access.metadata, time.monotonic()
            # Connect now, so that the first lookup need not.
            self._channel.get_state(try_to_connect=True)
        return self._channel, self._metadata

    async def lookup(self, request: pb.Request, *, exact_only: bool = False, will_wait: bool = False) -> pb.LookupResponse:
        """Return a cached answer or the reason of the miss, without waiting for other callers.

        Args:
            request: from `response_cache.bodies.question`.
            exact_only: accept only an answer to the same request.
            will_wait: whether the caller calls `wait_for_answer` after REASON_IN_FLIGHT. Both calls count as one look-up.
        """
        message = pb.LookupRequest(request=request, exact_only=exact_only, renews=True, asks_again=will_wait)
        return await self._lookup(message, self._timeout_s) if self._breaker.allows() else _UNAVAILABLE

    async def wait_for_answer(self, request: pb.Request, wait_s: float) -> pb.LookupResponse:
        """After REASON_IN_FLIGHT: wait up to ``wait_s`` for the answer that another caller requested."""
        answer = _UNAVAILABLE
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            wait_ms = max(1, int(min(left, SLICE_S) * 1000))
            message = pb.LookupRequest(request=request, wait_ms=wait_ms, renews=True, asks_again=left > SLICE_S)
            answer = await self._lookup(message, wait_ms / 1000 + self._timeout_s)
            if answer.miss.reason != pb.REASON_IN_FLIGHT or self._breaker.open:
                break
        return answer

    async def store(self, message: pb.StoreRequest) -> pb.StoreResponse:
        """Store an answer, or report that there will be none (`aborted`). May take `STORE_TIMEOUT_S`."""
        self._held.pop(message.flight, None)
        try:
            stored: pb.StoreResponse = await self._call("Store", message, STORE_TIMEOUT_S)
        except Exception as error:
            self._failed(error)
            return _NOT_STORED
        return stored

    async def feedback(self, message: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Report whether an answer was right. Raises CacheError."""
        done: pb.FeedbackResponse = await self._call_or_raise("Feedback", message)
        return done

    async def invalidate(self, message: pb.InvalidateRequest) -> pb.InvalidateResponse:
        """Make answers unfindable. Raises CacheError."""
        done: pb.InvalidateResponse = await self._call_or_raise("Invalidate", message)
        return done

    async def stats(self, message: pb.StatsRequest) -> pb.StatsResponse:
        """Return entries and the threshold in force, by scope. Raises CacheError."""
        done: pb.StatsResponse = await self._call_or_raise("Stats", message)
        return done

    async def report(self, message: pb.ReportRequest) -> pb.ReportResponse:
        """Return look-ups by result and savings, by scope and day. Raises CacheError."""
        done: pb.ReportResponse = await self._call_or_raise("Report", message)
        return done

    async def frequent(self, message: pb.FrequentRequest) -> pb.FrequentResponse:
        """Return the questions that were asked most often yesterday. Raises CacheError."""
        done: pb.FrequentResponse = await self._call_or_raise("Frequent", message)
        return done

    async def pairs(self, message: pb.PairsRequest) -> pb.PairsResponse:
        """Return questions of a scope with their candidates. Raises CacheError."""
        done: pb.PairsResponse = await self._call_or_raise("Pairs", message)
        return done

    async def close(self) -> None:
        """Close the connection. Flights that were not stored end soon."""
        self._held.clear()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._close_channel()

    async def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _hold(self, flight: bytes, tenant: str) -> None:
        """Renew a flight until it is stored."""
        self._held[flight] = tenant, time.monotonic() + HELD_S
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(RENEW_S)
            now = time.monotonic()
            for flight in [flight for flight, (_, until) in self._held.items() if now >= until]:
                del self._held[flight]
            flights = [pb.HeldFlight(flight=flight, tenant=tenant) for flight, (tenant, _) in self._held.items()]
            for first in range(0, len(flights), AT_ONCE):
                # A flight that is not renewed ends, which harms nobody: an equal request goes to the engine as well.
                with contextlib.suppress(grpc.RpcError, CertificateError):
                    await self._call("Renew", pb.RenewRequest(flights=flights[first : first + AT_ONCE]), RENEW_TIMEOUT_S)

    async def _lookup(self, message: pb.LookupRequest, timeout_s: float) -> pb.LookupResponse:
        try:
            answer: pb.LookupResponse = await self._call("Lookup", message, timeout_s)
        except Exception as error:
            self._failed(error)
            return _miss(error)
        self._breaker.responded()
        # A hit from a source that only a newer sidecar knows becomes a miss, such a reason "unspecified".
        if answer.HasField("hit"):
            return answer if answer.hit.source in pb.Source.values() else pb.LookupResponse(miss=pb.Miss())
        if answer.miss.reason not in pb.Reason.values():
            answer.miss.reason = pb.REASON_UNSPECIFIED
        if answer.miss.flight:
            self._hold(answer.miss.flight, message.request.tenant)
        return answer

    async def _call_or_raise(self, method: str, message: Any) -> Any:
        try:
            return await self._call(method, message, ADMIN_TIMEOUT_S)
        except (grpc.RpcError, CertificateError) as error:
            raise CacheError(_message_of(error, self._address)) from error

    async def _call(self, method: str, message: Any, timeout_s: float) -> Any:
        channel, metadata = self.channel()
        stub: Any = rpc.ResponseCacheStub(channel)
        return await getattr(stub, method)(message, timeout=timeout_s, metadata=metadata)

    def _failed(self, error: Exception) -> None:
        """Record a failed call. Reopen an old connection, because a new token or certificate may help."""
        if not isinstance(error, grpc.RpcError):
            return
        code = _code_of(error)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._breaker.timed_out()
        else:
            self._breaker.responded()
        reopening_helps = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
        if reopening_helps and time.monotonic() - self._opened > REOPEN_S:
            task = asyncio.get_running_loop().create_task(self._close_channel())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _miss(error: Exception) -> pb.LookupResponse:
    """Return the miss for a failed lookup. A sidecar that refuses a request is available."""
    code: Any = _code_of(error) if isinstance(error, grpc.RpcError) else None
    return {grpc.StatusCode.INVALID_ARGUMENT: _REFUSED, grpc.StatusCode.PERMISSION_DENIED: _DENIED}.get(code, _UNAVAILABLE)


def _code_of(error: grpc.RpcError) -> Any:
    """Return the status code of a failed call; None if it has none."""
    code = getattr(error, "code", None)
    return code() if callable(code) else None


def _message_of(error: Exception, address: str) -> str:
    """Return an error message for people: what went wrong and what to do."""
    if not isinstance(error, grpc.RpcError):
        return str(error)
    code = _code_of(error)
    details = getattr(error, "details", None)
    reason = details() if callable(details) else ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"the sidecar at {address} has no response cache: update it"
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        advice = proxy_advice(address) or "start it, or name another with LPC_PREDICTOR_ADDRESS"
        return f"no sidecar answers at {address} ({reason or code.name}): {advice}"
    return f"the sidecar at {address} refuses: {reason or code}"
