"""Errors of the sidecar. What status those of calls become: `predictor_service.rpc.statuses`.

    LpcError
    ├── InvalidRequest            lpc.errors: the caller must change the request
    ├── ArtifactError             lpc.errors: the model artefact is missing, corrupted or unfit
    ├── StartError                the sidecar cannot start
    └── ServiceError              what a call can meet
        ├── UnknownServedModel    token ids of a model whose tokenizer is not configured
        ├── Unauthenticated       no token, or none of those in the sidecar's token file
        ├── Overloaded            the queue is full, or the caller over its limit; try later or elsewhere
        ├── Expired               nobody waits for the answer any more
        └── Unavailable           the service is starting or draining

Messages say what was wrong and what to do. They never contain text of a conversation.
"""

from typing import Final

from lpc.errors import LpcError

CLOSING: Final = "the service is shutting down: connect to another sidecar"


class StartError(LpcError):
    """The sidecar cannot start. The message says why and what to do."""


class ServiceError(LpcError):
    """Base of the errors that a call to the sidecar can meet."""


class UnknownServedModel(ServiceError):
    """No tokenizer and chat template are configured under this served model name."""


class Unauthenticated(ServiceError):
    """The caller shows no token that is known. One message for all cases, which tells a guesser nothing."""


class Overloaded(ServiceError):
    """The bounded queue is full, or the caller has used up what it may. ``retry_after_s``: when to try again, if known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Expired(ServiceError):
    """The deadline passed before the model could answer."""


class Unavailable(ServiceError):
    """The service is not serving: it starts or drains."""
