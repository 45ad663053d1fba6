"""How well the return model predicts a trace that it learns from as it comes: a sidecar's life, replayed.

Each turn is predicted when it arrives, with what a sidecar then knows: the turns before it, the reply before it (its own is not
written yet), its tokens, class and opening. The model is refitted every minute and never sees what comes later.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.model.returns.facts import Facts
from lpc.model.returns.hazards import EDGES, INTERVALS, log_likelihood
from lpc.model.returns.memory import Arrived, Conversations
from lpc.model.returns.model import ReturnModel

Floats = NDArray[np.float64]

REFIT_S: Final = 60.0
HELD_OUT_S: Final = 1200.0
"""The end of a trace on which the model is judged."""
HORIZONS_S: Final = (30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True)
class Forecasts:
    """What the model said of each request of a trace, in its order, [n]; NaN where it did not know enough yet.

    Attributes:
        hazard: [2, n, INTERVALS], by counts and by head.
        head_share: [n] of the head in the mixture.
        gap: seconds until the conversation's next turn; infinite where none came.
        window: seconds for which the turn was watched.
        judged: turns that arrived at ``since`` or later, were predicted and can be recognised again.
    """

    hazard: Floats
    head_share: Floats
    gap: Floats
    window: Floats
    judged: NDArray[np.bool_]

    def log_likelihoods(self) -> dict[str, Floats]:
        """Return the log-likelihood of what followed each request, [n] nats, by `mixture`, `counts` and `head`.

        A density per second where the next turn came, a probability where not. NaN if nothing was predicted.
        """
        came = np.isfinite(self.gap) & (self.gap < EDGES[-1])
        return self._mixed(np.where(came, self.gap, self.window), came)

    def within(self, horizon: float) -> Floats:
        """Return the probability that the next turn comes within so many seconds, [n]."""
        stays = self._mixed(np.full(len(self.gap), horizon), np.zeros(len(self.gap), np.bool_))["mixture"]
        result: Floats = -np.expm1(stays)
        return result

    def _mixed(self, age: Floats, came: NDArray[np.bool_]) -> dict[str, Floats]:
        counts, head = (log_likelihood(hazard, age, came) for hazard in self.hazard)
        with np.errstate(invalid="ignore"):  # NaN if nothing was predicted
            mixture = np.logaddexp(np.log1p(-self.head_share) + counts, np.log(self.head_share) + head)
        return {"mixture": mixture, "counts": counts, "head": head}


def forecast(trace: Trace, since: float = 0.0, *, learning: bool = True) -> Forecasts:
    """Replay a trace to a new return model.

    Args:
        since: seconds of the trace from which on turns are judged.
        learning: refit also after ``since``, as a sidecar does; else the model then knows what was known at ``since``, as one
            that was fitted once.
    """
    model, conversations = ReturnModel(), Conversations()
    n = len(trace.requests)
    hazard, share = np.full((2, n, INTERVALS), np.nan), np.full(n, np.nan)
    replies: dict[str, int] = {}
    refit_at, fixed_share = REFIT_S, math.nan
    for place, request in enumerate(trace.requests):
        while refit_at <= request.arrival and (learning or refit_at <= since):
            model.refit(refit_at)
            refit_at += REFIT_S
        facts = Facts(
            request.turn,
            request.input_tokens,
            reply_tokens=replies.get(request.conversation, math.nan),
            category=request.category,
        )
        turn, before = conversations.arrive(
            Arrived(
                conversation=request.conversation.encode() if request.linkable else b"",
                asked_at=request.arrival,
                facts=facts,
                # The first block often is the same for all: the system prompt.
                opening=str(request.blocks[min(1, len(request.blocks) - 1)]).encode() if request.blocks else b"",
            )
        )
        replies[request.conversation] = request.output_tokens
        said = model.forecast(turn)
        if said is not None:
            hazard[:, place], share[place] = said
            if not learning and request.arrival >= since:
                fixed_share = share[place] = share[place] if math.isnan(fixed_share) else fixed_share
        if before is not None:
            model.follow(before)
        model.answer([turn])
    turns = turns_in(trace)
    linkable = np.array([request.linkable for request in trace.requests])
    judged = turns.stands & linkable & (turns.arrival >= since) & ~np.isnan(share)
    return Forecasts(hazard, share, turns.next_arrival - turns.arrival, trace.duration - turns.arrival, judged)


def evaluate_online_returns(trace: Trace, since: float) -> dict[str, Any]:
    """Replay a trace, once learning to its end and once to ``since``, and judge the predictions of the turns from then on.

    Returns:
        turns: judged; head_share: the head's mean share of the mixture; calibration: see `calibration`; all of the model that
        goes on learning. log_likelihood: mean nats per judged turn by that model (`mixture`), by its forecasters alone
        (`counts`, `head`) and by the model that stopped learning (`stopped`). None where no turn was judged, or one was not
        predicted.
    """
    online, stopped = forecast(trace, since), forecast(trace, since, learning=False)
    values = online.log_likelihoods() | {"stopped": stopped.log_likelihoods()["mixture"]}
    judged = online.judged
    some = bool(judged.any())

    def mean(found: Floats) -> float | None:
        return round(float(found[judged].mean()), 4) if some and not np.isnan(found[judged]).any() else None

    return {
        "turns": int(judged.sum()),
        "head_share": mean(online.head_share),
        "log_likelihood": {name: mean(found) for name, found in values.items()},
        "calibration": calibration(online),
    }


def calibration(found: Forecasts) -> list[dict[str, Any]]:
    """Return the share that returns within each horizon, predicted and observed, of the judged turns watched that long."""
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
