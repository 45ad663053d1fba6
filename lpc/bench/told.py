"""A predictor that is told what to answer, for measurements and tests: oracles, and one that says the same of all."""

from collections.abc import Callable, Hashable

from eviction_client.book import PredictorCounters
from eviction_client.credit import CreditGrid
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.prior import ReuseCurves

GRID = CreditGrid([1.0, 10_800.0])
ENDED_S = -3600.0
"""Credit of a conversation that is known to be over."""


class Told:
    """A predictor that answers at once with the credit, seconds at any lifetime, that a function gives a request's id.

    None: no answer at the request's end; what :meth:`answer` says later comes late.
    """

    def __init__(self, tell: Callable[[str], float | None]) -> None:
        self.tell = tell
        self.asked: list[str] = []
        self.left: list[str] = []
        self._late: list[tuple[Hashable, Prediction | None]] = []
        self.counters = PredictorCounters()
        self.healthy = True
        self.reuse_curves: ReuseCurves | None = None
        self.tokenizer_state: TokenizerState = "unknown"

    def ask(self, request_id: Hashable, **_: object) -> None:
        """See `eviction_client.plugin.Predictor`, as for the others."""
        self.asked.append(str(request_id))

    def take(self, request_id: Hashable) -> Prediction | None:
        """The function's answer."""
        credit = self.tell(str(request_id))
        return None if credit is None else told(credit)

    def forget(self, request_id: Hashable) -> None:
        """Nothing is remembered."""

    def take_or_leave(self, request_id: Hashable) -> tuple[Prediction | None, bool]:
        """The function's answer; a request without one is remembered, so that it can be answered late."""
        answer = self.take(request_id)
        if answer is None:
            self.left.append(str(request_id))
        return answer, answer is None

    def answer(self, request_id: str, credit: float | None) -> None:
        """Answer a request that was left; None: it never will be."""
        self._late.append((request_id, None if credit is None else told(credit)))

    def late_answers(self) -> list[tuple[Hashable, Prediction | None]]:
        """What :meth:`answer` was told since."""
        late, self._late = self._late, []
        return late

    def close(self) -> None:
        """Nothing is open."""


def told(credit: float) -> Prediction:
    """Return a prediction with this credit, seconds at any lifetime, and a group: 1, or 2 for a conversation that is over."""
    group = 2 if credit <= ENDED_S else 1
    return Prediction(0.5, "told", None, None, 1, GRID.table([credit] * len(GRID.lifetimes)), group=group)
