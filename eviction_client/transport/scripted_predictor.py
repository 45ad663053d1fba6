"""A predictor without a sidecar, which answers at once by a script: for tests and measurements of what uses predictions."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias

from eviction_client.transport.messages import Question, SidecarPrediction
from eviction_client.transport.predictor import PredictorCounters
from eviction_client.transport.sidecar_curves import ReuseCurves
from eviction_client.transport.tokenizer_upload import TokenizerState

CONTINUES: Final = 1
OVER: Final = 2
"""Groups for scripts that know which conversations continue."""

Script: TypeAlias = Callable[[str], SidecarPrediction | int | None]
"""Returns the prediction for a request id, or only its group; None: no answer."""


class ScriptedPredictor:
    """A `Predictor` whose answers a function returns; without one it has no answers.

    Args:
        record: whether to store the questions, with references to their token ids.

    Attributes:
        asked: the recorded questions by request id, in order.
    """

    def __init__(self, script: Script = lambda _: None, *, record: bool = False) -> None:
        self.script = script
        self.asked: dict[str, Question] = {}
        self.counters = PredictorCounters()
        self.healthy = True
        self.reuse_curves: ReuseCurves | None = None
        self.tokenizer_state: TokenizerState = "unknown"
        self._record = record

    def ask(
        self,
        request_id: Hashable,
        *,
        token_ids: Sequence[int],
        served_model: str = "",
        category: str = "",
        conversation_id: str = "",
        user: str = "",
    ) -> None:
        """Record the question, if questions are recorded."""
        if self._record:
            question = Question(token_ids, served_model, category=category, conversation_id=conversation_id, user=user)
            self.asked[str(request_id)] = question

    def take(self, request_id: Hashable) -> SidecarPrediction | None:
        """Return the script's answer; if that is a group, a prediction with probability 0.5."""
        answer = self.script(str(request_id))
        return SidecarPrediction(0.5, "scripted", 1, group=answer) if isinstance(answer, int) else answer

    def forget(self, request_id: Hashable) -> None:
        """Do nothing, because no answer waits."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""
