"""A fitted think-time model: what it predicts from, its file. `lpc.training.think_time` says what it means and fits it.

It needs numpy alone.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpc.errors import LpcError
from lpc.files import replacing
from lpc.model.probability import P_MIN

FORMAT: Final = "lpc-think-time-1"
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
    "sin_hour",
    "cos_hour",
)
LAWS: Final = {"exponential": 2, "lognormal": 3}
"""Outputs of a model by the law of its gaps: logit P and ln(rate); logit P, mu and ln(sigma)."""
LOG_SIGMA: Final = (-3.0, 2.0)
"""Bounds of ln(sigma)."""

Floats = NDArray[np.float64]
Law = Literal["exponential", "lognormal"]


class ThinkTimeError(LpcError):
    """A think-time model cannot be fitted, read or written. The message says why and what to do."""


class Prediction(NamedTuple):
    """What is expected after each turn, arrays of one shape.

    Attributes:
        p_continue: probability that the conversation has a further turn.
        log_mean: mean of ln(seconds until that turn arrives, from this one's arrival), given that it comes.
        log_sigma: standard deviation of the same.
    """

    p_continue: Floats
    log_mean: Floats
    log_sigma: Floats

    def within(self, horizon: float) -> Floats:
        """Return the probability that the next turn arrives within ``horizon`` seconds."""
        return self.p_continue * normal_cdf((math.log(horizon) - self.log_mean) / self.log_sigma)


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
        categories: the classes it tells apart; another one, and none, counts as not known.
        mean, scale: of the inputs, [i]: the scalars, then one indicator per class.
        parameters: from standardised inputs to the outputs of its law.
        law: of the gaps. Only a lognormal can be used for predictions; the exponential ones are for comparison.
        metadata: what it was fitted on and how.
    """

    categories: tuple[str, ...]
    mean: Floats
    scale: Floats
    parameters: Parameters
    law: Law
    metadata: dict[str, Any]

    def predict(
        self,
        turn: ArrayLike,
        *,
        input_tokens: ArrayLike = math.nan,
        new_tokens: ArrayLike = math.nan,
        output_tokens: ArrayLike = math.nan,
        last_gap: ArrayLike = math.nan,
        mean_log_gap: ArrayLike = math.nan,
        hour: ArrayLike = math.nan,
        category: Sequence[str] | NDArray[np.str_] | str = "",
    ) -> Prediction:
        """Predict what follows each turn; arguments are broadcast to one dimension, NaN stands for "not known".

        Args:
            turn: its number in the conversation, from 1.
            input_tokens, output_tokens: of the prompt with its history, and of the reply.
            new_tokens: of the prompt less the prompt and reply of the turn before, at least 0; none at turn 1.
            last_gap: seconds between the arrivals of the turn before and of this one; none at turn 1.
            mean_log_gap: mean of ln(gap) over all gaps of the conversation so far.
            hour: of the day at the turn's arrival, UTC, in [0, 24).
            category: the request's class.
        """
        columns = (turn, input_tokens, new_tokens, output_tokens, last_gap, mean_log_gap, hour)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, np.float64)) for c in columns), np.atleast_1d(category))
        return self.predict_features(features(*arrays[:-1]), arrays[-1])

    def predict_features(self, scalars: Floats, category: NDArray[np.str_]) -> Prediction:
        """Predict from columns as `features` makes them, [n, len(COLUMNS)], and classes [n]."""
        if self.law != "lognormal":
            raise ThinkTimeError(f"a model with {self.law} gaps is for comparison, not for predictions")
        outputs = self.outputs(scalars, category)
        p = np.clip(1 / (1 + np.exp(-np.clip(outputs[:, 0], -50, 50))), P_MIN, 1 - P_MIN)
        return Prediction(p, outputs[:, 1], np.exp(np.clip(outputs[:, 2], *LOG_SIGMA)))

    def outputs(self, scalars: Floats, category: NDArray[np.str_]) -> Floats:
        """Return the raw outputs of the law, [n, o]."""
        return self.parameters(self._standardised(scalars, category))

    def _standardised(self, scalars: Floats, category: NDArray[np.str_]) -> Floats:
        standardised = (inputs_of(scalars, category, self.categories) - self.mean) / self.scale
        return np.nan_to_num(standardised)  # what is not known is taken as the mean

    def to_json(self) -> str:
        """Return the text of the model's file: the same for the same model."""
        content = {
            "format": FORMAT,
            "law": self.law,
            "scalars": COLUMNS,
            "categories": self.categories,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "parameters": {name: value.tolist() for name, value in vars(self.parameters).items()},
            "metadata": self.metadata,
        }
        return json.dumps(content, indent=1) + "\n"

    def save(self, path: Path) -> None:
        """Write the model as JSON, whole or not at all. Raises ThinkTimeError when it cannot be written."""
        try:
            with replacing(path) as partial:
                partial.write_text(self.to_json(), "utf-8")
        except OSError as error:
            raise ThinkTimeError(f"cannot write {path} ({error.strerror}): name another file") from error

    @classmethod
    def load(cls, path: Path) -> "ThinkTime":
        """Read a model. Raises ThinkTimeError when the file is missing or is none of this format."""
        advice = "fit one with `lpc train-time` from a log with time stamps"
        try:
            content = json.loads(path.read_text("utf-8"))
        except FileNotFoundError as error:
            raise ThinkTimeError(f"no think-time model at {path}: {advice}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ThinkTimeError(f"{path} is not a readable think-time model: {error}; {advice}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ThinkTimeError(f"{path} is not a think-time model of format {FORMAT}: {advice}")
        try:
            return _read(content)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ThinkTimeError(f"{path} is a damaged think-time model ({type(error).__name__}: {error}): {advice}") from error


def features(
    turn: Floats,
    input_tokens: Floats,
    new_tokens: Floats,
    output_tokens: Floats,
    last_gap: Floats,
    mean_log_gap: Floats,
    hour: Floats,
) -> Floats:
    """Return the model's inputs but the classes, [n, len(COLUMNS)], from columns [n] in the units of `ThinkTime.predict`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = [
            np.log(np.maximum(turn, 1)),
            np.log1p(input_tokens),
            np.log1p(new_tokens),
            np.log1p(output_tokens),
            np.log(last_gap),
            mean_log_gap,
            *(np.isfinite(known) for known in (input_tokens, new_tokens, output_tokens, last_gap)),
            np.sin(hour * math.tau / 24),
            np.cos(hour * math.tau / 24),
        ]
    stacked = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    stacked[~np.isfinite(stacked)] = np.nan
    return stacked


def inputs_of(scalars: Floats, category: NDArray[np.str_], categories: tuple[str, ...]) -> Floats:
    """Return the model's inputs before they are standardised: the scalars, then one indicator per class; NaN if not known."""
    known = np.isin(category, categories)
    indicators = [np.where(known, category == name, np.nan)[:, None] for name in categories]
    return np.concatenate([scalars, *indicators], axis=1)


def normal_cdf(z: Floats) -> Floats:
    """Return the standard normal's distribution function of [n]; by hand, since who predicts may lack scipy and torch."""
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in z.tolist()])


