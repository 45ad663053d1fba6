"""Replays a log to the return model, which learns online as in a sidecar.

Each turn is predicted on arrival from the facts that a sidecar has then: conversation, turn number, tokens, category, the
conversation's beginning, and the previous reply. The model is refitted every minute and never uses later requests.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model.probability import logit
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrival, Conversations
from lpc.model.returns.model import ReturnModel
from lpc.model.returns.users import Users

Floats = NDArray[np.float64]

EPOCH_S: Final = 1.8e9
"""Seconds since the epoch at second 0 of a log, so that times have the same precision as in production."""
REFIT_S: Final = 60.0
"""Interval between refits with requests, as in a sidecar."""


class OnlineReturns:
    """A return model with turns in order of arrival and a refit every minute of their time."""

    def __init__(self) -> None:
        self.model = ReturnModel()
        self._refit_at: float | None = None
        self._conversations = Conversations()
        self._users = Users()
        self._replies: dict[str, int] = {}

    def forecast(
        self,
        conversation: str,
        turn: int,
        arrival: float,
        *,
        input_tokens: int,
        output_tokens: int,
        category: str,
        opening: bytes,
        probability: float | None = None,
        linkable: bool = True,
        user: str = "",
    ) -> tuple[Floats, float] | None:
        """Add a turn; return the result of `ReturnModel.forecast`. Turns must be in order of arrival (seconds).

        Args:
            opening: digest of the conversation's beginning; empty if unknown.
            probability: prediction of the sidecar's text model.
            linkable: whether the conversation can be recognised.
            user: who asked; empty: unknown.
        """
        at = EPOCH_S + arrival
        self._refit(at)
        facts = Facts(
            turn,
            input_tokens,
            reply_tokens=self._replies.get(conversation, math.nan),
            model_log_odds=math.nan if probability is None else logit(probability),
            category=category,
        )
        name = conversation.encode() if linkable else b""
        came, before = self._conversations.arrive(Arrival(name, at, facts, opening, user=user.encode()), self._users)
        self._replies[conversation] = output_tokens
        found = self.model.forecast(came, came.arrival.facts)
        if before is not None:
            self.model.record_return(before)
        self.model.answer([came], [came.arrival.facts])
        return found

    def _refit(self, at: float) -> None:
        if self._refit_at is None:
            self._refit_at = at + REFIT_S
        elif at >= self._refit_at:
            # In a pause, refits between the first and the last have no effect.
            last = self._refit_at + math.floor((at - self._refit_at) / REFIT_S) * REFIT_S
            from threadpoolctl import threadpool_limits  # not where engines run, which simulate without a sidecar

            with threadpool_limits(1):  # small matrices: threads would wait for each other
                for due in dict.fromkeys((self._refit_at, last)):
                    self.model.refit(due)
            self._refit_at = last + REFIT_S
