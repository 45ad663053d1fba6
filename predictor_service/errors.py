"""Errors of the sidecar. What status those of calls become: `predictor_service.rpc.statuses`.

    LpcError
    ├── InvalidRequest            lpc.errors: the caller must change the request
    ├── ArtifactError             lpc.errors: the model artefact is missing, corrupted or unfit
    ├── StartError                the sidecar cannot start
    └── ServiceError              what a call can meet
        ├── UnreadPrompt          token ids that cannot be read
        │   ├── UnknownServedModel    the model's tokenizer is neither configured nor offered
        │   ├── TokenizerLoading      it is being received or loaded
        │   ├── TokenizerFailed       it cannot be loaded
        │   └── ForeignTokenIds       they are of another vocabulary (an InvalidRequest as well)
        ├── Unauthenticated       no token, or none of those in the sidecar's token file
        ├── Forbidden             the caller is known and may not do this
        ├── Overloaded            the queue is full, or the caller over its limit; try later or elsewhere
        ├── Expired               nobody waits for the answer any more
        └── Unavailable           the service is starting or draining

Messages say what was wrong and what to do. They never contain text of a conversation.
"""

from typing import ClassVar, Final

from lpc.errors import InvalidRequest, LpcError

CLOSING: Final = "the service is shutting down: connect to another sidecar"
BROKEN: Final = "the service has failed and waits for a restart: connect to another sidecar"


class StartError(LpcError):
    """The sidecar cannot start. The message says why and what to do."""


class ServiceError(LpcError):
    """Base of the errors that a call to the sidecar can meet."""


class UnreadPrompt(ServiceError):
    """Token ids cannot be read. ``reason``: as a label of metrics. An engine's are answered by lengths and times."""

    reason: ClassVar[str]


class UnknownServedModel(UnreadPrompt):
    """No tokenizer is configured under this served model name, and no engine has offered the one asked for."""

    reason = "unknown"


class TokenizerLoading(UnreadPrompt):
    """The tokenizer is being received or loaded."""

    reason = "loading"


class TokenizerFailed(UnreadPrompt):
    """The tokenizer cannot be loaded. It is tried again after some minutes."""

    reason = "failed"


class ForeignTokenIds(UnreadPrompt, InvalidRequest):
    """An id is outside the tokenizer's vocabulary: the prompt is of another model."""

    reason = "foreign"


class Unauthenticated(ServiceError):
    """The caller shows no token that is known. One message for all cases, which tells a guesser nothing."""


class Forbidden(ServiceError):
    """The caller is known, and the operator does not let it do this."""


class Overloaded(ServiceError):
    """The bounded queue is full, or the caller has used up what it may. ``retry_after_s``: when to try again, if known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Expired(ServiceError):
    """The deadline passed before the model could answer."""


class Unavailable(ServiceError):
    """The service is not serving: it starts or drains."""
