"""Asks the sidecar's response caches, and never stands in the way: what goes wrong is a miss.

`lookup`, `follow` and `store` raise nothing. A sidecar that is away costs nothing, since gRPC knows at once; one that is silent
costs the deadline (50 ms) for a few requests, then one request in a second finds out whether it is back. The other calls are of
people who want to know what went wrong: they raise :class:`CacheError`.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import grpc.aio

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.errors import LpcError
from lpc.wire.access import Access
from lpc.wire.certificates import CertificateError

TIMEOUT_S: Final = 0.05
"""Longest time that looking up may add to a request."""
STORE_TIMEOUT_S: Final = 5.0
"""Of what nobody waits for."""
ADMIN_TIMEOUT_S: Final = 30.0
SLICE_S: Final = 0.5
"""A wait for another caller's answer is made of waits of this length, so that a sidecar that dies is noticed."""
REOPEN_S: Final = 30.0
"""Age from which on a connection that fails is made again, with certificates read again."""
SILENCES: Final = 3
"""Deadlines missed one after the other, after which the sidecar is left in peace."""
REST_S: Final = 1.0
"""How long, and then one request asks."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    # Of a name with several addresses each is a sidecar.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)
_UNAVAILABLE: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_UNAVAILABLE))
_REFUSED: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_REFUSED))
DENIED: Final = "permission_denied"
"""The refusal of a miss if the sidecar does not let this caller name tenants (LPC_CACHE_GATEWAYS)."""
_DENIED: Final = pb.LookupResponse(miss=pb.Miss(reason=pb.REASON_REFUSED, refusal=DENIED))
_NOT_STORED: Final = pb.StoreResponse(refusal="unavailable")


class CacheError(LpcError):
    """A call to the response caches failed."""


class Patience:
    """When the sidecar is asked, and when it is left in peace. Thread-safe.

    ``clock``: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silences = 0
        self._until = 0.0

    @property
    def spent(self) -> bool:
        """Whether it was silent as often as is borne."""
        return self._silences >= SILENCES

    def may_ask(self) -> bool:
        """Say whether this request may ask. While the sidecar is silent, one in `REST_S` may."""
        with self._lock:
            if self._silences < SILENCES:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + REST_S
            return True

    def answered(self) -> None:
        """Note that it spoke, if only to refuse."""
        self._silences = 0

    def silent(self) -> None:
        """Note that a deadline was missed."""
        with self._lock:
            self._silences += 1
            if self._silences == SILENCES:
                self._until = self._clock() + REST_S

    def note(self, error: grpc.RpcError) -> None:
        """Note what a failed call says of the sidecar."""
        if code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.silent()
        else:
            self.answered()