def _read(content: dict[str, Any]) -> ThinkTime:
    if tuple(content["scalars"]) != COLUMNS or content["law"] != "lognormal" or not isinstance(content["metadata"], dict):
        raise ValueError("other inputs or another law than this version's")
    categories = tuple(content["categories"])
    if not all(isinstance(name, str) for name in categories):
        raise TypeError("a category is not text")
    arrays = {name: np.array(value, np.float64) for name, value in content["parameters"].items()}
    mean, scale = np.array(content["mean"], np.float64), np.array(content["scale"], np.float64)
    inputs, outputs, hidden = len(COLUMNS) + len(categories), LAWS["lognormal"], len(arrays["shift"])
    arrays["outer"] = arrays["outer"].reshape(outputs, -1)
    arrays["inner"] = arrays["inner"].reshape(-1, inputs)  # an empty list has lost its other dimension
    parameters = Parameters(**arrays)
    shapes = {
        "bias": (outputs,),
        "linear": (outputs, inputs),
        "outer": (outputs, hidden),
        "inner": (hidden, inputs),
        "shift": (hidden,),
    }
    if (
        any(arrays[name].shape != shape for name, shape in shapes.items())
        or mean.shape != (inputs,)
        or scale.shape != mean.shape
    ):
        raise ValueError("an array has the wrong shape")
    if not all(np.isfinite(array).all() for array in (mean, scale, *arrays.values())) or not (scale > 0).all():
        raise ValueError("a number is not finite, or a scale not positive")
    return ThinkTime(categories, mean, scale, parameters, "lognormal", content["metadata"])
