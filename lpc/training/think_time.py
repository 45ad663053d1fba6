"""The time head: whether a conversation continues, and when its next turn comes if it does.

A turn's conversation continues with probability P; given that it does, ln(gap) is normal with mean mu and standard deviation
sigma. Gaps and turns are those of `lpc.model.arrivals`: from arrival to arrival. All three depend on what is known when the
turn ends: its number in the conversation, its tokens, the gaps so far, the hour of day (UTC; from traces of a day or more) and
the request's class.

A log ends before some of its conversations do. So the fit maximises the likelihood of a mixture cure model (Farewell 1982, "The
use of mixture models for the analysis of survival data with long-term survivors"), with f the density and S the survival
function of the gap, over all turns, each seen for a window of W seconds:

    returned after g <= W:  ln P + ln f(g)            not returned in W:  ln(1 - P + P S(W))

Counting those that have not returned yet as ended, or leaving them out, would make every gap look short.

A caller seldom knows everything. So the fit sees each turn twice, once with some of its inputs hidden: otherwise a model told
no more than a turn's number and class foretells worse than one fitted on just these (held out: by 0.026 nats a turn).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces import Trace, TracedRequest
from lpc.logs.traces.turns import turns_in
from lpc.model.arrivals import DAY_S
from lpc.model.think_time import (
    COLUMNS,
    LAWS,
    LOG_SIGMA,
    Floats,
    Law,
    Parameters,
    Prediction,
    ThinkTime,
    ThinkTimeError,
    features,
    inputs_of,
    normal_cdf,
)
from lpc.training.threads import one_thread

FEWEST_TURNS: Final = 100
FEWEST_RETURNS: Final = 30
FEWEST_OF_CLASS: Final = 50
"""A class with fewer turns in the fit has no parameter of its own."""
CANDIDATES: Final = ((0, 1e-2), (0, 1e-3), (0, 1e-4), (8, 1e-2), (8, 1e-3), (8, 3e-4))
"""Hidden units and weight of the L2 penalty, of which the best on the last quarter of the fitted time is taken."""
SELECTION_SHARE: Final = 0.75
STEPS: Final = 200
UNKNOWN: Final = (
    ("output",),
    ("new", "gap"),
    ("new", "output"),
    ("new", "output", "gap"),
    ("input", "new", "output"),
    ("input", "new", "output", "gap"),
)
"""What callers may not know: the reply before it ends; the turn before; and what the sidecar does not, which knows the gaps
only by a conversation's id and the input's length only from token ids."""
INPUTS: Final = {
    "input": ("log_input", "has_input"),
    "new": ("log_new", "has_new"),
    "output": ("log_output", "has_output"),
    "gap": ("log_last_gap", "mean_log_gap", "has_gap"),
}
HELD_OUT_S: Final = 1200.0
"""The end of a trace on which a model is judged."""
HORIZONS_S: Final = (30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True)
class Turns:
    """Turns as columns, [n].

    Attributes:
        features: [n, len(COLUMNS)], NaN where not known.
        category: the class of each.
        conversation: whose turn it is.
        gap: seconds until the next turn's arrival; infinite where none came within the window.
        window: seconds for which the turn was watched.
        place: of its request in the trace.
    """

    features: Floats
    category: NDArray[np.str_]
    conversation: NDArray[np.str_]
    gap: Floats
    window: Floats
    place: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.gap)


def turns_of(trace: Trace, until: float | None = None, since: float = 0.0) -> Turns:
    """Return the turns that arrived in [since, until), seconds of the trace, as far as was known at ``until``.

    By conversation, in each by arrival. Default of ``until``: the trace's end. Turns that are not linkable are left out.
    """
    end = math.inf if until is None else until
    turns = turns_in(trace)
    linkable = np.array([request.linkable for request in trace.requests])
    rows = np.flatnonzero(turns.stands & linkable & (turns.arrival >= since) & (turns.arrival < end))
    rows = rows[np.argsort(turns.conversation[rows], kind="stable")]
    requests = [trace.requests[row] for row in rows]
    columns = features(
        np.array([request.turn for request in requests], np.float64),
        np.array([request.input_tokens for request in requests], np.float64),
        turns.new_tokens[rows],
        np.array([request.output_tokens for request in requests], np.float64),
        turns.last_gap[rows],
        turns.mean_log_gap[rows],
        np.array([_hour(trace, request) for request in requests], np.float64),
    )
    category, conversation = (
        np.array([getattr(request, name) for request in requests], np.str_) for name in ("category", "conversation")
    )
    arrival, following = turns.arrival[rows], turns.next_arrival[rows]
    gap = np.where(following < end, following - arrival, np.inf)
    return Turns(columns, category, conversation, gap, min(end, trace.duration) - arrival, rows)


def fit_think_time(trace: Trace, until: float | None = None, seed: int = 0) -> ThinkTime:
    """Fit the model to a trace by maximum likelihood; the same trace and seed give the same model.

    Its size and penalty are chosen by the likelihood of the last quarter of the fitted time, given the quarters before.

    Args:
        trace: the log.
        until: seconds of the trace after which nothing is looked at; default: its end.
        seed: of the hidden units' first weights.

    Raises:
        ThinkTimeError: too few turns, or too few that returned.
    """
    end = trace.duration if until is None else min(until, trace.duration)
    turns = turns_of(trace, until)
    _enough(turns, f"the first {end:.0f} s of {trace.name}")
    earlier, later = turns_of(trace, end * SELECTION_SHARE), turns_of(trace, until, since=end * SELECTION_SHARE)
    hidden, penalty = CANDIDATES[0]
    if len(earlier) >= FEWEST_TURNS and len(later) >= FEWEST_TURNS:
        fitted = _and_partly_known(earlier, seed)
        scored = [(log_likelihood(_fit(fitted, "lognormal", size, seed), later).mean(), size) for size in CANDIDATES]
        hidden, penalty = max(scored, key=lambda pair: float(pair[0]))[1]
    model = _fit(_and_partly_known(turns, seed), "lognormal", (hidden, penalty), seed)
    model.metadata.update(
        trace=trace.name,
        until_s=round(end, 3),
        seed=seed,
        hidden=hidden,
        penalty=penalty,
        turns=len(turns),
        returned=int(np.isfinite(turns.gap).sum()),
        gap="from arrival to arrival, seconds",
    )
    return model


def log_likelihood(model: ThinkTime, turns: Turns) -> Floats:
    """Return each turn's log-likelihood, [n], nats: a density per second where it returned, a probability where not."""
    import torch

    outputs = torch.from_numpy(model.outputs(turns.features, turns.category))
    values: Floats = _log_likelihood(model.law, outputs, torch.from_numpy(turns.gap), torch.from_numpy(turns.window)).numpy()
    return values


