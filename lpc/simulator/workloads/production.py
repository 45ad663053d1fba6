"""An hour of chat as one real service sees it, in small: what `lpc demo` replays where no log is at hand.

The shape is that of the Mooncake conversation trace (kvcache-ai/Mooncake, FAST'25; 12,031 requests of one hour), as tables: the
share that goes on after the first turn by its length, and after later ones by their number and by whether something long was
pasted; quantiles of the first prompt's tokens, of what a turn adds and of replies; think times lognormal, those of one user
alike. Most conversations are over after one turn, and what is asked first is long. Drawn from the tables: no request of
the trace is in it.

Not one of `WORKLOADS`, which are made to refute us.
"""

from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 512
REQUESTS: Final = 4_500
CONVERSATION_EVERY_S: Final = 1.1
"""Mean; a Poisson process. The trace has one every 0.44 s."""
FIRST_GOES_ON: Final = ((1_000, 0.0), (4_000, 0.45), (12_000, 0.34), (1_000_000, 0.25))
"""Share of conversations that go on after turn 1, by the tokens that it has fewer than."""
GOES_ON: Final = (0.54, 0.63, 0.68, 0.70, 0.75, 0.80, 0.85)
"""After turn 2, 3, ...; the last for all further ones."""
PASTED: Final = 1_000
PASTED_GOES_ON: Final = 0.1
"""After a later turn that adds so many tokens, whatever its number."""
THINK_TIME_S: Final = 115.0
"""Median from the end of a turn to the next; the trace's arrivals are 123 s apart."""
SIGMA: Final = 1.0
"""Standard deviation of ln(think time); a third of the variance lies between users."""
PLACES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FIRST_PROMPT: Final = (600, 898, 1_459, 5_933, 14_283, 38_154, 80_000)
LATER_PROMPT: Final = (5, 10, 20, 60, 400, 7_000, 30_000)
"""Tokens at the quantiles PLACES. What a turn adds to the prompt is the reply before and this."""
REPLY: Final = (1, 10, 156, 350, 472, 698, 1_500)
MOST_TURNS: Final = 40


def production(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Return the workload. Raises ValueError if the parameters do not give so many requests."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    at = 0.0
    for _ in range(requests):
        at += random.exponential(CONVERSATION_EVERY_S)
        prompts = [_drawn(random, FIRST_PROMPT)]
        while len(prompts) < MOST_TURNS and random.random() < _goes_on(len(prompts), prompts[-1]):
            prompts.append(_drawn(random, LATER_PROMPT))
        replies = [_drawn(random, REPLY) for _ in prompts]
        z = np.sqrt(1 / 3) * random.standard_normal() + np.sqrt(2 / 3) * random.standard_normal(len(prompts))
        timeline.converse(at, prompts, replies, (THINK_TIME_S * np.exp(SIGMA * z)).tolist())
    return timeline.workload("production", requests)


def _goes_on(turn: int, prompt: int) -> float:
    if turn == 1:
        return next(share for tokens, share in FIRST_GOES_ON if prompt < tokens)
    return PASTED_GOES_ON if prompt >= PASTED else GOES_ON[min(turn - 2, len(GOES_ON) - 1)]


def _drawn(random: np.random.Generator, quantiles: tuple[int, ...]) -> int:
    return round(float(np.exp(np.interp(random.random(), PLACES, np.log(quantiles)))))
