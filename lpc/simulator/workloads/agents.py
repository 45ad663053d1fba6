"""Coding agents: bursts of calls with tool pauses of seconds, a human's pauses of minutes in between, then gone.

Sizes after 173 recorded sessions (callanjfox/kv-cache-tester, Apache-2.0, Claude Code; quantiles 0.1, 0.5, 0.9 of 3,582
requests): 4, 17, 45 requests a session; first prompt 15K, 32K, 154K tokens, any prompt 25K, 64K, 130K; growth per call beyond
the reply 0, 334, 3,695; replies 105, 226, 975; time after a tool call 3.8, 8, 90 s (of it under 30 s: 3.8, 7.7, 18), after the
end of a turn 8, 185, 1,650 s. Here prompts are cut to about a third, so that 1% of the working set holds more than one
session.

- One of 5 versions of the tool's prompt stands before all (4,000 tokens, the versions differ from token 2,000 on). A session
  opens with 3,000 tokens more (median, sigma 0.8).
- Bursts of calls: geometric, mean 5; pauses of a tool lognormal, median 3.5 s, sigma 0.6; of the human median 240 s, sigma
  1.5. After each burst a session goes on with 0.8.
- Where a context passes 28,000 tokens it is compacted: the history becomes 4,000 new tokens. Named sessions. An engine
  sees how a reply ended, `tool` (a call) or `turn`; the next request has that as its category. Blocks of 128 tokens.

`cliff`: agents in a closed loop whose live context is larger than the cache, or a little smaller. SESSIONS agents work at a
time, and a new one starts when one has ended. Each asks again some seconds after its answer, with a longer prompt. While their
live context (the sum over the agents that work) fits into the cache, all but the new tokens hit. Where it is larger, least
recent use evicts each agent's context just before it is needed again. Then nothing hits, the prefill server has twenty times
the work, and latency and throughput fall off a cliff.

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
from lpc.simulator.workloads.chat import lognormal, poisson_times
from lpc.simulator.workloads.timeline import WARM_UP_REQUESTS, Prefix, Timeline

BLOCK_TOKENS: Final = 128
REQUESTS: Final = 6_000
EVERY_S: Final = 45.0
"""Seconds between the beginnings of sessions."""
MEAN_CALLS: Final = 24.0
"""Of a session, about."""
VERSIONS: Final = 5
TOOL_PROMPT: Final = 4_000
COMMON: Final = 2_000
GOES_ON: Final = 0.8
BURST: Final = 5.0
COMPACT_AT: Final = 28_000
COMPACTED: Final = 4_000
CLIFF_REQUESTS: Final = 5_000
SESSIONS: Final = 36
MOST_TOKENS: Final = 40_000
HUMAN_SHARE: Final = 0.05
SPARE: Final = 1.1
"""Requests drawn for each that a run serves, so that few sessions are used twice."""


def agents(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Coding agents: tool pauses of seconds within bursts of calls, human pauses of minutes, growing prompts, compaction."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    work(timeline, 0.0, 2.0 * requests / MEAN_CALLS * EVERY_S, EVERY_S, versions(timeline))
    return timeline.workload("agents", requests)


def versions(timeline: Timeline) -> list[Prefix]:
    """Return the prompts of the tool's versions."""
    common = timeline.text()
    return [timeline.text(common, COMMON) for _ in range(VERSIONS)]


def work(timeline: Timeline, start: float, end: float, every: float, prompts: list[Prefix]) -> None:
    """Add the sessions that begin in [start, end), one ``every`` seconds on average."""
    for at in poisson_times(timeline.random, start, end, every):
        _session(timeline, at, prompts[int(timeline.random.integers(len(prompts)))])


def _session(timeline: Timeline, at: float, prompt: Prefix) -> None:
    random = timeline.random
    user, text, turn, category = timeline.user(), timeline.text(prompt, TOOL_PROMPT), 0, "turn"
    context = TOOL_PROMPT + int(np.clip(lognormal(random, 3_000, 0.8, 1)[0], 300, 20_000))
    while True:
        calls = int(random.geometric(1 / BURST))
        grown = np.where(random.random(calls) < 0.15, 0, np.minimum(lognormal(random, 420, 1.5, calls), 8_000)).astype(int)
        replies = np.clip(lognormal(random, 230, 0.9, calls), 20, 4_000).astype(int)
        pauses = np.clip(lognormal(random, 3.5, 0.6, calls), 1.0, 30.0)
        pauses[-1] = np.clip(lognormal(random, 240.0, 1.5, 1)[0], 10.0, 7_200.0)
        for number, (new, reply, pause) in enumerate(zip(grown.tolist(), replies.tolist(), pauses.tolist(), strict=True), 1):
            if context + new + reply > COMPACT_AT:
                text, context = timeline.text(prompt, TOOL_PROMPT), TOOL_PROMPT + COMPACTED
            turn, context = turn + 1, context + new
            reply_end = "tool" if number < calls else "turn"
            end = timeline.ask(at, user, turn, text, context, reply, category=category, reply_end=reply_end)
            category = reply_end
            context += reply
            at = end + pause
        if random.random() >= GOES_ON:
            return


def cliff(seed: int = 0, *, requests: int = CLIFF_REQUESTS) -> Workload:
    """Agents in a closed loop, so many at a time that their live context is about a tenth of the working set."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    free_at = [0.0] * SESSIONS
    drawn = 0
    # The order in which a run takes the sessions is drawn again; what counts here is that enough of them begin.
    while drawn < 1.5 * SPARE * requests:
        slot = int(np.argmin(free_at))
        free_at[slot], calls = _agent(timeline, free_at[slot])
        drawn += calls
    log = timeline.workload("cliff", round(SPARE * requests))
    return closed_loop(log, SESSIONS, requests, seed, warm_up=WARM_UP_REQUESTS)


def _agent(timeline: Timeline, at: float) -> tuple[float, int]:
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
