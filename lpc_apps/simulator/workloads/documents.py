"""Documents: several users ask a few questions about the same long text while it is popular.

On such traffic, curves learned elsewhere lost eight points of hit rate. Parameters are assumptions that follow publications on
document QA: texts of LooGLE and NarrativeQA have 5K to 100K tokens, cut here to fit a small cache; popularity follows Zipf's
law (Breslau et al., INFOCOM 1999: exponents of 0.6 to 0.8 for web pages).

- 1,000 documents of 1,000 to 16,000 tokens (lognormal, median 4,500, sigma 0.6) after one system prompt.
- A document becomes hot once or twice an hour. Its readers arrive after an exponential delay with mean 150 s; their number
  follows Zipf's law with exponent 0.8 and is at least one.
- A reader asks 1 to 6 questions (continues with probability 0.55) and thinks for 40 s (median, sigma 1). Replies have
  ShareGPT's lengths.
- Blocks of 128 tokens. **A third of the readers use an application that sends plain prompts without an id**: their turns
  cannot be linked.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import LATER_PROMPT, REPLY, lognormal, tokens_at
from lpc_apps.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 128
REQUESTS: Final = 5_000
SPAN_S: Final = 3_600.0
DOCUMENTS: Final = 1_000
SYSTEM_PROMPT: Final = 512
ZIPF: Final = 0.8
HOT_S: Final = 150.0
PREEMPTED: Final = 0.55
MAX_QUESTIONS: Final = 6
UNLINKED: Final = 1 / 3


def documents(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate readers of the same documents; the turns of a third of them cannot be linked by name."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    questions = 1.1 * requests
    read_documents(
        timeline, 0.0, SPAN_S * questions / REQUESTS, timeline.text(), questions, round(DOCUMENTS * requests / REQUESTS)
    )
    return timeline.workload("documents", requests)


def read_documents(timeline: Timeline, start: float, end: float, system: Prefix, questions: float, number: int) -> None:
    """Add about ``questions`` requests about ``number`` documents that become hot in [start, end)."""
    random = timeline.random
    popularity = np.arange(1, number + 1) ** -ZIPF
    mean_questions = (1 - PREEMPTED**MAX_QUESTIONS) / (1 - PREEMPTED)
    readers = np.maximum(popularity / popularity.sum() * (questions / mean_questions), 1)
    for expected in readers:
        tokens = SYSTEM_PROMPT + int(np.clip(lognormal(random, 4_500, 0.6, 1)[0], 1_000, 16_000))
        document = timeline.text(system, SYSTEM_PROMPT)
        bursts = start + (end - start) * random.random(random.integers(1, 3))
        for _ in range(max(int(random.poisson(expected)), 1)):
            turns = min(int(random.geometric(1 - PREEMPTED)), MAX_QUESTIONS)
            timeline.converse(
                float(random.choice(bursts) + random.exponential(HOT_S)),
                tokens_at(LATER_PROMPT, random.standard_normal(turns)).tolist(),
                tokens_at(REPLY, random.standard_normal(turns)).tolist(),
                lognormal(random, 40.0, 1.0, turns).tolist(),
                after=document,
                tokens=tokens,
                linked=bool(random.random() >= UNLINKED),
                max_tokens=24_000,
            )
