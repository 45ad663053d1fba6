"""Errors of the gateway in the format of OpenAI's API. An engine's errors are forwarded unchanged."""

import json
from http import HTTPStatus
from typing import Final

from lpc.errors import LpcError

_KINDS: Final = {401: "authentication_error", 403: "permission_error"}
"""OpenAI's `type` by status; other statuses below 500: invalid_request_error, from 500: api_error."""
CLOSE: Final = (b"connection", b"close")
_HEADERS: Final = {
    HTTPStatus.REQUEST_TIMEOUT: (CLOSE,),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (CLOSE,),
    HTTPStatus.SERVICE_UNAVAILABLE: ((b"retry-after", b"1"), CLOSE),
}


class GatewayStartError(LpcError):
    """The gateway cannot start."""


class GatewayError(Exception):
    """An error that the gateway returns itself. ``status``: HTTP status; ``headers``: of the answer."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = ((b"content-type", b"application/json"), *_HEADERS.get(HTTPStatus(status), ()), *headers)

    def body(self) -> bytes:
        """Return the JSON that OpenAI's clients read."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return json.dumps({"error": {"message": str(self), "type": kind, "param": None, "code": None}}).encode()
