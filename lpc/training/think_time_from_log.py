"""`lpc train-time`: fit the think-time model to a log, save it, and say what it expects and how well it foretells."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from lpc.logs.traces import Trace, open_trace
from lpc.logs.traces.mooncake import turn_bucket
from lpc.model.think_time import ThinkTime, ThinkTimeError
from lpc.training.think_time import HELD_OUT_S, evaluate_think_time, fit_think_time
from lpc.wire.terminal import console

HOUR_S: Final = 3600.0
SHORT_HELD_OUT: Final = 0.25
"""Share of a trace shorter than an hour that is held out."""
TURNS_SHOWN: Final = (1, 2, 4, 8)
TENTH: Final = 1.2816
"""Standard deviations from the mean to the normal law's 10% and 90% points."""


def think_time_from_log(
    path: Path, trace_format: str, out: Path, *, until: float | None = None, seed: int = 0, evaluate: bool = False
) -> dict[str, Any]:
    """Fit, save and print; return the figures. What cannot be fitted or evaluated leaves no file.

    Args:
        path: the log.
        trace_format: mooncake, qwen or chat.
        out: the model's file.
        until: seconds of the log after which nothing is fitted; default: its end.
        evaluate: also fit on the log without its last 20 minutes (its last quarter where it is shorter than an hour; what comes
            after ``until`` where that is given), and judge that model on them.

    Returns:
        file; requests, duration_s of the log; left_out: lines by reason; model: what it was fitted on and how; expected: see
        `expectations`; evaluation: see `lpc.training.think_time.evaluate_think_time`.

    Raises:
        TraceError: the log cannot be read. ThinkTimeError: it has too few turns, or ``out`` cannot be written.
    """
    if out.is_dir():
        raise ThinkTimeError(f"{out} is a folder: name the file to write")
    screen = console()
    trace = without_turn_classes(open_trace(path, trace_format))
    for reason, number in trace.skipped.counts.items():
        screen.print(f"left out: {reason}: {number} (first: {trace.skipped.first[reason]})", highlight=False, markup=False)
    split_at = until if until is not None else trace.duration - held_out(trace.duration)
    judged = evaluate_think_time(trace, split_at, seed) if evaluate else None
    model = fit_think_time(trace, until, seed)
    model.save(out)
    expected = expectations(model)
    screen.print(_expected_table(trace, model, expected))
    figures: dict[str, Any] = {
        "file": str(out),
        "requests": len(trace.requests),
        "duration_s": round(trace.duration, 3),
        "left_out": dict(trace.skipped.counts),
        "model": model.metadata,
        "expected": expected,
    }
    if judged is not None:
        screen.print(_likelihood_table(trace, model, split_at, judged), _calibration_table(judged))
        figures["evaluation"] = judged
    screen.print(str(out), highlight=False, markup=False)
    return figures


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


def _expected_table(trace: Trace, model: ThinkTime, expected: list[dict[str, Any]]) -> Table:
    said = model.metadata
    table = Table(title=f"{trace.name}: {said['turns']:,} turns in {said['until_s']:,.0f} s, {said['returned']:,} went on")
    for column in ("class", "turn", "goes on", "median s to the next", "10%", "90%"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for row in expected:
        seconds = (f"{row[name]:,.1f}" for name in ("median_s", "p10_s", "p90_s"))
        table.add_row(row["class"] or "all", str(row["turn"]), f"{row['p_continue']:.0%}", *seconds)
    return table


def _likelihood_table(trace: Trace, model: ThinkTime, split_at: float, judged: dict[str, Any]) -> Table:
    table = Table(title=f"held out: {judged['turns']:,} turns from second {split_at:,.0f} of {trace.name} on")
    for column in ("model", "log-likelihood per turn", "think times are better by"):
        table.add_column(column, justify="left" if column == "model" else "right")
    table.add_row("think times", f"{judged['log_likelihood']:.4f}", "")
    for name, (gain, error) in judged["gain"].items():
        if name == "exponential_by_class" and not model.categories:
            continue  # it is the one for all
        table.add_row(name.replace("_", " "), f"{judged[f'log_likelihood_{name}']:.4f}", f"{gain:.4f} ± {error:.4f}")
    return table


def _calibration_table(judged: dict[str, Any]) -> Table:
    table = Table("returns within s", "turns", "predicted", "observed")
    for row in judged["calibration"]:
        shares = (f"{row[name]:.1%}" if row[name] is not None else "" for name in ("predicted", "observed"))
        table.add_row(f"{row['within_s']:.0f}", f"{row['turns']:,}", *shares)
    return table
