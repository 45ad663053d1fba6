"""A hazard head: a small network from facts to the hazards of all intervals, taught a little every minute.

The logistic hazard model of Kvamme, Borgan and Scheel (2019), in numpy: two hidden layers, binary cross-entropy over the
intervals that a turn was watched through, Adam, decoupled weight decay. Each minute it goes once over the turns remembered,
from where it stood: more passes learn these turns by heart. A few members with different starts are averaged.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.facts import WIDTH
from lpc.model.returns.hazards import INTERVALS, Floats

Floats32 = NDArray[np.float32]

MEMBERS: Final = 4
HIDDEN: Final = 48
BATCH: Final = 256
RATE: Final = 1e-3
DECAY: Final = 1.0
FIRST_BIAS: Final = -4.0
"""Log-odds of a hazard before anything is learnt: 2% per interval."""
FIRST_PASSES: Final = 20
"""Over the turns remembered, the first time."""
_NAMES: Final = ("w0", "b0", "w1", "b1", "w2", "b2")


class HazardHead:
    """The members. Not thread-safe; :meth:`copy` is for those who read while it is taught."""

    def __init__(self, seed: int = 0) -> None:
        self._members = [_Network(np.random.default_rng((seed, member))) for member in range(MEMBERS)]
        self.taught = False

    def hazard(self, inputs: Floats32) -> Floats:
        """Return hazards [n, INTERVALS] for inputs [n, WIDTH]."""
        total = np.zeros((len(inputs), INTERVALS))
        for network in self._members:
            total += 1.0 / (1.0 + np.exp(-network.forward(inputs)[2].astype(np.float64)))
        return total / MEMBERS

    def teach(self, inputs: Floats32, interval: NDArray[np.int64], came: NDArray[np.bool_], weight: Floats) -> None:
        """Go once over turns (the first time FIRST_PASSES times); arguments as for `counts.Counts`, inputs [n, WIDTH]."""
        watched = (np.arange(INTERVALS)[None, :] < interval[:, None]).astype(np.float32)
        target = np.zeros_like(watched)
        target[np.flatnonzero(came), interval[came]] = 1.0
        watched += target
        importance = weight.astype(np.float32)
        for _ in range(1 if self.taught else FIRST_PASSES):
            for network in self._members:
                order = network.draw.permutation(len(inputs))
                for start in range(0, len(order), BATCH):
                    some = order[start : start + BATCH]
                    network.step(inputs[some], target[some], watched[some], importance[some])
        self.taught = True

    def copy(self) -> "HazardHead":
        """Return a head with the same weights, which no teaching of this one changes. It is for reading only."""
        other = HazardHead.__new__(HazardHead)
        other._members = [network.frozen() for network in self._members]
        other.taught = self.taught
        return other

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights by name, to be kept."""
        return {
            f"head{number}.{name}": weights
            for number, network in enumerate(self._members)
            for name, weights in zip(_NAMES, network.weights, strict=True)
        }

    def restore(self, state: dict[str, NDArray[np.float32]]) -> None:
        """Take kept weights. Raises KeyError, ValueError: they are not of this head; nothing has changed then."""
        found = []
        for number, network in enumerate(self._members):
            weights = [np.asarray(state[f"head{number}.{name}"], np.float32) for name in _NAMES]
            if [w.shape for w in weights] != [w.shape for w in network.weights] or not all(
                np.isfinite(w).all() for w in weights
            ):
                raise ValueError("weights of another head")
            found.append(weights)
        for network, weights in zip(self._members, found, strict=True):
            network.weights = weights
        self.taught = True


class _Network:
    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw

        def weights(rows: int, columns: int, scale: float) -> Floats32:
            return draw.normal(0.0, scale, (rows, columns)).astype(np.float32)

        self.weights: list[Floats32] = [
            weights(WIDTH, HIDDEN, 12**-0.5),
            np.zeros(HIDDEN, np.float32),
            weights(HIDDEN, HIDDEN, HIDDEN**-0.5),
            np.zeros(HIDDEN, np.float32),
            weights(HIDDEN, INTERVALS, 0.1 * HIDDEN**-0.5),
            np.full(INTERVALS, FIRST_BIAS, np.float32),
        ]
        self._mean = [np.zeros_like(w) for w in self.weights]
        self._square = [np.zeros_like(w) for w in self.weights]
        self._steps = 0

    def forward(self, inputs: Floats32) -> tuple[Floats32, Floats32, Floats32]:
        w0, b0, w1, b1, w2, b2 = self.weights
        first = np.maximum(inputs @ w0 + b0, 0)
        second = np.maximum(first @ w1 + b1, 0)
        return first, second, second @ w2 + b2

    def step(self, inputs: Floats32, target: Floats32, watched: Floats32, importance: Floats32) -> None:
        first, second, log_odds = self.forward(inputs)
        error = (1.0 / (1.0 + np.exp(-log_odds)) - target) * watched * importance[:, None]
        error /= max(float(importance.sum()), 1e-6)
        of_second = (error @ self.weights[4].T) * (second > 0)
        of_first = (of_second @ self.weights[2].T) * (first > 0)
        gradients = (
            *(inputs.T @ of_first, of_first.sum(axis=0)),
            *(first.T @ of_second, of_second.sum(axis=0)),
            *(second.T @ error, error.sum(axis=0)),
        )
        self._steps += 1
        for place, gradient in enumerate(gradients):
            weights = self.weights[place]
            mean, square = self._mean[place], self._square[place]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            if weights.ndim == 2:
                weights *= 1.0 - RATE * DECAY
            corrected = np.sqrt(square / (1.0 - 0.999**self._steps)) + 1e-8
            weights -= RATE / (1.0 - 0.9**self._steps) * mean / corrected

    def frozen(self) -> "_Network":
        other = _Network.__new__(_Network)
        other.weights = [weights.copy() for weights in self.weights]
        return other
