"""What the gateway itself refuses, as OpenAI's API says it; an engine's errors go on as they are.

    GatewayError
    ├── NotKnown            401: no valid token
    ├── ScopeRefused        403: a scope that the client may not name
    ├── TooLarge            413: the body
    ├── NoEngine            502: none takes connections
    └── NotCached           504: only-if-cached, and there is no answer (RFC 9111)

GatewayStartError: the gateway cannot start.
"""

import json
from typing import ClassVar

from lpc.errors import LpcError


class GatewayStartError(LpcError):
    """The gateway cannot start."""


class GatewayError(Exception):
    """A request that the gateway answers itself. ``status``: of HTTP; ``kind``: OpenAI's `type`."""

    status: ClassVar[int]
    kind: ClassVar[str]

    def body(self) -> bytes:
        """Return the JSON that OpenAI's clients read."""
        return json.dumps({"error": {"message": str(self), "type": self.kind, "param": None, "code": None}}).encode()


class NotKnown(GatewayError):
    """No valid token."""

    status, kind = 401, "authentication_error"


class ScopeRefused(GatewayError):
    """A scope that the client may not name."""

    status, kind = 403, "permission_error"


class TooLarge(GatewayError):
    """The body is over the limit."""

    status, kind = 413, "invalid_request_error"


class NoEngine(GatewayError):
    """No engine takes connections."""

    status, kind = 502, "api_error"


class NotCached(GatewayError):
    """Only a kept answer was wanted, and there is none."""

    status, kind = 504, "api_error"