class _Asking:
    """What both clients know of the sidecar: how it is reached, and whether it answers.

    Args:
        address: of the sidecar, host:port or unix:///path.
        access: how to get in (TLS, token).
        timeout_s: longest time that looking up may take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        access: Callable[[], Access] = Access,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._access, self._timeout_s, self._clock = address, access, timeout_s, clock
        self._patience = Patience(clock)
        self._lock = threading.Lock()
        self._channel: Any = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._opened = -REOPEN_S
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def silent(self) -> bool:
        """Whether the sidecar does not answer in time, so that most requests do not ask it."""
        return self._patience.spent

    def _answered(self, answer: pb.LookupResponse) -> pb.LookupResponse:
        """Return an answer without enum values that only a newer sidecar knows: its hit is a miss, its reason not specified."""
        self._patience.answered()
        if answer.HasField("hit"):
            return answer if answer.hit.source in pb.Source.values() else pb.LookupResponse(miss=pb.Miss())
        if answer.miss.reason not in pb.Reason.values():
            answer.miss.reason = pb.REASON_UNSPECIFIED
        return answer

    def _waits_on(self, answer: pb.LookupResponse) -> bool:
        return answer.miss.reason == pb.REASON_IN_FLIGHT and not self._patience.spent

    def _wears_out(self, error: Exception) -> bool:
        """Note a failed call; return whether the connection is to be made again: another token or certificate may help."""
        if not isinstance(error, grpc.RpcError):
            return False
        self._patience.note(error)
        mends = code_of(error) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
        return mends and self._clock() - self._opened > REOPEN_S


class ResponseCacheClient(_Asking):
    """For threads. Thread-safe; make it after a fork."""

    def lookup(self, request: pb.Request, *, exact_only: bool = False, max_age_s: float | None = None) -> pb.LookupResponse:
        """Return an answer that was kept, or why there is none, at once.

        Args:
            exact_only: only an answer to the same request will do.
            max_age_s: older answers will not do.
        """
        message = pb.LookupRequest(request=request, exact_only=exact_only, max_age_s=max_age_s or 0.0)
        return self._lookup(message, self._timeout_s) if self._patience.may_ask() else _UNAVAILABLE

    def follow(
        self, request: pb.Request, wait_s: float, *, exact_only: bool = False, max_age_s: float | None = None
    ) -> pb.LookupResponse:
        """After REASON_IN_FLIGHT: wait up to ``wait_s`` for the answer that another caller is getting."""
        answer = _UNAVAILABLE
        message = pb.LookupRequest(request=request, exact_only=exact_only, max_age_s=max_age_s or 0.0)
        for timeout in _slices(message, wait_s, self._timeout_s, self._clock):
            answer = self._lookup(message, timeout)
            if not self._waits_on(answer):
                break
        return answer

    def store(self, message: pb.StoreRequest) -> pb.StoreResponse:
        """Hand in an answer, or say that there will be none (`aborted`), within seconds: call it where nobody waits."""
        try:
            stored: pb.StoreResponse = self._call("Store", message, STORE_TIMEOUT_S)
        except Exception as error:
            self._failed(error)
            return _NOT_STORED
        return stored

    def feedback(self, message: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Say whether an answer was right. Raises CacheError."""
        done: pb.FeedbackResponse = self._asked("Feedback", message)
        return done

    def invalidate(self, message: pb.InvalidateRequest) -> pb.InvalidateResponse:
        """Make answers unfindable. Raises CacheError."""
        done: pb.InvalidateResponse = self._asked("Invalidate", message)
        return done

    def stats(self, message: pb.StatsRequest) -> pb.StatsResponse:
        """Return what was hit and missed, and what is in force. Raises CacheError."""
        done: pb.StatsResponse = self._asked("Stats", message)
        return done

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def _lookup(self, message: pb.LookupRequest, timeout_s: float) -> pb.LookupResponse:
        try:
            return self._answered(self._call("Lookup", message, timeout_s))
        except Exception as error:
            self._failed(error)
            return _miss(error)

    def _asked(self, method: str, message: Any) -> Any:
        try:
            return self._call(method, message, ADMIN_TIMEOUT_S)
        except (grpc.RpcError, CertificateError) as error:
            raise CacheError(why(error, self._address)) from error

    def _call(self, method: str, message: Any, timeout_s: float) -> Any:
        with self._lock:
            if self._channel is None:
                access = self._access()
                self._channel = access.channel(self._address, _OPTIONS)
                self._metadata, self._opened = access.metadata, self._clock()
            stub: Any = rpc.ResponseCacheStub(self._channel)
            metadata = self._metadata
        return getattr(stub, method)(message, timeout=timeout_s, metadata=metadata)

    def _failed(self, error: Exception) -> None:
        if self._wears_out(error):
            self.close()


