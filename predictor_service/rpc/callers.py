"""Authentication of callers, by bearer token or client certificate, and their limits.

Settings (`client_rate`), metrics (`lpc_client_...`) and messages call them clients.

With a token file (:mod:`lpc.wire.tokens`), the token names a caller on the TCP port; a client certificate then only permits the
connection. Without a token file, a verified client certificate names the caller: the first DNS name or URI of its
subjectAltName, else its common name. Without either, all callers on the TCP port are `anonymous`; those
of each address have limits of their own.

Callers on the Unix socket need no token, because the socket's mode restricts access.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lpc.wire.tokens import TokenFileError, owner_of, read_tokens
from lpc.wire.watched import Watched
from predictor_service.errors import Overloaded, Unauthenticated
from predictor_service.metrics import REFUSALS, Metrics
from predictor_service.rpc.large import LARGE

ANYONE: Final = "anonymous"
"""Name of all callers on a TCP port without authentication."""
UNIX: Final = "unix"
"""Name of all callers on the Unix socket."""
TAKEN: Final = (ANYONE, UNIX)
WHO_ARE_YOU: Final = (
    "no valid token: send the metadata `authorization: Bearer TOKEN` with a token of the sidecar's token file "
    "(engines: LPC_PREDICTOR_TOKEN_FILE)"
)
NAMELESS: Final = (
    "the client certificate does not name a client: it needs a DNS name or a URI in its subjectAltName, or a common name, of "
    "at most 253 characters, and neither `unix` nor `anonymous`"
)
MAX_NAME: Final = 253
"""Largest number of characters of a name in a certificate, as for a DNS name."""
ASKED_PER_S: Final = 50.0
"""Calls of GetModelInfo and OfferTokenizer that one caller may make per second, and twice as many at once. A plug-in makes at
most one in two seconds."""
MAX_CALLERS: Final = 1000
"""Largest number of callers whose state and metrics are stored."""
Certificate = Callable[[], Mapping[str, Iterable[bytes]]]
"""Returns the verified properties of a peer: `ServicerContext.auth_context`."""


@dataclass(frozen=True)
class CallerLimits:
    """Limits of one caller, and of all; 0: unlimited.

    Attributes:
        rate: conversations per second of one caller.
        bytes: bytes of large messages in flight of one caller.
        all_bytes: bytes of large messages in flight of all callers.
    """

    rate: float = 0.0
    bytes: int = 0
    all_bytes: int = 0


@dataclass
class InFlight:
    """Bytes of the large messages that are being answered."""

    bytes: int = 0


class Bucket:
    """A token bucket with a capacity of one second's worth, or ``holds``.

    A request larger than the bucket is admitted when the bucket is full, and repaid before the next one. So a large batch is
    not refused forever.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic, *, holds: float | None = None) -> None:
        self._rate = rate
        self._size = rate if holds is None else holds
        self._clock = clock
        self._level = self._size
        self._at = clock()

    def take(self, count: int) -> float:
        """Take ``count`` tokens and return 0, or take none and return the seconds until they are available."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        missing = min(count, self._size) - self._level
        if missing > 0:
            return missing / self._rate
        self._level -= count
        return 0.0

    def owe(self, count: int) -> None:
        """Take ``count`` tokens, available or not. They are repaid before the next request; at most the capacity is owed."""
        self._level = max(self._level - count, -self._size)


class Caller:
    """A caller and its use of the limits. Use it from one event loop only.

    Args:
        address: address of a caller that shares its name with others; empty otherwise.
        together: large messages of all callers.

    Attributes:
        who: name and address.
    """

    def __init__(self, name: str, address: str, limits: CallerLimits, metrics: Metrics, together: InFlight) -> None:
        self.name = name
        self.who = f"{name} at {address}" if address else name
        self._limits = limits
        self._together = together
        # Stored, so that a call that ends after its caller was removed does not create the series again.
        self._admitted = metrics.client_conversations.labels(name)
        self._over_rate, self._over_bytes = (metrics.client_refusals.labels(name, reason) for reason in REFUSALS)
        self._bucket = Bucket(limits.rate) if limits.rate else None
        self._bytes = 0
        self._asked = Bucket(ASKED_PER_S, holds=2 * ASKED_PER_S)
        self._buckets: dict[str, Bucket] = {}

    @property
    def idle(self) -> bool:
        """Whether no large message is in flight."""
        return not self._bytes

    def admit(self, conversations: int) -> None:
        """Count conversations against the rate. Raises Overloaded, and counts none, if the rate is exceeded."""
        wait = self._bucket.take(conversations) if self._bucket is not None else 0.0
        if wait:
            self._over_rate.inc(conversations)
            raise Overloaded(
                f"client {self.name} may send {self._limits.rate:g} conversations per second: try again in {wait:.3f} s", wait
            )
        self._admitted.inc(conversations)

    def owe(self, conversations: int) -> None:
        """Count conversations that were answered already: the next ones are refused until the rate allows these."""
        if self._bucket is not None:
            self._bucket.owe(conversations)
        self._admitted.inc(conversations)

    def ask(self) -> None:
        """Count a call about tokenizers or the model. Raises Overloaded if there are too many."""
        wait = self._asked.take(1)
        if wait:
            self._over_rate.inc()
            raise Overloaded(
                f"client {self.name} may call GetModelInfo and OfferTokenizer {ASKED_PER_S:g} times per second: "
                f"try again in {wait:.3f} s",
                wait,
            )

    def take(self, what: str, rate: float, holds: float) -> float:
        """Count a call of a kind that has a limit of its own; return 0, or the seconds until another one is allowed.

        Args:
            what: kind of call.
            rate: calls per second.
            holds: calls at once.
        """
        return self._buckets.setdefault(what, Bucket(rate, holds=holds)).take(1)

    @contextlib.contextmanager
    def carry(self, size: int) -> Iterator[None]:
        """Count the bytes of a large message within the block. Raises Overloaded if the limit is exceeded."""
        if size <= LARGE:
            yield
            return
        if self._limits.bytes and self._bytes + size > self._limits.bytes:
            self._over_bytes.inc()
            raise Overloaded(
                f"client {self.name} has {self._bytes} bytes of large requests in flight, at most {self._limits.bytes} with "
                "this one: wait for answers"
            )
        if self._limits.all_bytes and self._together.bytes + size > self._limits.all_bytes:
            self._over_bytes.inc()
            raise Overloaded(
                f"{self._together.bytes} bytes of large requests are in flight, at most {self._limits.all_bytes} with this "
                "one: try again later"
            )
        self._bytes += size
        self._together.bytes += size
        try:
            yield
        finally:
            self._bytes -= size
            self._together.bytes -= size


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Caller of the current task's call; set by the interceptor."""


