"""A think-time model from a log: which classes it learns, what is held out, and what it expects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lpc.logs.traces import Trace
from lpc.logs.traces.mooncake import turn_bucket
from lpc.model.think_time import ThinkTime
from lpc.training.think_time import HELD_OUT_S, evaluate_think_time, fit_think_time

HOUR_S: Final = 3600.0
SHORT_HELD_OUT: Final = 0.25
"""Share of a trace shorter than an hour that is held out."""
TURNS_SHOWN: Final = (1, 2, 4, 8)
TENTH: Final = 1.2816
"""Standard deviations from the mean to the normal law's 10% and 90% points."""


@dataclass(frozen=True)
class LearntTimes:
    """What a log taught.

    Attributes:
        trace: the log, without classes that only repeat the turn's number.
        model: the think-time model.
        expected: see `expectations`.
        split_at: seconds of the log after which the model was judged, or would have been.
        evaluation: see `lpc.training.think_time.evaluate_think_time`; None if it was not asked for.
    """

    trace: Trace
    model: ThinkTime
    expected: list[dict[str, Any]]
    split_at: float
    evaluation: dict[str, Any] | None


def think_times_of(log: Trace, *, until: float | None = None, seed: int = 0, evaluate: bool = False) -> LearntTimes:
    """Learn from a log whether and when the next turn comes.

    Args:
        log: a trace with times.
        until: seconds of the log after which nothing is fitted; default: its end.
        evaluate: also fit on the log without its last 20 minutes (its last quarter where it is shorter than an hour; what comes
            after ``until`` where that is given), and judge that model on them.

    Raises:
        ThinkTimeError: the log has too few turns.
    """
    trace = without_turn_classes(log)
    split_at = until if until is not None else trace.duration - held_out(trace.duration)
    judged = evaluate_think_time(trace, split_at, seed) if evaluate else None
    model = fit_think_time(trace, until, seed)
    return LearntTimes(trace, model, expectations(model), split_at, judged)


def held_out(duration: float) -> float:
    """Return how many seconds at the end of a trace a model is judged on."""
    return HELD_OUT_S if duration >= HOUR_S else SHORT_HELD_OUT * duration


def without_turn_classes(trace: Trace) -> Trace:
    """Return the trace without its classes where they only repeat the turn's number, as in formats that name none.

    The model knows the number already, and callers do not send such a class: on the Mooncake trace a model fitted with them
    foretells no better where they are told, and worse by 0.04 nats a turn where they are not.
    """
    if any(request.category != turn_bucket(request.turn) for request in trace.requests):
        return trace
    return replace(trace, requests=[replace(request, category="") for request in trace.requests])


def expectations(model: ThinkTime, turns: Sequence[int] = TURNS_SHOWN) -> list[dict[str, Any]]:
    """Return what a model expects after some turns of each of its classes, all else unknown.

    Returns:
        one row per class and turn: class, turn, p_continue; median_s, p10_s, p90_s: quantiles of the time to the next turn.
    """
    rows = [(category, turn) for category in model.categories or ("",) for turn in turns]
    found = model.predict([turn for _, turn in rows], category=np.array([category for category, _ in rows], np.str_))
    seconds = np.exp(found.log_mean[:, None] + found.log_sigma[:, None] * np.array([0, -TENTH, TENTH]))
    return [
        {
            "class": category,
            "turn": turn,
            "p_continue": round(float(p), 4),
            **{name: round(float(value), 3) for name, value in zip(("median_s", "p10_s", "p90_s"), times, strict=True)},
        }
        for (category, turn), p, times in zip(rows, found.p_continue, seconds, strict=True)
    ]
