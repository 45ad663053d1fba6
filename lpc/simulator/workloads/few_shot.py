"""Few-shot API traffic: applications, each with its own long instructions and examples, and one short input per request.

No request is ever continued: every hit is on a prefix that others share, so a forecast of *conversations* knows nothing here,
and "this conversation is over" is true of all and wrong of the blocks. Parameters are assumptions; the shape is that of the
shared prompts in Preble (ICLR 2025) and of the API classes in KVCache Cache in the Wild (ATC 2025): single-turn, reuse across
users.

- 240 applications, instructions of 1,800 tokens (median, sigma 0.7; 300 to 9,000), rates by Zipf, exponent 1, four requests a
  second in all; inputs as ShareGPT's first prompts, replies of 60 tokens (median, sigma 0.8). Blocks of 32 tokens.
- One in four calls by the clock: all its requests of a period (60 to 900 s) come within seconds.
- One in five is deployed again at some time: from then on its instructions differ from their middle on.
- **None of it has a name**: each request is a conversation of its own.
"""

from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import FIRST_PROMPT, lognormal, poisson_times, tokens_at
from lpc.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 32
REQUESTS: Final = 10_000
APPLICATIONS: Final = 240
PER_SECOND: Final = 4.0
BY_CLOCK: Final = 0.25
DEPLOYED: Final = 0.2


def few_shot(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """API requests of one turn behind their application's long instructions; none can be linked."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    call(timeline, 0.0, 1.2 * requests / PER_SECOND, PER_SECOND, APPLICATIONS)
    return timeline.workload("few-shot", requests)


def call(timeline: Timeline, start: float, end: float, per_second: float, applications: int) -> None:
    """Add the requests of so many applications in [start, end), ``per_second`` in all."""
    random = timeline.random
    rates = 1 / np.arange(1, applications + 1)
    rates *= per_second / rates.sum()
    for rate in rates:
        tokens = int(np.clip(lognormal(random, 1_800, 0.7, 1)[0], 300, 9_000))
        instructions = timeline.text()
        deployed = start + (end - start) * random.random() if random.random() < DEPLOYED else end
        later = timeline.text(instructions, tokens // 2)
        if random.random() < BY_CLOCK:
            period = float(np.exp(random.uniform(np.log(60.0), np.log(900.0))))
            ticks = np.arange(start + period * random.random(), end, period)
            times = [float(tick + random.exponential(3.0)) for tick in ticks for _ in range(random.poisson(rate * period))]
        else:
            times = poisson_times(random, start, end, 1 / rate)
        inputs = tokens_at(FIRST_PROMPT, random.standard_normal(len(times))).tolist()
        outputs = np.maximum(lognormal(random, 60, 0.8, len(times)), 1).astype(int).tolist()
        for at, prompt, reply in zip(times, inputs, outputs, strict=True):
            text = timeline.text(instructions if at < deployed else later, tokens)
            timeline.ask(at, timeline.user(), 1, text, tokens + prompt, reply, linked=False)
