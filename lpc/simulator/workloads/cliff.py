"""The cliff: agents in a closed loop whose live context is larger than the cache, or a little smaller.

SESSIONS agents work at a time, and a new one starts when one has ended. Each asks again some seconds after its answer, with a
longer prompt. While their live context (the sum over the agents that work) fits into the cache, all but the new tokens hit.
Where it is larger, least recent use evicts each agent's context just before it is needed again. Then nothing hits, the prefill
server has twenty times the work, and latency and throughput fall off a cliff.

- Live context is about a tenth of the working set, so caches of 20, 8, 5 and 3% of that stand for live contexts of about 0.5,
  1.2, 2 and 3 times the cache.
- An agent opens with 6,000 tokens (median, sigma 0.5). Each call adds 200 tokens (median, sigma 1.2) and a reply of 230
  (median, sigma 0.9), 24 calls on average (geometric). It ends where its context would pass 40,000 tokens. Agents share no
  blocks, as recorded sessions (`--format agents`) share none. Assumed, but for the replies.
- Pauses: of 20 calls 19 wait for a tool (lognormal, median 6 s, sigma 0.6), one for a human (median 90 s, sigma 0.8).
  Recorded tools take 3.8, 8, 90 s (quantiles 0.1, 0.5, 0.9; callanjfox/kv-cache-tester). An engine sees
  how a reply ended, `tool` (a call) or `turn`; the next request has that as its category.
- Blocks of 128 tokens. At 20,000 tokens/s the server has time to spare below the cliff, and too little beyond it.
"""

from typing import Final

import numpy as np

from lpc.simulator.sessions import closed_loop
from lpc.simulator.workload import Workload
from lpc.simulator.workloads.lengths import lognormal
from lpc.simulator.workloads.timeline import WARM_UP_REQUESTS, Timeline

BLOCK_TOKENS: Final = 128
REQUESTS: Final = 5_000
SESSIONS: Final = 36
MEAN_CALLS: Final = 24.0
MOST_TOKENS: Final = 40_000
HUMAN_SHARE: Final = 0.05
SPARE: Final = 1.1
"""Requests drawn for each that a run serves, so that few sessions are used twice."""


def cliff(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Agents in a closed loop, so many at a time that their live context is about a tenth of the working set."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    free_at = [0.0] * SESSIONS
    drawn = 0
    # The order in which a run takes the sessions is drawn again; what counts here is that enough of them begin.
    while drawn < 1.5 * SPARE * requests:
        slot = int(np.argmin(free_at))
        free_at[slot], calls = _session(timeline, free_at[slot])
        drawn += calls
    log = timeline.workload("cliff", round(SPARE * requests))
    return closed_loop(log, SESSIONS, requests, seed, warm_up=WARM_UP_REQUESTS)


def _session(timeline: Timeline, at: float) -> tuple[float, int]:
    """Add an agent that starts at ``at`` seconds. Return when it ends, and its calls."""
    random = timeline.random
    calls = int(random.geometric(1 / MEAN_CALLS))
    new = np.minimum(lognormal(random, 200, 1.2, calls), 8_000).astype(int) + 1
    new[0] = int(np.clip(lognormal(random, 6_000, 0.5, 1)[0], 2_000, 14_000))
    replies = np.clip(lognormal(random, 230, 0.9, calls), 20, 4_000).astype(int)
    human = random.random(calls) < HUMAN_SHARE
    tool_s = np.clip(lognormal(random, 6.0, 0.6, calls), 1.0, 60.0)
    pauses = np.where(human, np.clip(lognormal(random, 90.0, 0.8, calls), 10.0, 1_800.0), tool_s).tolist()
    user, text, context, made, category = timeline.user(), timeline.text(), 0, 0, "turn"
    for prompt, reply, waits, pause in zip(new.tolist(), replies.tolist(), human.tolist(), pauses, strict=True):
        if context + prompt + reply > MOST_TOKENS:
            break
        made, context = made + 1, context + prompt
        reply_end = "turn" if waits else "tool"
        end = timeline.ask(at, user, made, text, context, reply, category=category, reply_end=reply_end)
        category = reply_end
        context += reply
        at = end + pause
    return at, made
