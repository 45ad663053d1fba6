"""A scripted predictor for measurements and tests, for example an oracle or a constant."""

from collections.abc import Callable, Hashable

from eviction_client.transport.messages import Prediction
from eviction_client.transport.predictor_client import PredictorCounters
from eviction_client.transport.sidecar_curves import ReuseCurves
from eviction_client.transport.tokenizer_upload import TokenizerState

CONTINUES, OVER = 1, 2
"""SidecarCurves of conversations that continue, and of those that are over."""


class Told:
    """Answers at once with the group that a function returns for a request's id; None: no answer."""

    def __init__(self, tell: Callable[[str], int | None]) -> None:
        self.tell = tell
        self.asked: list[str] = []
        self.counters = PredictorCounters()
        self.healthy = True
        self.reuse_curves: ReuseCurves | None = None
        self.tokenizer_state: TokenizerState = "unknown"

    def ask(self, request_id: Hashable, **_: object) -> None:
        """See `eviction_client.plugin.Predictor`; the same holds for the other methods."""
        self.asked.append(str(request_id))

    def take(self, request_id: Hashable) -> Prediction | None:
        """The function's answer."""
        group = self.tell(str(request_id))
        return None if group is None else Prediction(0.5, "told", 1, group=group)

    def forget(self, request_id: Hashable) -> None:
        """Nothing is remembered."""

    def close(self) -> None:
        """Nothing is open."""
