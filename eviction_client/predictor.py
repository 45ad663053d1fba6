"""What every plug-in needs of the client that asks the sidecar."""

from collections.abc import Hashable, Sequence
from typing import Protocol

from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.predictor_client import PredictorCounters


class BasePredictor(Protocol):
    """A part of :class:`eviction_client.predictor_client.PredictorClient`. Never blocks, never raises."""

    def ask(self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "") -> None:
        """Ask about a conversation."""

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer; None: there is none yet."""

    def forget(self, request_id: Hashable) -> None:
        """Forget a request."""

    def close(self) -> None:
        """Hang up."""

    @property
    def healthy(self) -> bool:
        """Whether the sidecar can be reached."""

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""

    @property
    def tokenizer_state(self) -> TokenizerState:
        """How the sidecar stands with the engine's tokenizer."""
