"""Errors of the sidecar, each with the gRPC status it becomes.

    ServiceError
    ├── InvalidRequest        INVALID_ARGUMENT      the caller must change the request
    ├── UnknownServedModel    NOT_FOUND             token ids of a model whose tokenizer is not configured
    ├── Unauthenticated       UNAUTHENTICATED       no token, or none of those in the sidecar's token file
    ├── Overloaded            RESOURCE_EXHAUSTED    the queue is full, or the client over its limit; try later or elsewhere
    ├── Expired               DEADLINE_EXCEEDED     nobody waits for the answer any more
    ├── Unavailable           UNAVAILABLE           the service is starting or draining
    └── ArtifactError         FAILED_PRECONDITION   the model artefact is missing, corrupted or unfit

Messages say what was wrong and what to do. They never contain text of a conversation.
"""

import grpc


class ServiceError(Exception):
    """Base of every error that a caller or operator can cause."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL


class InvalidRequest(ServiceError):
    """The request can never succeed as it is."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class UnknownServedModel(ServiceError):
    """No tokenizer and chat template are configured under this served model name."""

    status = grpc.StatusCode.NOT_FOUND


class Unauthenticated(ServiceError):
    """The caller shows no token that is known. One message for all cases, which tells a guesser nothing."""

    status = grpc.StatusCode.UNAUTHENTICATED


class Overloaded(ServiceError):
    """The bounded queue is full, or the client has used up what it may. ``retry_after_s``: when to try again, if known."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Expired(ServiceError):
    """The deadline passed before the model could answer."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(ServiceError):
    """The service is not serving: it starts or drains."""

    status = grpc.StatusCode.UNAVAILABLE


class ArtifactError(ServiceError):
    """A model artefact is missing, corrupted or unfit for this service."""

    status = grpc.StatusCode.FAILED_PRECONDITION
