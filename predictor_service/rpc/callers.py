"""Who calls, and how much each may: bearer tokens or client certificates, a rate for each.

Operators know callers as clients: so the settings (`client_rate`), the metrics (`lpc_client_...`) and the messages call them.

With a token file, the token names a caller on the TCP port; a client certificate then only lets the connection in. Without a
token file, a verified client certificate names it: the first DNS name or URI of its subjectAltName, else its common name.
Without either, all callers on the TCP port are `anonymous`.

The token file's form is :mod:`lpc.wire.tokens`'s. A peer on the Unix socket needs no token: the socket's mode, 0600, admits
its callers.
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
"""Name of all callers on the TCP port of a sidecar without tokens."""
UNIX: Final = "unix"
"""Name of all callers on the Unix socket."""
TAKEN: Final = (ANYONE, UNIX)
WHO_ARE_YOU: Final = (
    "no valid token: send the metadata `authorization: Bearer TOKEN` with a token of the sidecar's token file "
    "(engines: LPC_PREDICTOR_TOKEN_FILE)"
)
NAMELESS: Final = (
    "the client certificate names no client: it needs a DNS name or a URI in its subjectAltName, or a common name, of at most "
    "253 characters, and neither `unix` nor `anonymous`"
)
MAX_NAME: Final = 253
"""Characters of a name in a certificate: those of a DNS name."""
MAX_CALLERS: Final = 1000
"""Callers known by certificates that are remembered. Each is a label of metrics."""
Certificate = Callable[[], Mapping[str, Iterable[bytes]]]
"""What gRPC verified of a peer: `ServicerContext.auth_context`."""


@dataclass(frozen=True)
class CallerLimits:
    """What one caller may; 0: any number.

    Attributes:
        rate: conversations per second.
        bytes: of large messages in flight.
    """

    rate: float = 0.0
    bytes: int = 0


class Bucket:
    """A token bucket that holds one second's worth, or ``holds``.

    What is larger than the bucket is let in when it is full, and paid off before the next: a batch is never refused for ever.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic, *, holds: float | None = None) -> None:
        self._rate = rate
        self._size = rate if holds is None else holds
        self._clock = clock
        self._level = self._size
        self._at = clock()

    def take(self, count: int) -> float:
        """Take ``count`` and return 0, or take nothing and return the seconds until they can be had."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        missing = min(count, self._size) - self._level
        if missing > 0:
            return missing / self._rate
        self._level -= count
        return 0.0


class Caller:
    """One caller: its name and what it has used of its limits. Lives on one event loop."""

    def __init__(self, name: str, limits: CallerLimits, metrics: Metrics) -> None:
        self.name = name
        self._limits = limits
        # Held, so that a caller that is forgotten while its calls end does not come back as a series.
        self._admitted = metrics.client_conversations.labels(name)
        self._over_rate, self._over_bytes = (metrics.client_refusals.labels(name, reason) for reason in REFUSALS)
        self._bucket = Bucket(limits.rate) if limits.rate else None
        self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether it has no large message in flight."""
        return not self._bytes

    def admit(self, conversations: int) -> None:
        """Count conversations against the rate. Raises Overloaded, and counts none of them, when it is exceeded."""
        wait = self._bucket.take(conversations) if self._bucket is not None else 0.0
        if wait:
            self._over_rate.inc(conversations)
            raise Overloaded(
                f"client {self.name} may send {self._limits.rate:g} conversations per second: try again in {wait:.3f} s", wait
            )
        self._admitted.inc(conversations)

    @contextlib.contextmanager
    def carry(self, size: int) -> Iterator[None]:
        """Hold the bytes of a message while it is answered. Raises Overloaded when it is large and others are in flight."""
        if size <= LARGE:
            yield
            return
        if self._limits.bytes and self._bytes + size > self._limits.bytes:
            self._over_bytes.inc()
            raise Overloaded(
                f"client {self.name} has {self._bytes} bytes of large requests in flight, at most {self._limits.bytes} with "
                "this one: wait for answers"
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Of the call that the running task belongs to; set by the interceptor."""


class Callers:
    """The callers of a sidecar. Reads the token file again when it changes: what is not in it any more is refused at once.

    Args:
        path: the token file; None: no tokens are asked for.
        certificates: every peer on the TCP port has shown a certificate that gRPC verified.

    Raises:
        TokenFileError: it cannot be read, is malformed or holds no token.
    """

    def __init__(self, path: Path | None, limits: CallerLimits, metrics: Metrics, *, certificates: bool = False) -> None:
        self._certificates = certificates
        self._limits = limits
        self._metrics = metrics
        self._callers: dict[str, Caller] = {}
        self._tokens: Watched[dict[bytes, str]] | None = None
        if path is not None:
            self._tokens = Watched([path], lambda: read_tokens(path, TAKEN), "token file is")
            if not self._tokens.current:
                raise TokenFileError(f"{path} holds no token: add a line `name: sha256`")

    def enter(self, peer: str, metadata: Iterable[tuple[str, Any]] | None, certificate: Certificate = dict) -> Caller:
        """Let a caller in and remember it as this call's `CALLER`. Raises Unauthenticated."""
        caller = self._identify(peer, metadata or (), certificate)
        CALLER.set(caller)
        return caller

    def refresh(self) -> bool:
        """Look at the token file; return whether it was taken. A wrong one is reported, and the old one stays."""
        if self._tokens is None:
            return False
        before = set(self._tokens.current.values())
        if not self._tokens.refresh():
            return False
        for name in before - set(self._tokens.current.values()):
            if self._callers.pop(name, None) is not None:
                self._metrics.forget_caller(name)
        return True

    def _identify(self, peer: str, metadata: Iterable[tuple[str, Any]], certificate: Certificate) -> Caller:
        if peer.startswith("unix:"):
            return self._caller(UNIX)
        if self._tokens is None:
            return self._caller(_named_by(certificate()) if self._certificates else ANYONE)
        shown = [value for key, value in metadata if key == "authorization"]
        found = owner_of(shown[0], self._tokens.current) if len(shown) == 1 and isinstance(shown[0], str) else None
        if found is None:
            raise Unauthenticated(WHO_ARE_YOU)
        return self._caller(found[1])

    def _caller(self, name: str) -> Caller:
        caller = self._callers.get(name)
        if caller is None:
            if len(self._callers) >= MAX_CALLERS:
                self._forget_one()
            caller = self._callers[name] = Caller(name, self._limits, self._metrics)
        return caller

    def _forget_one(self) -> None:
        """Forget the oldest caller that is idle."""
        name = next((name for name, caller in self._callers.items() if caller.idle), None)
        if name is not None:
            del self._callers[name]
            self._metrics.forget_caller(name)


def _named_by(certificate: Mapping[str, Iterable[bytes]]) -> str:
    """Return the name in a verified certificate. Raises Unauthenticated."""
    names = {*certificate.get("peer_dns", ()), *certificate.get("peer_uri", ())}
    listed = [name for name in certificate.get("x509_subject_alternative_name", ()) if name in names]
    found = next(iter(listed or certificate.get("x509_common_name", ())), b"")
    name = found.decode("utf-8", "replace")
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME or "\ufffd" in name or name in TAKEN:
        raise Unauthenticated(NAMELESS)
    return name
