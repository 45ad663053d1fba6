"""Documents: several users ask about the same long text, each a few questions, while it is news.

The kind of traffic on which curves learnt elsewhere lost eight points (DESIGN). Parameters are assumptions, chosen as the
field describes retrieval and document QA: LooGLE's and NarrativeQA's texts have 5K to 100K tokens, here cut to what fits a
small cache; popularity by Zipf (Breslau et al., INFOCOM 1999: exponents of 0.6 to 0.8 for what people read).

- 1,000 documents, ln(tokens) normal with median 4,500, sigma 0.6, from 1,000 to 16,000; each behind one system prompt.
- A document becomes hot once or twice in the hour; then its readers come, exponentially fewer, mean 150 s. How many: by Zipf,
  exponent 0.8, at least one.
- A reader asks 1 to 6 questions (goes on with 0.55), replies as long as ShareGPT's, and thinks 40 s (median, sigma 1).
- Blocks of 128 tokens. **A third of the readers come through an application that sends plain prompts without an id**: their
  conversations cannot be linked.
"""

from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import LATER_PROMPT, REPLY, lognormal, tokens_at
from lpc.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 128
REQUESTS: Final = 5_000
SPAN_S: Final = 3_600.0
DOCUMENTS: Final = 1_000
SYSTEM_PROMPT: Final = 512
ZIPF: Final = 0.8
HOT_S: Final = 150.0
GOES_ON: Final = 0.55
MOST_QUESTIONS: Final = 6
UNLINKED: Final = 1 / 3


def documents(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Several users ask about the same documents while these are hot; a third of them cannot be linked by name."""
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
    mean_questions = (1 - GOES_ON**MOST_QUESTIONS) / (1 - GOES_ON)
    readers = np.maximum(popularity / popularity.sum() * (questions / mean_questions), 1)
    for expected in readers:
        tokens = SYSTEM_PROMPT + int(np.clip(lognormal(random, 4_500, 0.6, 1)[0], 1_000, 16_000))
        document = timeline.text(system, SYSTEM_PROMPT)
        bursts = start + (end - start) * random.random(random.integers(1, 3))
        for _ in range(max(int(random.poisson(expected)), 1)):
            asked = min(int(random.geometric(1 - GOES_ON)), MOST_QUESTIONS)
            timeline.converse(
                float(random.choice(bursts) + random.exponential(HOT_S)),
                tokens_at(LATER_PROMPT, random.standard_normal(asked)).tolist(),
                tokens_at(REPLY, random.standard_normal(asked)).tolist(),
                lognormal(random, 40.0, 1.0, asked).tolist(),
                after=document,
                tokens=tokens,
                linked=bool(random.random() >= UNLINKED),
                most_tokens=24_000,
            )
