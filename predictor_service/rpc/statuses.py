"""Maps errors to gRPC statuses."""

import logging
from typing import Final

import grpc

from lpc.errors import ArtifactError, InvalidRequest
from lpc.wire.bugs import log_bug
from predictor_service.errors import (
    Expired,
    Forbidden,
    Overloaded,
    TokenizerFailed,
    TokenizerLoading,
    Unauthenticated,
    Unavailable,
    UnknownServedModel,
    UnreadTemplate,
)

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 2000
"""Bytes of a message. gRPC sends it percent-encoded in the trailers, of which peers accept 8 KiB."""

STATUSES: Final[dict[type[Exception], grpc.StatusCode]] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownServedModel: grpc.StatusCode.NOT_FOUND,
    TokenizerLoading: grpc.StatusCode.UNAVAILABLE,
    TokenizerFailed: grpc.StatusCode.FAILED_PRECONDITION,
    UnreadTemplate: grpc.StatusCode.FAILED_PRECONDITION,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Expired: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    ArtifactError: grpc.StatusCode.FAILED_PRECONDITION,
}


def status_of(error: BaseException) -> grpc.StatusCode | None:
    """Return the status of an error that a caller or operator can cause; None: it is a bug."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)


def refusal(error: BaseException, where: str) -> tuple[grpc.StatusCode, str]:
    """Return status and message of the answer to an error. ``where``: the method.

    An error that only a bug can cause is logged without its message, which may quote the input.
    """
    status = status_of(error)
    if status is not None:
        return status, str(error).encode(errors="replace")[:MAX_MESSAGE].decode(errors="ignore")
    log_bug(log, where, error)
    return grpc.StatusCode.INTERNAL, "internal error: see the sidecar's log"
