"""The part of the sidecar's client that every plug-in uses."""

from collections.abc import Hashable, Sequence
from typing import Protocol

from eviction_client.transport.messages import Prediction
from eviction_client.transport.predictor_client import PredictorCounters
from eviction_client.transport.sidecar_curves import ReuseCurves
from eviction_client.transport.tokenizer_upload import TokenizerState


class Predictor(Protocol):
    """A part of :class:`eviction_client.transport.predictor_client.PredictorClient`. Never blocks, never raises."""

    def ask(
        self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "", user: str = ""
    ) -> None:
        """Request a prediction."""

    def take(self, request_id: Hashable) -> Prediction | None:
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
