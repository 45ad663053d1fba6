"""When conversations return: curves learnt here, of what LMCache's events say, from the first hundreds of turns on.

The sidecar's answers carry credits, not curves, and a credit only says until when a chunk is worth its room, not from when on
it will be again: tables hold the running minimum of the index, and its rise cannot be read back from them. A curve on the
wire would be 64 numbers in each answer that no engine reads, of ages by the engines' arrivals, and fetches would end with the
sidecar; here ages are those of LMCache's events, which fetches are timed by. So the sidecar's own model
(:mod:`lpc.model.returns`) learns here a second time, on arrivals, lengths and the sidecar's probabilities. Until it has seen
enough, a sidecar that serves think times is believed:
``F(a) = p * Phi((ln a - m) / s)``.
"""

import math
from typing import Final

import numpy as np

from eviction_client import Prediction
from lpc.lmcache.tree import Conversation
from lpc.model.returns.hazards import AGES, Floats
from lpc.model.returns.memory import Arrived
from lpc.model.returns.model import ReturnModel, mixed

AVERAGE_TURNS: Final = 200.0
"""Turns after which a curve counts half in the average."""
CERTAIN: Final = 1e-4
"""Probabilities lie this far from 0 and 1."""


class Foretelling:
    """Return curves. :meth:`refit` is for a thread of its own, all else for one other.

    Attributes:
        average: [ages] of the conversations told of late; None before the first.
    """

    def __init__(self, model: ReturnModel | None = None) -> None:
        self._model = ReturnModel() if model is None else model
        self.average: Floats | None = None

    def turn(self, conversation: Conversation, prediction: Prediction | None) -> Floats | None:
        """Take in a conversation's latest turn; return its curve, [ages] from its arrival on; None: not known."""
        unread = prediction is None or prediction.unread
        probability = math.nan if prediction is None or unread else prediction.probability
        turn = Arrived(
            conversation.name.encode(),
            conversation.arrived_at,
            conversation.turns,
            float(conversation.length),
            math.nan,
            _log_odds(probability),
        )
        told = self._model.foretell(turn)
        self._model.answer([turn])
        curve = None
        if told is not None:
            curve = mixed(told[0][:, None], told[1])[0]
        elif prediction is not None and not unread and prediction.think_log_mean is not None:
            curve = probability * _log_normal(prediction.think_log_mean, prediction.think_log_sigma or 0.0)
        if curve is not None:
            keep = 0.5 ** (1.0 / AVERAGE_TURNS)
            self.average = curve if self.average is None else keep * self.average + (1.0 - keep) * curve
        return curve

    def refit(self, now: float) -> None:
        """Learn from what has happened until ``now``. Tenths of a second."""
        self._model.refit(now)

    @property
    def turns(self) -> int:
        """Turns taken in."""
        return self._model.quality.turns

    @property
    def returns(self) -> int:
        """Of these, those that were followed."""
        return self._model.quality.returns


def _log_odds(probability: float) -> float:
    if math.isnan(probability):
        return math.nan
    p = min(max(probability, CERTAIN), 1.0 - CERTAIN)
    return math.log(p / (1.0 - p))


def _log_normal(mean: float, sigma: float) -> Floats:
    """Return its distribution function at AGES, [ages]; mean and standard deviation of ln(seconds)."""
    logs = np.log(np.maximum(AGES, 1e-9))
    scale = max(sigma, 1e-3) * math.sqrt(2.0)
    return np.array([0.5 * (1.0 + math.erf((log - mean) / scale)) for log in logs])
