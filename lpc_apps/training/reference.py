"""The reference for exported graphs: the same computation in NumPy and fp32.

It shares nothing with the graph but the weights; a test compares it with `transformers.BertModel` in PyTorch.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc_apps.training.encoders import Encoder
from lpc_apps.training.encoders.encoder import WORDS
from lpc_apps.training.head_file import HeadFile

Array = NDArray[np.float32]

# erf(x) of a positive x, Abramowitz and Stegun 7.1.26: off by at most 1.5e-7.
_SLOPE: Final = 0.3275911
_COEFFICIENTS: Final = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def embedding(encoder: Encoder, input_ids: list[int]) -> Array:
    """Return the embedding of one input without padding, [width], of length 1; of length 0 without any known word."""
    weights, heads = encoder.weights, encoder.heads

    def linear(values: Array, name: str) -> Array:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalised(values: Array, name: str) -> Array:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + encoder.epsilon)
        return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"], np.float32)

    def split(values: Array) -> Array:
        return values.reshape(len(values), heads, -1).transpose(1, 0, 2)

    tokens = len(input_ids)
    hidden = np.asarray(weights[WORDS][input_ids])
    if encoder.layers:
        hidden = normalised(hidden + encoder.positions[:tokens], "embeddings.LayerNorm")
    for number in range(encoder.layers):
        layer = f"encoder.layer.{number}"
        query, key, value = (split(linear(hidden, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(query.shape[-1]))
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        attention = (odds / odds.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(tokens, -1)
        hidden = normalised(
            hidden + linear(attention, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm"
        )
        wide = _gelu(linear(hidden, f"{layer}.intermediate.dense"))
        hidden = normalised(hidden + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    total = hidden.sum(0)
    return np.asarray(total / max(np.linalg.norm(total), np.float32(1e-12)), np.float32)


def probability(head: HeadFile, vector: Array, scalars: tuple[float, ...]) -> float:
    """Return the probability of one conversation from its embedding, [width], and scalars."""
    parameters = head.parameters
    standardised = (np.log1p(np.array(scalars, np.float32)) - parameters["scalar_mean"]) / parameters["scalar_scale"]
    values = np.concatenate((vector, standardised))
    for name in ("hidden.0", "hidden.2"):
        values = np.maximum(parameters[f"{name}.weight"] @ values + parameters[f"{name}.bias"], 0)
    log_odds = parameters["output.weight"] @ values + parameters["output.bias"]
    return float(1 / (1 + np.exp(-log_odds[0])))


def _gelu(values: Array) -> Array:
    """Return x · Φ(x), Φ the standard normal distribution."""
    size = np.abs(values) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + np.float32(_SLOPE) * size)
    polynomial = np.zeros_like(t)
    for coefficient in _COEFFICIENTS:
        polynomial = (polynomial + np.float32(coefficient)) * t
    erf = np.copysign(1 - polynomial * np.exp(-size * size), values)
    return np.asarray(0.5 * values * (1 + erf), np.float32)
