"""Chat: conversations and replies as long as ShareGPT's, and three laws of the time until a user is back.

Conversations arrive as a Poisson process; all follow one system prompt of 192 tokens (an assumption: products have one).
Blocks of 16 tokens. Every conversation has a name, and ends where its context would pass 8,192 tokens, so that 1% of the
working set holds a few. Some 150 conversations are active at a time (the LPC paper, NeurIPS 2025, has 200), more under the
bimodal law.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.lengths import Floats, Gaps, draw_lengths, lognormal, poisson_times
from lpc.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 16
SYSTEM_PROMPT: Final = 192
REQUESTS: Final = 8_000
THINK_TIME_S: Final = 100.0
"""Mean; the LPC paper's."""
SIGMA: Final = 1.3
"""Standard deviation of ln(think time); wider than the Mooncake conversation trace's within its hour (1.0, median 123 s)."""
MOST_TOKENS: Final = 8_192
READING_S: Final = 25.0
AWAY_S: Final = 3600.0
AWAY_SHARE: Final = 0.25
MEAN_TURNS: Final = 5.4
"""Of a conversation, about, under the limit of its context."""


def exponential(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Think times exponential, mean 100 s: memoryless, so that waiting tells nothing and only who goes on can be known."""
    return _chat("chat-exponential", seed, requests, 0.75, lambda random, n: random.exponential(THINK_TIME_S, n))


def heavy_tailed(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Think times lognormal, mean 100 s, sigma 1.3: most are back within half a minute, few after ten."""
    median = THINK_TIME_S / float(np.exp(SIGMA**2 / 2))
    return _chat("chat-lognormal", seed, requests, 0.75, lambda random, n: lognormal(random, median, SIGMA, n))


def bimodal(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Three of four times the user reads (exponential, mean 25 s), else is away for about an hour (lognormal, sigma 0.3).

    Runs for some three hours, so that who was away does come back. Within what a small cache holds, who is gone after two
    minutes will not be back; in a large one he will be.
    """

    def gaps(random: np.random.Generator, n: int) -> Floats:
        away = random.random(n) < AWAY_SHARE
        return np.where(away, lognormal(random, AWAY_S, 0.3, n), random.exponential(READING_S, n))

    return _chat("chat-bimodal", seed, requests, 1.0, gaps)


def _chat(name: str, seed: int, requests: int, seconds: float, law: Callable[[np.random.Generator, int], Floats]) -> Workload:
    """Return a workload of one request per ``seconds`` on average, once as many conversations end as begin."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    system = timeline.text()
    # Twice the time the requests need in the long run: until as many end as begin there are fewer.
    converse(timeline, 0.0, 2.0 * requests * seconds, seconds * MEAN_TURNS, lambda n: law(timeline.random, n), system)
    return timeline.workload(name, requests)


def converse(
    timeline: Timeline,
    start: float,
    end: float,
    every: float,
    gaps: Gaps,
    system: Prefix,
    *,
    goes_on: tuple[float, ...] | None = None,
    category: str = "",
) -> None:
    """Add conversations that begin in [start, end), one ``every`` seconds on average, lengths as ShareGPT's.

    Args:
        gaps: draws think times, seconds.
        system: the text whose first SYSTEM_PROMPT tokens stand before all.
        goes_on: the share that goes on after turn 1, 2, ...; default: ShareGPT's.
        category: of every request.
    """
    random = timeline.random
    for at in poisson_times(random, start, end, every):
        prompts, replies = draw_lengths(random) if goes_on is None else draw_lengths(random, goes_on)
        timeline.converse(
            at,
            prompts,
            replies,
            gaps(len(prompts)).tolist(),
            after=system,
            tokens=SYSTEM_PROMPT,
            category=category,
            most_tokens=MOST_TOKENS,
        )
