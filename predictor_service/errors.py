"""Errors of the sidecar. `predictor_service.rpc.statuses` maps errors of calls to gRPC statuses.

    LpcError
    ├── InvalidRequest            lpc.errors: the caller must change the request
    ├── ArtifactError             lpc.errors: the model artefact is missing, corrupted or unfit
    ├── StartError                the sidecar cannot start
    └── ServiceError              base of the errors of calls
        ├── UnreadPrompt          token ids cannot be read
        │   ├── UnknownServedModel    the model's tokenizer is neither configured nor offered
        │   ├── TokenizerLoading      the tokenizer is being received or loaded
        │   ├── TokenizerFailed       the tokenizer cannot be loaded
        │   ├── UnreadTemplate        the ids are of a chat, and the tokenizer has no usable chat template
        │   └── ForeignTokenIds       the ids are of another vocabulary (also an InvalidRequest)
        ├── Unauthenticated       the token is missing or unknown
        ├── Forbidden             the caller is known but lacks permission
        ├── Overloaded            the queue is full, or the caller has exceeded its limit
        ├── Expired               the deadline has passed
        └── Unavailable           the service is starting, draining or broken

Messages contain the cause and the remedy, never text of a conversation.
"""

from typing import ClassVar, Final

from lpc.errors import InvalidRequest, LpcError

CLOSING: Final = "the service is shutting down: connect to another sidecar"
BROKEN: Final = "the service has failed and waits for a restart: connect to another sidecar"


class StartError(LpcError):
    """The sidecar cannot start."""


class ServiceError(LpcError):
    """Base of the errors of calls to the sidecar."""


class UnreadPrompt(ServiceError):
    """Token ids cannot be read; engines get predictions from lengths and times. ``reason``: label of metrics."""

    reason: ClassVar[str]


class UnknownServedModel(UnreadPrompt):
    """The operator has not configured a tokenizer for the served model, and no engine has offered it."""

    reason = "unknown"


class TokenizerLoading(UnreadPrompt):
    """The tokenizer is being received or loaded."""

    reason = "loading"


class TokenizerFailed(UnreadPrompt):
    """The tokenizer cannot be loaded; loading is repeated after some minutes."""

    reason = "failed"


class UnreadTemplate(UnreadPrompt):
    """The prompt has markers of a chat, and the tokenizer has no template that shows which of them mark user messages."""

    reason = "template"


class ForeignTokenIds(UnreadPrompt, InvalidRequest):
    """An id is outside the tokenizer's vocabulary, so the prompt is of another model."""

    reason = "foreign"


class Unauthenticated(ServiceError):
    """The caller's token is missing or unknown. The message is the same for all causes, so that it does not help guessing."""


class Forbidden(ServiceError):
    """The caller is known but lacks permission."""


class Overloaded(ServiceError):
    """The queue is full, or the caller has exceeded its limit. ``retry_after_s``: when to try again, if known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Expired(ServiceError):
    """The deadline passed before the model could answer."""


class Unavailable(ServiceError):
    """The service is starting, draining or broken."""
