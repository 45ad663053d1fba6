"""The part of the sidecar's client that every plug-in uses."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from eviction_client.transport.messages import SidecarPrediction
from eviction_client.transport.sidecar_curves import ReuseCurves
from eviction_client.transport.tokenizer_upload import TokenizerState

Fate = Literal["answered", "late", "failed", "refused", "forgotten"]
"""How a request ended: the name of a counter in :class:`PredictorCounters`."""


@dataclass(frozen=True, slots=True)
class PredictorCounters:
    """How requests ended. Each request counts in exactly one of the first five, or still waits."""

    answered: int = 0
    late: int = 0
    """No answer before the deadline, or dropped for newer requests."""
    failed: int = 0
    """The sidecar returned an error or crashed twice, or the request could not be encoded."""
    refused: int = 0
    """The sidecars were overloaded, or take no message of this size."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    unread: int = 0
    """Answers to prompts that the sidecar could not read. They also count in ``answered``."""
    causes: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Those in ``failed`` by cause, and in ``refused`` with ``too_large``: else ``http_`` and a proxy's status, a status of
    gRPC, or ``invalid``."""

    @property
    def ended(self) -> int:
        """Requests that do not wait for an answer."""
        return self.answered + self.late + self.failed + self.refused + self.forgotten


class Predictor(Protocol):
    """A part of :class:`eviction_client.transport.client.PredictorClient`. Never blocks, never raises."""

    def ask(
        self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "", user: str = ""
    ) -> None:
        """Request a prediction."""

    def take(self, request_id: Hashable) -> SidecarPrediction | None:
        """Return the answer, None if there is none yet."""

    def forget(self, request_id: Hashable) -> None:
        """Forget a request."""

    def close(self) -> None:
        """Close the connection."""

    @property
    def reuse_curves(self) -> ReuseCurves | None:
        """The predicted curves of the groups in predictions; None: not received."""

    @property
    def healthy(self) -> bool:
        """Whether the sidecar can be reached."""

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""

    @property
    def tokenizer_state(self) -> TokenizerState:
        """State of the engine's tokenizer in the sidecar."""