class Callers:
    """The callers of a sidecar. Reads the token file again when it changes; removed tokens are refused at once.

    Args:
        path: the token file; None: no token is required.
        certificates: whether gRPC has verified a certificate of every peer on the TCP port.

    Raises:
        TokenFileError: the token file is unreadable, malformed or empty.
    """

    def __init__(self, path: Path | None, limits: CallerLimits, metrics: Metrics, *, certificates: bool = False) -> None:
        self._certificates = certificates
        self._limits = limits
        self._metrics = metrics
        self._callers: dict[tuple[str, str], Caller] = {}
        """Callers by name, and by address if the name is shared."""
        self._together = InFlight()
        self._tokens: Watched[dict[bytes, str]] | None = None
        if path is not None:
            self._tokens = Watched([path], lambda: read_tokens(path, TAKEN), "token file is")
            if not self._tokens.current:
                raise TokenFileError(f"{path} does not contain a token: add a line `name: sha256`")

    def enter(self, peer: str, metadata: Iterable[tuple[str, Any]] | None, certificate: Certificate = dict) -> Caller:
        """Authenticate a caller, and set it as this call's CALLER. Raises Unauthenticated."""
        caller = self._identify(peer, metadata or (), certificate)
        CALLER.set(caller)
        return caller

    def refresh(self) -> bool:
        """Read the token file if it has changed; return whether it is used. An invalid one is logged and ignored."""
        if self._tokens is None:
            return False
        before = set(self._tokens.current.values())
        if not self._tokens.refresh():
            return False
        for name in before - set(self._tokens.current.values()):
            if self._callers.pop((name, ""), None) is not None:
                self._metrics.forget_caller(name)
        return True

    def _identify(self, peer: str, metadata: Iterable[tuple[str, Any]], certificate: Certificate) -> Caller:
        if peer.startswith("unix:"):
            return self._caller(UNIX)
        if self._tokens is None:
            return (
                self._caller(_named_by(certificate())) if self._certificates else self._caller(ANYONE, peer.rpartition(":")[0])
            )
        shown = [value for key, value in metadata if key == "authorization"]
        found = owner_of(shown[0], self._tokens.current) if len(shown) == 1 and isinstance(shown[0], str) else None
        if found is None:
            raise Unauthenticated(WHO_ARE_YOU)
        return self._caller(found[1])

    def _caller(self, name: str, address: str = "") -> Caller:
        caller = self._callers.get((name, address))
        if caller is None:
            if len(self._callers) >= MAX_CALLERS:
                self._remove_idle()
            caller = self._callers[name, address] = Caller(name, address, self._limits, self._metrics, self._together)
        return caller

    def _remove_idle(self) -> None:
        """Remove the oldest idle caller."""
        key = next((key for key, caller in self._callers.items() if caller.idle), None)
        if key is not None:
            del self._callers[key]
            if key[0] != ANYONE:
                self._metrics.forget_caller(key[0])


def _named_by(certificate: Mapping[str, Iterable[bytes]]) -> str:
    """Return the name in a verified certificate. Raises Unauthenticated."""
    names = {*certificate.get("peer_dns", ()), *certificate.get("peer_uri", ())}
    listed = [name for name in certificate.get("x509_subject_alternative_name", ()) if name in names]
    found = next(iter(listed or certificate.get("x509_common_name", ())), b"")
    name = found.decode("utf-8", "replace")
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME or "\ufffd" in name or name in TAKEN:
        raise Unauthenticated(NAMELESS)
    return name
