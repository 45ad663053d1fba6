"""An hour of chat in the shape of one real service, scaled down. `lpc demo` replays it if the user has no log.

The shape is that of the Mooncake conversation trace (kvcache-ai/Mooncake, FAST'25; 12,031 requests of one hour), as tables.
The share that continues depends on the first prompt's length, later on the turn and on whether a long text was pasted. Tokens
of first prompts, of later prompts and of replies are drawn from quantiles. Think times are lognormal and correlated within a
user. Most conversations end after one turn, and first prompts are long. No request of the trace is in it.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 512
REQUESTS: Final = 4_500
CONVERSATION_EVERY_S: Final = 1.1
"""Mean of a Poisson process. The trace has one every 0.44 s."""
FIRST_GOES_ON: Final = ((1_000, 0.0), (4_000, 0.45), (12_000, 0.34), (1_000_000, 0.25))
"""(tokens, share): share of the conversations that continue after a first prompt of fewer tokens."""
PREEMPTED: Final = (0.54, 0.63, 0.68, 0.70, 0.75, 0.80, 0.85)
"""Probabilities after turn 2, 3, ...; the last one holds for all further turns."""
PASTED: Final = 1_000
PASTED_GOES_ON: Final = 0.1
"""Probability after a later turn that adds at least PASTED tokens."""
THINK_TIME_S: Final = 115.0
"""Median from the end of a turn to the next; the trace's arrivals are 123 s apart."""
SIGMA: Final = 1.0
"""Standard deviation of ln(think time); a third of the variance is between users."""
QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FIRST_PROMPT: Final = (600, 898, 1_459, 5_933, 14_283, 38_154, 80_000)
LATER_PROMPT: Final = (5, 10, 20, 60, 400, 7_000, 30_000)
"""Tokens at QUANTILES. A turn adds the previous reply and this to the prompt."""
REPLY: Final = (1, 10, 156, 350, 472, 698, 1_500)
MAX_TURNS: Final = 40


def production(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate an hour of chat. Raises ValueError if the parameters yield fewer requests."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    at = 0.0
    for _ in range(requests):
        at += random.exponential(CONVERSATION_EVERY_S)
        prompts = [_draw(random, FIRST_PROMPT)]
        while len(prompts) < MAX_TURNS and random.random() < _goes_on(len(prompts), prompts[-1]):
            prompts.append(_draw(random, LATER_PROMPT))
        replies = [_draw(random, REPLY) for _ in prompts]
        z = np.sqrt(1 / 3) * random.standard_normal() + np.sqrt(2 / 3) * random.standard_normal(len(prompts))
        timeline.converse(at, prompts, replies, (THINK_TIME_S * np.exp(SIGMA * z)).tolist())
    return timeline.workload("production", requests)


def _goes_on(turn: int, prompt: int) -> float:
    if turn == 1:
        return next(share for tokens, share in FIRST_GOES_ON if prompt < tokens)
    return PASTED_GOES_ON if prompt >= PASTED else PREEMPTED[min(turn - 2, len(PREEMPTED) - 1)]


def _draw(random: np.random.Generator, tokens: tuple[int, ...]) -> int:
    return round(float(np.exp(np.interp(random.random(), QUANTILES, np.log(tokens)))))
