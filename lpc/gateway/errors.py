"""What the gateway itself refuses, as OpenAI's API says it; an engine's errors go on as they are.

    GatewayError
    ├── BadTarget           400: a target that servers could read in different ways
    ├── NotKnown            401: no valid token
    ├── ScopeRefused        403: a scope that the client may not name
    ├── NotProxied          404: a path that the gateway does not proxy
    ├── MethodRefused       405: a method that it does not proxy for this path
    ├── TooSlow             408: the body did not come in time
    ├── TooLarge            413: the body
    ├── NoEngine            502: none takes connections
    ├── Busy                503: as much as the gateway may hold is in flight
    └── NotCached           504: only-if-cached, and there is no answer (RFC 9111)

GatewayStartError: the gateway cannot start.
"""

import json
from collections.abc import Collection
from typing import ClassVar

from lpc.errors import LpcError


class GatewayStartError(LpcError):
    """The gateway cannot start."""


class GatewayError(Exception):
    """A request that the gateway answers itself. ``status``: of HTTP; ``kind``: OpenAI's `type`; ``headers``: of the answer."""

    status: ClassVar[int]
    kind: ClassVar[str]
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def body(self) -> bytes:
        """Return the JSON that OpenAI's clients read."""
        return json.dumps({"error": {"message": str(self), "type": self.kind, "param": None, "code": None}}).encode()


class BadTarget(GatewayError):
    """Servers could read the request's target in different ways."""

    status, kind = 400, "invalid_request_error"


class NotProxied(GatewayError):
    """The path is not on the list of those that are proxied."""

    status, kind = 404, "invalid_request_error"


class MethodRefused(GatewayError):
    """The path is on the list, and the method is not."""

    status, kind = 405, "invalid_request_error"

    def __init__(self, message: str, allowed: Collection[str]) -> None:
        super().__init__(message)
        self.headers = ((b"allow", ", ".join(sorted(allowed)).encode()),)


class NotKnown(GatewayError):
    """No valid token."""

    status, kind = 401, "authentication_error"


class ScopeRefused(GatewayError):
    """A scope that the client may not name."""

    status, kind = 403, "permission_error"


class TooSlow(GatewayError):
    """The body did not come in time."""

    status, kind = 408, "invalid_request_error"
    headers = ((b"connection", b"close"),)


class TooLarge(GatewayError):
    """The body is over the limit."""

    status, kind = 413, "invalid_request_error"


class NoEngine(GatewayError):
    """No engine takes connections."""

    status, kind = 502, "api_error"


class Busy(GatewayError):
    """As much as the gateway may hold is in flight."""

    status, kind = 503, "api_error"
    headers = ((b"retry-after", b"1"), (b"connection", b"close"))


class NotCached(GatewayError):
    """Only a kept answer was wanted, and there is none."""

    status, kind = 504, "api_error"
