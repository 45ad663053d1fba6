"""A fit of whether a conversation continues, and when its next turn comes: what policies that learn know of a workload.

A turn's conversation continues with probability P; given that it does, ln(gap) is normal with mean mu and standard deviation
sigma. Gaps and turns are those of `lpc.model.arrivals`: from arrival to arrival. All three depend on what is known when the
turn ends: its number in the conversation, its tokens, the gaps so far and the request's class.

A log ends before some of its conversations do. So the fit maximises the likelihood of a mixture cure model (Farewell 1982, "The
use of mixture models for the analysis of survival data with long-term survivors"), with f the density and S the survival
function of the gap, over all turns, each seen for a window of W seconds:

    returned after g <= W:  ln P + ln f(g)            not returned in W:  ln(1 - P + P S(W))

Counting those that have not returned yet as ended, or leaving them out, would make every gap look short.

Not every turn has a turn before it, or tokens. So the fit sees each turn twice, once with some of its inputs hidden. Otherwise
a model given a turn's number and class only predicts worse than one fitted on just these (held out: by 0.026 nats a turn).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.model.probability import P_MIN
from lpc.training.threads import one_thread

COLUMNS: Final = (
    "log_turn",
    "log_input",
    "log_new",
    "log_output",
    "log_last_gap",
    "mean_log_gap",
    "has_input",
    "has_new",
    "has_output",
    "has_gap",
)
OUTPUTS: Final = 3
"""logit P, mu and ln(sigma)."""
LOG_SIGMA: Final = (-3.0, 2.0)
"""Bounds of ln(sigma)."""
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
"""What may not be known."""
INPUTS: Final = {
    "input": ("log_input", "has_input"),
    "new": ("log_new", "has_new"),
    "output": ("log_output", "has_output"),
    "gap": ("log_last_gap", "mean_log_gap", "has_gap"),
}

Floats = NDArray[np.float64]


class Prediction(NamedTuple):
    """What is expected after each turn, [n].

    Attributes:
        p_continue: probability that the conversation has a further turn.
        log_mean: mean of ln(seconds until that turn arrives, from this one's arrival), given that it comes.
        log_sigma: standard deviation of the same.
    """

    p_continue: Floats
    log_mean: Floats
    log_sigma: Floats


@dataclass(frozen=True)
class Parameters:
    """A function of standardised inputs x: ``bias + linear x + outer tanh(inner x + shift)``, o outputs, h hidden units."""

    bias: Floats  # [o]
    linear: Floats  # [o, i]
    outer: Floats  # [o, h]
    inner: Floats  # [h, i]
    shift: Floats  # [h]

    def __call__(self, x: Floats) -> Floats:
        """Return [n, o] for [n, i]."""
        result: Floats = self.bias + x @ self.linear.T + np.tanh(x @ self.inner.T + self.shift) @ self.outer.T
        return result


@dataclass(frozen=True)
class ThinkTime:
    """A fitted model.

    Attributes:
        categories: the classes it distinguishes; another one, and none, counts as not known.
        mean, scale: of the inputs, [i]: the scalars, then one indicator per class.
        parameters: from standardised inputs to `OUTPUTS` outputs.
    """

    categories: tuple[str, ...]
    mean: Floats
    scale: Floats
    parameters: Parameters

    def predict(self, scalars: Floats, category: NDArray[np.str_]) -> Prediction:
        """Predict from columns as `features` makes them, [n, len(COLUMNS)], and classes [n]."""
        outputs = self.outputs(scalars, category)
        p = np.clip(1 / (1 + np.exp(-np.clip(outputs[:, 0], -50, 50))), P_MIN, 1 - P_MIN)
        return Prediction(p, outputs[:, 1], np.exp(np.clip(outputs[:, 2], *LOG_SIGMA)))

    def outputs(self, scalars: Floats, category: NDArray[np.str_]) -> Floats:
        """Return the raw outputs, [n, OUTPUTS]."""
        standardised = (_inputs_of(scalars, category, self.categories) - self.mean) / self.scale
        return self.parameters(np.nan_to_num(standardised))  # what is not known is taken as the mean


@dataclass(frozen=True)
class Turns:
    """Turns as columns, [n].

    Attributes:
        features: [n, len(COLUMNS)], NaN where not known.
        category: the class of each.
        gap: seconds until the next turn's arrival; infinite where none came within the window.
        window: seconds for which the turn was watched.
    """

    features: Floats
    category: NDArray[np.str_]
    gap: Floats
    window: Floats

    def __len__(self) -> int:
        return len(self.gap)


def features(
    turn: Floats, input_tokens: Floats, new_tokens: Floats, output_tokens: Floats, last_gap: Floats, mean_log_gap: Floats
) -> Floats:
    """Return the model's inputs but the classes, [n, len(COLUMNS)], from columns [n]; NaN stands for "not known".

    Args:
        turn: its number in the conversation, from 1.
        input_tokens, output_tokens: of the prompt with its history, and of the reply.
        new_tokens: of the prompt less the prompt and reply of the turn before, at least 0; none at turn 1.
        last_gap: seconds between the arrivals of the turn before and of this one; none at turn 1.
        mean_log_gap: mean of ln(gap) over all gaps of the conversation so far.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = [
            np.log(np.maximum(turn, 1)),
            np.log1p(input_tokens),
            np.log1p(new_tokens),
            np.log1p(output_tokens),
            np.log(last_gap),
            mean_log_gap,
            *(np.isfinite(known) for known in (input_tokens, new_tokens, output_tokens, last_gap)),
        ]
    stacked = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    stacked[~np.isfinite(stacked)] = np.nan
    return stacked


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
    )
    category = np.array([request.category for request in requests], np.str_)
    arrival, following = turns.arrival[rows], turns.next_arrival[rows]
    gap = np.where(following < end, following - arrival, np.inf)
    return Turns(columns, category, gap, min(end, trace.duration) - arrival)