def evaluate_think_time(
    trace: Trace, split_at: float, seed: int = 0, rivals: Mapping[str, Floats] | None = None
) -> dict[str, Any]:
    """Fit on what was known at ``split_at`` and report how well it foretells the turns that arrive afterwards.

    The models that it is compared with (one exponential for all, one per class, one lognormal for all) have the same cure
    fraction, fitted along with them, and the same data.

    Args:
        rivals: further models: by name, the log-likelihood of each request of the trace; NaN where a model says nothing, and
            such a model is left out.

    Returns:
        log_likelihood, log_likelihood_exponential, log_likelihood_exponential_by_class, log_likelihood_lognormal: means per
        held-out turn, nats (see `log_likelihood`).
        log_likelihood_turn_and_class: the model's, told no more than each turn's number and class.
        log_likelihood_reply_unknown: the model's, told nothing of the turn's own reply, as when the turn arrives.
        log_likelihood_ and a rival's name.
        gain: how far the model is above each of the others, with the standard error over conversations.
        turns, returned: held out; turns_fitted; turns_not_linkable: left out, of all.
        calibration: the share that returns within a time, predicted (also by one exponential) and observed, of the turns that
        were watched that long.
        pit: the share of the returns in each tenth of the distribution that the model gave them, given that they come within
        the window; 0.1 if exact.
        model: what it was fitted on and how it was chosen.

    Raises:
        ThinkTimeError: too few turns before or after ``split_at``.
    """
    held_out = turns_of(trace, since=split_at)
    _enough(held_out, f"{trace.name} from second {split_at:.0f}")
    fitted = turns_of(trace, split_at)
    model = fit_think_time(trace, split_at, seed)
    others = {
        "exponential": _fit(fitted, "exponential", by="nothing"),
        "exponential_by_class": _fit(fitted, "exponential", by="class"),
        "lognormal": _fit(fitted, "lognormal", by="nothing"),
    }
    likelihood = log_likelihood(model, held_out)
    by_other = {name: log_likelihood(other, held_out) for name, other in others.items()}
    by_rival = {name: values[held_out.place] for name, values in (rivals or {}).items()}
    by_other |= {name: values for name, values in by_rival.items() if not np.isnan(values).any()}
    return {
        "log_likelihood": round(float(likelihood.mean()), 4),
        "log_likelihood_turn_and_class": round(float(log_likelihood(model, hide(held_out, tuple(INPUTS))).mean()), 4),
        "log_likelihood_reply_unknown": round(float(log_likelihood(model, hide(held_out, ("output",))).mean()), 4),
        **{f"log_likelihood_{name}": round(float(values.mean()), 4) for name, values in by_other.items()},
        "gain": {name: _gain(likelihood - values, held_out.conversation) for name, values in by_other.items()},
        "turns": len(held_out),
        "returned": int(np.isfinite(held_out.gap).sum()),
        "turns_fitted": len(fitted),
        "turns_not_linkable": sum(not request.linkable for request in trace.requests),
        "calibration": [_calibration(model, others["exponential"], held_out, horizon) for horizon in HORIZONS_S],
        "pit": _pit(model.predict_features(held_out.features, held_out.category), held_out),
        "model": model.metadata,
    }


