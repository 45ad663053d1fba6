"""A hazard head: a small network from facts to the hazards of all intervals, trained incrementally every minute.

The logistic hazard model of Kvamme, Borgan and Scheel (2019), in numpy: two hidden layers, binary cross-entropy over the
intervals in which a turn was observed, Adam, decoupled weight decay. Each minute it makes one pass over the turns in memory,
because more passes overfit. An ensemble of members with different initial weights is averaged.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.facts import OF_TURN, WIDTH
from lpc.model.returns.hazards import INTERVALS, Floats

Floats32 = NDArray[np.float32]

MEMBERS: Final = 4
HIDDEN: Final = 48
BATCH: Final = 256
RATE: Final = 1e-3
DECAY: Final = 1.0
FIRST_BIAS: Final = -4.0
"""Initial log-odds of a hazard: 2% per interval."""
FIRST_PASSES: Final = 20
"""Number of passes in the first training, ..."""
FIRST_TURNS: Final = 100_000
"""... limited to this number of turns in all passes: half a second of one core."""
PIECE: Final = 40
"""Rows per matrix product. OpenBLAS starts threads above 262,144 multiplications, and 40 x 121 x 48 are fewer."""
MOST_WEIGHT: Final = 1e4
"""Bound of a saved weight: with larger ones the outputs could overflow."""
_NAMES: Final = ("w0", "b0", "w1", "b1", "w2", "b2")


class HazardHead:
    """The ensemble. Not thread-safe; read a :meth:`copy` while it is trained.

    All members are computed at once with stacked weights [MEMBERS, inputs, outputs]. Products have at most PIECE rows, so that
    BLAS uses the calling thread only: its own threads would compete with inference for cores.
    """

    def __init__(self, seed: int = 0) -> None:
        self._draws = [np.random.default_rng((seed, member)) for member in range(MEMBERS)]
        first = [_first_weights(draw) for draw in self._draws]
        self._weights: list[Floats32] = [np.stack(layer) for layer in zip(*first, strict=True)]
        self._mean = [np.zeros_like(w) for w in self._weights]
        self._square = [np.zeros_like(w) for w in self._weights]
        self._steps = 0
        self.taught = False

    def hazard(self, inputs: Floats32) -> Floats:
        """Return hazards [n, INTERVALS] for inputs [n, WIDTH]."""
        parts = [inputs[start : start + PIECE] for start in range(0, len(inputs), PIECE)]
        found = [(1.0 / (1.0 + np.exp(-self._forward(part)[2].astype(np.float64)))).mean(axis=0) for part in parts]
        return np.concatenate(found) if found else np.zeros((0, INTERVALS))

    def teach(self, inputs: Floats32, interval: NDArray[np.int64], came: NDArray[np.bool_], weight: Floats) -> None:
        """Make one pass over turns (FIRST_PASSES the first time); arguments as in `counts.Counts`, inputs [n, WIDTH]."""
        watched = (np.arange(INTERVALS)[None, :] < interval[:, None]).astype(np.float32)
        target = np.zeros_like(watched)
        target[np.flatnonzero(came), interval[came]] = 1.0
        watched += target
        importance = weight.astype(np.float32)
        passes = 1 if self.taught else max(1, min(FIRST_PASSES, FIRST_TURNS // max(len(inputs), 1)))
        for _ in range(passes):
            orders = np.stack([draw.permutation(len(inputs)) for draw in self._draws])
            for start in range(0, len(inputs), BATCH):
                some = orders[:, start : start + BATCH]
                self._step(inputs[some], target[some], watched[some], importance[some])
        self.taught = True

    def copy(self) -> "HazardHead":
        """Return a read-only copy of the weights, which further training does not change."""
        other = HazardHead.__new__(HazardHead)
        other._weights = [weights.copy() for weights in self._weights]
        other.taught = self.taught
        return other

    def state(self) -> dict[str, Floats32]:
        """Return copies of the weights by name."""
        return {f"head.{name}": weights.copy() for name, weights in zip(_NAMES, self._weights, strict=True)}

    def restore(self, state: dict[str, Floats32]) -> None:
        """Load weights. Raises KeyError, ValueError: they do not fit this head; nothing has changed."""
        found = [np.array(state[f"head.{name}"], np.float32) for name in _NAMES]
        if [w.shape for w in found] != [w.shape for w in self._weights] or not all(
            (np.abs(w) <= MOST_WEIGHT).all() for w in found
        ):
            raise ValueError("weights of another head")
        self._weights = found
        self.taught = True

    def _forward(self, inputs: Floats32) -> tuple[Floats32, Floats32, Floats32]:
        """Return both hidden layers and the log-odds, [MEMBERS, n, …] each, of inputs [n, WIDTH] or [MEMBERS, n, WIDTH]."""
        w0, b0, w1, b1, w2, b2 = self._weights
        first = np.maximum(inputs @ w0 + b0, 0)
        second = np.maximum(first @ w1 + b1, 0)
        return first, second, second @ w2 + b2

    def _step(self, inputs: Floats32, target: Floats32, watched: Floats32, importance: Floats32) -> None:
        """Make one step of gradient descent. All arguments are [MEMBERS, n, …]."""
        gradients = [np.zeros_like(w) for w in self._weights]
        share = importance / np.maximum(importance.sum(axis=1, keepdims=True), 1e-6)
        for start in range(0, inputs.shape[1], PIECE):
            piece = (slice(None), slice(start, start + PIECE))
            first, second, log_odds = self._forward(inputs[piece])
            error = (1.0 / (1.0 + np.exp(-log_odds)) - target[piece]) * watched[piece] * share[piece][:, :, None]
            of_second = (error @ self._weights[4].swapaxes(1, 2)) * (second > 0)
            of_first = (of_second @ self._weights[2].swapaxes(1, 2)) * (first > 0)
            layers = ((inputs[piece], of_first), (first, of_second), (second, error))
            for layer, (before, after) in enumerate(layers):
                gradients[2 * layer] += before.swapaxes(1, 2) @ after
                gradients[2 * layer + 1] += after.sum(axis=1, keepdims=True)
        self._steps += 1
        for index, (weights, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            mean, square = self._mean[index], self._square[index]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            if index % 2 == 0:
                weights *= 1.0 - RATE * DECAY
            corrected = np.sqrt(square / (1.0 - 0.999**self._steps)) + 1e-8
            weights -= RATE / (1.0 - 0.9**self._steps) * mean / corrected


def _first_weights(draw: np.random.Generator) -> list[Floats32]:
    """Return one member's initial weights and biases, layer by layer."""

    def weights(rows: int, columns: int, scale: float) -> Floats32:
        return draw.normal(0.0, scale, (rows, columns)).astype(np.float32)

    of_user = np.zeros((WIDTH - OF_TURN, HIDDEN), np.float32)  # nothing is known of users before they differ
    return [
        np.concatenate([weights(OF_TURN, HIDDEN, 12**-0.5), of_user]),
        np.zeros((1, HIDDEN), np.float32),
        weights(HIDDEN, HIDDEN, HIDDEN**-0.5),
        np.zeros((1, HIDDEN), np.float32),
        weights(HIDDEN, INTERVALS, 0.1 * HIDDEN**-0.5),
        np.full((1, INTERVALS), FIRST_BIAS, np.float32),
    ]
