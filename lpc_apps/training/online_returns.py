"""Replays a log to the return model, which learns online as in a sidecar.

Each turn is predicted on arrival from the facts that a sidecar has then: conversation, turn number, tokens, category, the
conversation's beginning, and the previous reply. The model is refitted every minute and never uses later requests.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.model.probability import logit
from lpc.model.returns.facts import Facts
from lpc.model.returns.hazards import EDGES, INTERVALS, log_likelihood
from lpc.model.returns.memory import Arrived, Conversations
from lpc.model.returns.model import ReturnModel

Floats = NDArray[np.float64]

EPOCH_S: Final = 1.8e9
"""Seconds since the epoch at second 0 of a log, so that times have the same precision as in production."""
REFIT_S: Final = 60.0
"""Interval between refits with requests, as in a sidecar."""
HELD_OUT_S: Final = 1200.0
"""The model is evaluated on this last part of a trace."""
HORIZONS_S: Final = (30.0, 60.0, 120.0, 300.0)


class OnlineReturns:
    """A return model with turns in order of arrival and a refit every minute of their time."""

    def __init__(self) -> None:
        self.model = ReturnModel()
        self._refit_at: float | None = None
        self._conversations = Conversations()
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
    ) -> tuple[Floats, float] | None:
        """Add a turn; return the result of `ReturnModel.forecast`. Turns must be in order of arrival (seconds).

        Args:
            opening: digest of the conversation's beginning; empty if unknown.
            probability: prediction of the sidecar's text model.
            linkable: whether the conversation can be recognised.
        """
        at = EPOCH_S + arrival
        self._refit(at)
        facts = Facts(
            turn,
            input_tokens,
            reply_tokens=self._replies.get(conversation, math.nan),
            log_odds=math.nan if probability is None else logit(probability),
            category=category,
        )
        name = conversation.encode() if linkable else b""
        came, before = self._conversations.arrive(Arrived(conversation=name, asked_at=at, facts=facts, opening=opening))
        self._replies[conversation] = output_tokens
        found = self.model.forecast(came)
        if before is not None:
            self.model.follow(before)
        self.model.answer([came])
        return found

    def _refit(self, at: float) -> None:
        if self._refit_at is None:
            self._refit_at = at + REFIT_S
        elif at >= self._refit_at:
            # In a pause, refits between the first and the last have no effect.
            last = self._refit_at + math.floor((at - self._refit_at) / REFIT_S) * REFIT_S
            with threadpool_limits(1):  # small matrices: threads would wait for each other
                for due in dict.fromkeys((self._refit_at, last)):
                    self.model.refit(due)
            self._refit_at = last + REFIT_S


@dataclass(frozen=True)
class Forecasts:
    """Predictions for the requests of a trace, in order, [n]; NaN before the model has enough data.

    Attributes:
        hazard: [2, n, INTERVALS] of counts and head.
        head_share: [n] weight of the head in the mixture.
        gap: seconds until the conversation's next turn; infinite if there is none.
        window: seconds for which the turn was observed.
        judged: whether the turn arrived at ``since`` or later, was predicted and can be recognised.
    """

    hazard: Floats
    head_share: Floats
    gap: Floats
    window: Floats
    judged: NDArray[np.bool_]

    def log_likelihoods(self) -> dict[str, Floats]:
        """Return the log-likelihood of each request's outcome, [n] nats, by `mixture`, `counts` and `head`.

        It is of a density per second if the next turn arrived, else of a probability. NaN without a prediction.
        """
        came = np.isfinite(self.gap) & (self.gap < EDGES[-1])
        return self._mixed(np.where(came, self.gap, self.window), came)

    def within(self, horizon: float) -> Floats:
        """Return the probability that the next turn arrives within ``horizon`` seconds, [n]."""
        stays = self._mixed(np.full(len(self.gap), horizon), np.zeros(len(self.gap), np.bool_))["mixture"]
        result: Floats = -np.expm1(stays)
        return result

    def _mixed(self, age: Floats, came: NDArray[np.bool_]) -> dict[str, Floats]:
        counts, head = (log_likelihood(hazard, age, came) for hazard in self.hazard)
        with np.errstate(invalid="ignore"):  # NaN if nothing was predicted
            mixture = np.logaddexp(np.log1p(-self.head_share) + counts, np.log(self.head_share) + head)
        return {"mixture": mixture, "counts": counts, "head": head}


def forecast(trace: Trace, since: float = 0.0) -> Forecasts:
    """Replay a trace to a new return model. ``since``: second of the trace from which turns are judged."""
    online = OnlineReturns()
    n = len(trace.requests)
    hazard, share = np.full((2, n, INTERVALS), np.nan), np.full(n, np.nan)
    for place, request in enumerate(trace.requests):
        predicted = online.forecast(
            request.conversation,
            request.turn,
            request.arrival,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            category=request.category,
            # All conversations may share the first block, the system prompt.
            opening=str(request.blocks[min(1, len(request.blocks) - 1)]).encode() if request.blocks else b"",
            linkable=request.linkable,
        )
        if predicted is not None:
            hazard[:, place], share[place] = predicted
    turns = turns_in(trace)
    linkable = np.array([request.linkable for request in trace.requests])
    judged = turns.stands & linkable & (turns.arrival >= since) & ~np.isnan(share)
    return Forecasts(hazard, share, turns.next_arrival - turns.arrival, trace.duration - turns.arrival, judged)


def evaluate_online_returns(trace: Trace, since: float) -> dict[str, Any]:
    """Replay a trace and evaluate the predictions of turns from ``since`` on.

    Returns:
        turns: judged; log_likelihood: mean nats per judged turn by the model (`mixture`) and by its forecasters alone
        (`counts`, `head`), None if no turn was judged; calibration: see `calibration`.
    """
    found = forecast(trace, since)
    turns = int(found.judged.sum())
    means = {
        name: round(float(value[found.judged].mean()), 4) if turns else None for name, value in found.log_likelihoods().items()
    }
    return {"turns": turns, "log_likelihood": means, "calibration": calibration(found)}


def calibration(found: Forecasts) -> list[dict[str, Any]]:
    """Return the predicted and observed shares of returns within each horizon, of judged turns observed that long."""
    rows = []
    for horizon in HORIZONS_S:
        watched = found.judged & (found.window >= horizon)
        some = bool(watched.any())
        rows.append(
            {
                "within_s": horizon,
                "turns": int(watched.sum()),
                "predicted": round(float(found.within(horizon)[watched].mean()), 4) if some else None,
                "observed": round(float((found.gap[watched] <= horizon).mean()), 4) if some else None,
            }
        )
    return rows