def hide(turns: Turns, names: Sequence[str], rows: NDArray[np.bool_] | None = None) -> Turns:
    """Return the turns as known to a caller who lacks some INPUTS, at all turns or at the chosen rows."""
    known = turns.features.copy()
    chosen = np.ones(len(turns), np.bool_) if rows is None else rows
    for column in (COLUMNS.index(column) for name in names for column in INPUTS[name]):
        known[chosen, column] = 0.0 if COLUMNS[column].startswith("has_") else np.nan
    return replace(turns, features=known)


def _and_partly_known(turns: Turns, seed: int) -> Turns:
    """Return each turn as it is, and once more with one of UNKNOWN hidden, drawn at random."""
    drawn = np.random.default_rng(seed).integers(len(UNKNOWN), size=len(turns))
    partly = turns
    for index, names in enumerate(UNKNOWN):
        partly = hide(partly, names, drawn == index)
    return Turns(*(np.concatenate([vars(turns)[name], vars(partly)[name]]) for name in vars(turns)))


def _fit(
    turns: Turns,
    law: Law,
    size: tuple[int, float] = (0, 1e-6),
    seed: int = 0,
    by: Literal["everything", "class", "nothing"] = "everything",
) -> ThinkTime:
    import torch

    names, counts = np.unique(turns.category, return_counts=True)
    categories = tuple(str(name) for name in names[(counts >= FEWEST_OF_CLASS) & (names != "")]) if by != "nothing" else ()
    inputs = inputs_of(turns.features, turns.category, categories)
    if by != "everything":
        inputs[:, : len(COLUMNS)] = np.nan
    known = np.isfinite(inputs)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, inputs, 0).sum(0) / count
    deviation = np.sqrt((np.where(known, inputs - mean, 0) ** 2).sum(0) / count)
    varies = deviation > 1e-6
    scale = np.where(varies, deviation, 1.0)
    x = torch.from_numpy(np.nan_to_num((inputs - mean) / scale))
    gap, window = torch.from_numpy(turns.gap), torch.from_numpy(turns.window)

    outputs, (hidden, penalty) = LAWS[law], size
    generator = torch.Generator().manual_seed(seed)
    zeros = {"linear": (outputs, x.shape[1]), "outer": (outputs, hidden), "shift": (hidden,)}
    weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zeros.items()}
    weights["bias"] = torch.from_numpy(_start(turns, law))
    weights["inner"] = torch.randn((hidden, x.shape[1]), generator=generator, dtype=torch.float64) / math.sqrt(x.shape[1])
    # An input that never varies (the hour, in a trace of an hour) has no gradient: what weight it starts with, a caller who
    # knows it would get.
    weights["inner"] *= torch.from_numpy(varies)
    for weight in weights.values():
        weight.requires_grad_()
    optimizer = torch.optim.LBFGS(
        list(weights.values()), max_iter=STEPS, history_size=20, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        inner = torch.tanh(x @ weights["inner"].T + weights["shift"])
        result = weights["bias"] + x @ weights["linear"].T + inner @ weights["outer"].T
        squares = sum((weights[name] ** 2).sum() for name in ("linear", "outer", "inner"))
        loss: torch.Tensor = penalty * squares - _log_likelihood(law, result, gap, window).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with one_thread():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    parameters = Parameters(**{name: weight.detach().numpy() for name, weight in weights.items()})
    return ThinkTime(categories, mean, scale, parameters, law, {})


def _log_likelihood(law: Law, outputs: Any, gap: Any, window: Any) -> Any:
    """Return the log-likelihood of each turn, [n], from tensors: outputs [n, o], gap and window [n] seconds."""
    import torch
    from torch.nn.functional import logsigmoid

    returned = torch.isfinite(gap)
    # Zero would have no logarithm, and nothing of interest happens within a microsecond.
    time = torch.where(returned, gap, window).clamp(min=1e-6)
    if law == "lognormal":
        log_sigma = outputs[:, 2].clamp(*LOG_SIGMA)
        z = (torch.log(time) - outputs[:, 1]) / torch.exp(log_sigma)
        log_density = -z * z / 2 - math.log(math.tau) / 2 - log_sigma - torch.log(time)
        log_survival = torch.special.log_ndtr(-z)
    else:
        log_survival = -torch.exp(outputs[:, 1]) * time
        log_density = outputs[:, 1] + log_survival
    log_p, log_not_p = logsigmoid(outputs[:, 0]), logsigmoid(-outputs[:, 0])
    return torch.where(returned, log_p + log_density, torch.logaddexp(log_not_p, log_p + log_survival))


def _start(turns: Turns, law: Law) -> Floats:
    """Return the outputs to start from: as if all gaps had been seen."""
    log_gap = np.log(turns.gap[np.isfinite(turns.gap)])
    p = min(max(len(log_gap) / len(turns), 0.01), 0.99)
    logit = math.log(p / (1 - p))
    if law == "exponential":
        return np.array([logit, -math.log(np.exp(log_gap).mean())])
    return np.array([logit, log_gap.mean(), math.log(max(log_gap.std(), 0.1))])


def _hour(trace: Trace, request: TracedRequest) -> float:
    # Within less than a day the hour and the progress of the trace are one, and a fit would extrapolate the hour.
    if trace.start is None or trace.duration < DAY_S:
        return math.nan
    return (trace.start + request.arrival) % DAY_S / 3600


def _enough(turns: Turns, where: str) -> None:
    returned = int(np.isfinite(turns.gap).sum())
    if len(turns) < FEWEST_TURNS or returned < FEWEST_RETURNS:
        raise ThinkTimeError(
            f"{where} has {len(turns)} turns of which {returned} were followed by another; at least {FEWEST_TURNS} and "
            f"{FEWEST_RETURNS} are needed: give a longer log"
        )


def _gain(difference: Floats, conversation: NDArray[np.str_]) -> list[float]:
    """Return the mean difference and its standard error, with a conversation's turns taken as one draw."""
    _, index = np.unique(conversation, return_inverse=True)
    sums = np.bincount(index, difference - difference.mean())
    return [round(float(difference.mean()), 4), round(float(np.sqrt((sums**2).sum()) / len(difference)), 4)]


def _calibration(model: ThinkTime, exponential: ThinkTime, turns: Turns, horizon: float) -> dict[str, Any]:
    watched = turns.window >= horizon
    if not watched.any():
        return {"within_s": horizon, "turns": 0, "predicted": None, "predicted_exponential": None, "observed": None}
    scalars, category = turns.features[watched], turns.category[watched]
    logit, log_rate = exponential.outputs(scalars, category).T
    by_exponential = -np.expm1(-np.exp(log_rate) * horizon) / (1 + np.exp(-logit))
    return {
        "within_s": horizon,
        "turns": int(watched.sum()),
        "predicted": round(float(model.predict_features(scalars, category).within(horizon).mean()), 4),
        "predicted_exponential": round(float(by_exponential.mean()), 4),
        "observed": round(float((turns.gap[watched] <= horizon).mean()), 4),
    }


def _pit(prediction: Prediction, turns: Turns) -> list[float]:
    returned = np.isfinite(turns.gap)
    log_mean, log_sigma = prediction.log_mean[returned], prediction.log_sigma[returned]
    by_gap, by_window = (normal_cdf((np.log(t[returned]) - log_mean) / log_sigma) for t in (turns.gap, turns.window))
    counts, _ = np.histogram(by_gap / by_window, bins=10, range=(0, 1))
    return [round(float(count), 4) for count in counts / returned.sum()]
