"""Chats of twelve applications on one engine, with predictions that are right in most cases.

Every conversation of an application begins with its system prompt. These blocks are worth as much as the likeliest of the
conversations that hold them (LPC 3.5, pooling by the maximum). A rule that gives them the latest request's probability evicts
a system prompt when one conversation ends, and loses the hits of all others.

- Twelve applications with system prompts of 960 tokens, more than the conversations themselves: prompts of 40 tokens (median,
  sigma 0.8), replies of 120 (median, sigma 0.7). Shares of the conversations follow Zipf's law with exponent 1, so the rarest
  application has one or two active conversations.
- After each turn four conversations of five continue. Think times are exponential, with a mean of 100 s. 60 conversations are
  active at a time; with the system prompts they fill 3% of the working set.
- **Predictions.** Each turn has a continuation probability. Its evidence is normal, with a mean of 1.2 standard deviations on
  the right side: on the wrong side for one turn in nine. The probability follows from the evidence, so it is calibrated.

Parameters are assumptions; think times are the LPC paper's. Blocks of 16 tokens.
"""

from typing import Final

import numpy as np

from lpc.model.probability import expit, logit
from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import BLOCK_TOKENS, THINK_TIME_S, lognormal, poisson_times
from lpc_apps.simulator.workloads.timeline import Timeline

REQUESTS: Final = 5_000
APPLICATIONS: Final = 12
SYSTEM_PROMPT: Final = 60 * BLOCK_TOKENS
ACTIVE: Final = 60
CONTINUES: Final = 0.8
EVIDENCE: Final = 1.2
"""Mean of the evidence, in standard deviations, if the conversation continues; with the other sign if not."""


def applications(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate chats of applications with a system prompt each, and a prediction for each turn."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    systems = [timeline.text() for _ in range(APPLICATIONS)]
    shares = 1.0 / np.arange(1, APPLICATIONS + 1)
    shares /= shares.sum()

    def predicted(goes_on: bool) -> float:
        evidence = random.normal(EVIDENCE if goes_on else -EVIDENCE)
        return expit(logit(CONTINUES) + 2.0 * EVIDENCE * evidence)

    turns = 1.0 / (1.0 - CONTINUES)
    every = turns * THINK_TIME_S / ACTIVE
    # Twice the time that the requests need in the steady state: before it, fewer conversations are active.
    for at in poisson_times(random, 0.0, 2.0 * requests * every / turns, every):
        count = int(random.geometric(1.0 - CONTINUES))
        timeline.converse(
            at,
            np.maximum(lognormal(random, 40, 0.8, count), 1).astype(int).tolist(),
            np.maximum(lognormal(random, 120, 0.7, count), 1).astype(int).tolist(),
            random.exponential(THINK_TIME_S, count).tolist(),
            after=systems[int(random.choice(APPLICATIONS, p=shares))],
            tokens=SYSTEM_PROMPT,
            predicted=predicted,
        )
    return timeline.workload("applications", requests)
