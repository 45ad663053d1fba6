"""What think-time models expect and how well they foretell, as tables: `lpc train-time`, `lpc evaluate`."""

from typing import Any

from rich.table import Table

from lpc.logs.traces import Trace
from lpc.training.think_time import HELD_OUT_S
from lpc.training.think_time_from_log import LearntTimes


def expected_table(found: LearntTimes) -> Table:
    """Return what the model expects after which turn."""
    said = found.model.metadata
    table = Table(
        title=f"{found.trace.name}: {said['turns']:,} turns in {said['until_s']:,.0f} s, {said['returned']:,} went on"
    )
    for column in ("class", "turn", "goes on", "median s to the next", "10%", "90%"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for row in found.expected:
        seconds = (f"{row[name]:,.1f}" for name in ("median_s", "p10_s", "p90_s"))
        table.add_row(row["class"] or "all", str(row["turn"]), f"{row['p_continue']:.0%}", *seconds)
    return table


def likelihood_table(found: LearntTimes, judged: dict[str, Any]) -> Table:
    """Return how well the model foretells what was held out, beside simpler ones."""
    table = Table(title=f"held out: {judged['turns']:,} turns from second {found.split_at:,.0f} of {found.trace.name} on")
    for column in ("model", "log-likelihood per turn", "think times are better by"):
        table.add_column(column, justify="left" if column == "model" else "right")
    table.add_row("think times", f"{judged['log_likelihood']:.4f}", "")
    for name, (gain, error) in judged["gain"].items():
        if name == "exponential_by_class" and not found.model.categories:
            continue  # it is the one for all
        table.add_row(name.replace("_", " "), f"{judged[f'log_likelihood_{name}']:.4f}", f"{gain:.4f} ± {error:.4f}")
    return table


def calibration_table(judged: dict[str, Any]) -> Table:
    """Return the shares that return within a time, predicted and observed."""
    table = Table("returns within s", "turns", "predicted", "observed")
    for row in judged["calibration"]:
        shares = (f"{row[name]:.1%}" if row[name] is not None else "" for name in ("predicted", "observed"))
        table.add_row(f"{row['within_s']:.0f}", f"{row['turns']:,}", *shares)
    return table


def held_out_table(trace: Trace, time: dict[str, Any]) -> Table:
    """Return the log-likelihoods of think-time models on the end of a trace."""
    table = Table(title=f"{trace.name}: time to the next turn, last {HELD_OUT_S / 60:.0f} minutes, {time['turns']:,} turns")
    table.add_column("model")
    table.add_column("log-likelihood per turn", justify="right")
    table.add_column("above the think-time head", justify="right")
    for key, value in time.items():
        if key.startswith("log_likelihood") and isinstance(value, float):
            label = key.removeprefix("log_likelihood").replace("_", " ").strip()
            gain, error = time["gain"].get(label.replace(" ", "_"), (None, None))
            better = "" if gain is None else f"{-gain:+.4f} ± {error:.4f}"
            table.add_row(label or "think-time head", f"{value:.4f}", better)
    return table


def horizons_table(time: dict[str, Any]) -> Table:
    """Return the shares that return within a time: by the think-time head, by the return model, observed."""
    table = Table("returns within s", "turns", "think-time head", "return model", "observed")
    for head, model in zip(time["calibration"], time["return_model"]["calibration"], strict=True):
        said = (head["predicted"], model["predicted"], head["observed"])
        shares = (f"{share:.1%}" if share is not None else "" for share in said)
        table.add_row(f"{head['within_s']:.0f}", f"{head['turns']:,}", *shares)
    return table