def enough(turns: Turns) -> bool:
    """Return whether so many turns, and returns, can be fitted."""
    return len(turns) >= FEWEST_TURNS and int(np.isfinite(turns.gap).sum()) >= FEWEST_RETURNS


def fit_think_time(trace: Trace, seed: int = 0) -> ThinkTime:
    """Fit the model to a trace with `enough` turns by maximum likelihood; the same trace and seed give the same model.

    Its size and penalty are chosen by the likelihood of the last quarter of the trace's time, given the quarters before.
    ``seed``: of the hidden units' first weights.
    """
    split_at = trace.duration * SELECTION_SHARE
    earlier, later = turns_of(trace, split_at), turns_of(trace, since=split_at)
    chosen = CANDIDATES[0]
    if len(earlier) >= FEWEST_TURNS and len(later) >= FEWEST_TURNS:
        fitted = _and_partly_known(earlier, seed)
        scored = [(log_likelihood(_fit(fitted, size, seed), later).mean(), size) for size in CANDIDATES]
        chosen = max(scored, key=lambda pair: float(pair[0]))[1]
    return _fit(_and_partly_known(turns_of(trace), seed), chosen, seed)


def log_likelihood(model: ThinkTime, turns: Turns) -> Floats:
    """Return each turn's log-likelihood, [n], nats: a density per second where it returned, a probability where not."""
    import torch

    outputs = torch.from_numpy(model.outputs(turns.features, turns.category))
    values: Floats = _log_likelihood(outputs, torch.from_numpy(turns.gap), torch.from_numpy(turns.window)).numpy()
    return values


def hide(turns: Turns, names: Sequence[str], rows: NDArray[np.bool_]) -> Turns:
    """Return the turns with some INPUTS not known at the chosen rows."""
    known = turns.features.copy()
    for column in (COLUMNS.index(column) for name in names for column in INPUTS[name]):
        known[rows, column] = 0.0 if COLUMNS[column].startswith("has_") else np.nan
    return replace(turns, features=known)