class AsyncResponseCacheClient(_Asking):
    """As :class:`ResponseCacheClient`, for one event loop."""

    def channel(self) -> tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]:
        """Return the channel and the metadata of every call on it. Raises CertificateError."""
        if self._channel is None:
            access = self._access()
            if access.credentials is None or self._address.startswith("unix:"):
                self._channel = grpc.aio.insecure_channel(self._address, _OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self._address, access.credentials, _OPTIONS)
            self._metadata, self._opened = access.metadata, self._clock()
            # The first look-up shall not pay for connecting.
            self._channel.get_state(try_to_connect=True)
        return self._channel, self._metadata

    async def lookup(
        self, request: pb.Request, *, exact_only: bool = False, max_age_s: float | None = None
    ) -> pb.LookupResponse:
        """As :meth:`ResponseCacheClient.lookup`."""
        message = pb.LookupRequest(request=request, exact_only=exact_only, max_age_s=max_age_s or 0.0)
        return await self._lookup(message, self._timeout_s) if self._patience.may_ask() else _UNAVAILABLE

    async def follow(
        self, request: pb.Request, wait_s: float, *, exact_only: bool = False, max_age_s: float | None = None
    ) -> pb.LookupResponse:
        """As :meth:`ResponseCacheClient.follow`."""
        answer = _UNAVAILABLE
        message = pb.LookupRequest(request=request, exact_only=exact_only, max_age_s=max_age_s or 0.0)
        for timeout in _slices(message, wait_s, self._timeout_s, self._clock):
            answer = await self._lookup(message, timeout)
            if not self._waits_on(answer):
                break
        return answer

    async def _lookup(self, message: pb.LookupRequest, timeout_s: float) -> pb.LookupResponse:
        try:
            return self._answered(await self._call("Lookup", message, timeout_s))
        except Exception as error:
            self._failed(error)
            return _miss(error)

    async def store(self, message: pb.StoreRequest) -> pb.StoreResponse:
        """As :meth:`ResponseCacheClient.store`."""
        try:
            stored: pb.StoreResponse = await self._call("Store", message, STORE_TIMEOUT_S)
        except Exception as error:
            self._failed(error)
            return _NOT_STORED
        return stored

    async def feedback(self, message: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Say whether an answer was right. Raises CacheError."""
        done: pb.FeedbackResponse = await self._asked("Feedback", message)
        return done

    async def invalidate(self, message: pb.InvalidateRequest) -> pb.InvalidateResponse:
        """Make answers unfindable. Raises CacheError."""
        done: pb.InvalidateResponse = await self._asked("Invalidate", message)
        return done

    async def stats(self, message: pb.StatsRequest) -> pb.StatsResponse:
        """Return what was hit and missed, and what is in force. Raises CacheError."""
        done: pb.StatsResponse = await self._asked("Stats", message)
        return done

    async def close(self) -> None:
        """Hang up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _asked(self, method: str, message: Any) -> Any:
        try:
            return await self._call(method, message, ADMIN_TIMEOUT_S)
        except (grpc.RpcError, CertificateError) as error:
            raise CacheError(why(error, self._address)) from error

    async def _call(self, method: str, message: Any, timeout_s: float) -> Any:
        channel, metadata = self.channel()
        stub: Any = rpc.ResponseCacheStub(channel)
        return await getattr(stub, method)(message, timeout=timeout_s, metadata=metadata)

    def _failed(self, error: Exception) -> None:
        if self._wears_out(error):
            task = asyncio.get_running_loop().create_task(self.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _slices(message: pb.LookupRequest, wait_s: float, timeout_s: float, clock: Callable[[], float]) -> Iterator[float]:
    """Set how long each look-up of a wait is to wait, and yield its deadline in seconds."""
    until = clock() + wait_s
    while (left := until - clock()) > 0:
        message.wait_ms = max(1, int(min(left, SLICE_S) * 1000))
        yield message.wait_ms / 1000 + timeout_s


def _miss(error: Exception) -> pb.LookupResponse:
    """Return the miss of a look-up that failed. A sidecar that refuses a request is there anyway."""
    code: Any = code_of(error) if isinstance(error, grpc.RpcError) else None
    return {grpc.StatusCode.INVALID_ARGUMENT: _REFUSED, grpc.StatusCode.PERMISSION_DENIED: _DENIED}.get(code, _UNAVAILABLE)


def code_of(error: grpc.RpcError) -> Any:
    """Return the status code of a failed call; None where it has none."""
    code = getattr(error, "code", None)
    return code() if callable(code) else None


def why(error: Exception, address: str) -> str:
    """Return what went wrong and what to do, as one sentence."""
    if not isinstance(error, grpc.RpcError):
        return str(error)
    code = code_of(error)
    details = getattr(error, "details", None)
    said = details() if callable(details) else ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"the sidecar at {address} has no response cache: update it"
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return f"no sidecar answers at {address} ({said or code.name}): start it, or name another with LPC_PREDICTOR_ADDRESS"
    return f"the sidecar at {address} refuses: {said or code}"
