"""Few-shot API traffic: applications with long instructions and examples, and one short input per request.

No conversation has a second turn: every hit is on a prefix shared with other requests. So predictions about *conversations*
are useless: "this conversation is over" is always true, but its blocks are used again. Parameters are assumptions; the shape
(single-turn, reuse across users) follows the shared prompts of Preble (ICLR 2025) and the API classes of KVCache Cache in the
Wild (ATC 2025).

- 240 applications with instructions of 1,800 tokens (median, sigma 0.7; 300 to 9,000). Their rates follow Zipf's law with
  exponent 1, four requests per second in total. Inputs have the lengths of ShareGPT's first prompts, replies 60 tokens
  (median, sigma 0.8). Blocks of 32 tokens.
- One application in four calls periodically: all requests of a period (60 to 900 s) arrive within seconds.
- One in five is deployed again at a random time: from then on the second half of its instructions is different.
- **No request has a name**: each one is a conversation of its own.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import FIRST_PROMPT, lognormal, poisson_times, tokens_at
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 32
REQUESTS: Final = 10_000
APPLICATIONS: Final = 240
PER_SECOND: Final = 4.0
PERIODIC: Final = 0.25
REDEPLOYED: Final = 0.2


def few_shot(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate API requests of one turn after their application's long instructions; none can be linked."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    call(timeline, 0.0, 1.2 * requests / PER_SECOND, PER_SECOND, APPLICATIONS)
    return timeline.workload("few-shot", requests)


def call(timeline: Timeline, start: float, end: float, per_second: float, applications: int) -> None:
    """Add the requests of this number of applications in [start, end), ``per_second`` in total."""
    random = timeline.random
    rates = 1 / np.arange(1, applications + 1)
    rates *= per_second / rates.sum()
    for rate in rates:
        tokens = int(np.clip(lognormal(random, 1_800, 0.7, 1)[0], 300, 9_000))
        instructions = timeline.text()
        redeployed = start + (end - start) * random.random() if random.random() < REDEPLOYED else end
        later = timeline.text(instructions, tokens // 2)
        if random.random() < PERIODIC:
            period = float(np.exp(random.uniform(np.log(60.0), np.log(900.0))))
            ticks = np.arange(start + period * random.random(), end, period)
            times = [float(tick + random.exponential(3.0)) for tick in ticks for _ in range(random.poisson(rate * period))]
        else:
            times = poisson_times(random, start, end, 1 / rate)
        inputs = tokens_at(FIRST_PROMPT, random.standard_normal(len(times))).tolist()
        outputs = np.maximum(lognormal(random, 60, 0.8, len(times)), 1).astype(int).tolist()
        for at, prompt, reply in zip(times, inputs, outputs, strict=True):
            text = timeline.text(instructions if at < redeployed else later, tokens)
            timeline.ask(at, timeline.conversation(), 1, text, tokens + prompt, reply, linked=False)