def _inputs_of(scalars: Floats, category: NDArray[np.str_], categories: tuple[str, ...]) -> Floats:
    """Return the model's inputs before they are standardised: the scalars, then one indicator per class; NaN if not known."""
    known = np.isin(category, categories)
    indicators = [np.where(known, category == name, np.nan)[:, None] for name in categories]
    return np.concatenate([scalars, *indicators], axis=1)


def _and_partly_known(turns: Turns, seed: int) -> Turns:
    """Return each turn as it is, and once more with one of UNKNOWN hidden, drawn at random."""
    drawn = np.random.default_rng(seed).integers(len(UNKNOWN), size=len(turns))
    partly = turns
    for index, names in enumerate(UNKNOWN):
        partly = hide(partly, names, drawn == index)
    return Turns(*(np.concatenate([vars(turns)[name], vars(partly)[name]]) for name in vars(turns)))


def _fit(turns: Turns, size: tuple[int, float], seed: int) -> ThinkTime:
    import torch

    names, counts = np.unique(turns.category, return_counts=True)
    categories = tuple(str(name) for name in names[(counts >= FEWEST_OF_CLASS) & (names != "")])
    inputs = _inputs_of(turns.features, turns.category, categories)
    known = np.isfinite(inputs)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, inputs, 0).sum(0) / count
    deviation = np.sqrt((np.where(known, inputs - mean, 0) ** 2).sum(0) / count)
    varies = deviation > 1e-6
    scale = np.where(varies, deviation, 1.0)
    x = torch.from_numpy(np.nan_to_num((inputs - mean) / scale))
    gap, window = torch.from_numpy(turns.gap), torch.from_numpy(turns.window)

    hidden, penalty = size
    generator = torch.Generator().manual_seed(seed)
    zeros = {"linear": (OUTPUTS, x.shape[1]), "outer": (OUTPUTS, hidden), "shift": (hidden,)}
    weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zeros.items()}
    weights["bias"] = torch.from_numpy(_start(turns))
    weights["inner"] = torch.randn((hidden, x.shape[1]), generator=generator, dtype=torch.float64) / math.sqrt(x.shape[1])
    # An input that never varies has no gradient: the weight that it starts with would act once it does.
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
        loss: torch.Tensor = penalty * squares - _log_likelihood(result, gap, window).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with one_thread():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    parameters = Parameters(**{name: weight.detach().numpy() for name, weight in weights.items()})
    return ThinkTime(categories, mean, scale, parameters)


def _log_likelihood(outputs: Any, gap: Any, window: Any) -> Any:
    """Return the log-likelihood of each turn, [n], from tensors: outputs [n, OUTPUTS], gap and window [n] seconds."""
    import torch
    from torch.nn.functional import logsigmoid

    returned = torch.isfinite(gap)
    # Zero would have no logarithm, and nothing of interest happens within a microsecond.
    time = torch.where(returned, gap, window).clamp(min=1e-6)
    log_sigma = outputs[:, 2].clamp(*LOG_SIGMA)
    z = (torch.log(time) - outputs[:, 1]) / torch.exp(log_sigma)
    log_density = -z * z / 2 - math.log(math.tau) / 2 - log_sigma - torch.log(time)
    log_survival = torch.special.log_ndtr(-z)
    log_p, log_not_p = logsigmoid(outputs[:, 0]), logsigmoid(-outputs[:, 0])
    return torch.where(returned, log_p + log_density, torch.logaddexp(log_not_p, log_p + log_survival))


def _start(turns: Turns) -> Floats:
    """Return the outputs to start from: as if all gaps had been seen."""
    log_gap = np.log(turns.gap[np.isfinite(turns.gap)])
    p = min(max(len(log_gap) / len(turns), 0.01), 0.99)
    return np.array([math.log(p / (1 - p)), log_gap.mean(), math.log(max(log_gap.std(), 0.1))])
