"""Coding agents: bursts of calls with tool pauses of seconds, separated by human pauses of minutes.

In both workloads an engine sees how a reply ended, `tool` (a call) or `turn`; the next request has that as its category.
Blocks of 128 tokens. Every session has a name.

`agents`: sizes follow 173 recorded sessions (callanjfox/kv-cache-tester, Apache-2.0, Claude Code; 3,582 requests). Prompts are
cut to about a third, so that 1% of the working set holds more than one session.

| recorded | quantile 0.1 | 0.5 | 0.9 |
|---|---|---|---|
| requests per session | 4 | 17 | 45 |
| tokens of the first prompt | 15K | 32K | 154K |
| tokens of any prompt | 25K | 64K | 130K |
| tokens that a call adds besides the reply | 0 | 334 | 3,695 |
| tokens of a reply | 105 | 226 | 975 |
| seconds after a tool call | 3.8 | 8 | 90 |
| the same, of those under 30 s | 3.8 | 7.7 | 18 |
| seconds after the end of a turn | 8 | 185 | 1,650 |

- Every prompt begins with one of 5 versions of the tool's prompt (4,000 tokens, different from token 2,000 on). The session's
  own first prompt adds 3,000 tokens (median, sigma 0.8).
- Bursts have 5 calls on average (geometric). Pauses are lognormal: tools median 3.5 s, sigma 0.6; humans median 240 s, sigma
  1.5. After each burst a session continues with probability 0.8.
- A context that would exceed 28,000 tokens is compacted: 4,000 new tokens replace the history.

`cliff`: agents in a closed loop. SESSIONS agents work at a time, and a new one starts when one ends. Each sends its next,
longer prompt some seconds after its answer. While the sum of their contexts fits into the cache, all but the new tokens hit.
If it does not fit, LRU evicts each context just before it is needed again: nothing hits, the prefill server has twenty times
the work, and latency and throughput fall off a cliff.

- The live context is about a tenth of the working set, so caches of 20, 8, 5 and 3% of the working set stand for live contexts
  of about 0.5, 1.2, 2 and 3 times the cache.
- An agent's first prompt has 6,000 tokens (median, sigma 0.5). Each of its 24 calls on average (geometric) adds 200 tokens
  (median, sigma 1.2) and a reply of 230 (median, sigma 0.9). It ends before its context exceeds 40,000 tokens. Agents share
  no blocks, as in recorded sessions (`--format agents`). All parameters except the replies are assumptions.
- 95% of the pauses are a tool's (lognormal, median 6 s, sigma 0.6), 5% a human's (median 90 s, sigma 0.8).
- At 20,000 tokens/s the server has time to spare below the cliff, and too little beyond it.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.sessions import closed_loop
from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import lognormal, poisson_times
from lpc_apps.simulator.workloads.timeline import WARM_UP_REQUESTS, Prefix, Timeline

BLOCK_TOKENS: Final = 128
REQUESTS: Final = 6_000
EVERY_S: Final = 45.0
"""Mean seconds between the starts of sessions."""
MEAN_CALLS: Final = 24.0
"""Calls per session, approximately."""
VERSIONS: Final = 5
TOOL_PROMPT: Final = 4_000
COMMON: Final = 2_000
PREEMPTED: Final = 0.8
BURST: Final = 5.0
COMPACT_AT: Final = 28_000
COMPACTED: Final = 4_000
CLIFF_REQUESTS: Final = 5_000
SESSIONS: Final = 36
MAX_TOKENS: Final = 40_000
HUMAN_SHARE: Final = 0.05
SPARE: Final = 1.1
"""Requests drawn per request that a run serves, so that few sessions are used twice."""


def agents(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate agents with tool pauses of seconds, human pauses of minutes, growing prompts, and compaction."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    work(timeline, 0.0, 2.0 * requests / MEAN_CALLS * EVERY_S, EVERY_S, versions(timeline))
    return timeline.workload("agents", requests)


def versions(timeline: Timeline) -> list[Prefix]:
    """Return the system prompt of each version of the tool."""
    common = timeline.text()
    return [timeline.text(common, COMMON) for _ in range(VERSIONS)]


def work(timeline: Timeline, start: float, end: float, every: float, prompts: list[Prefix]) -> None:
    """Add sessions that start in [start, end), one per ``every`` seconds on average."""
    for at in poisson_times(timeline.random, start, end, every):
        _session(timeline, at, prompts[int(timeline.random.integers(len(prompts)))])


def _session(timeline: Timeline, at: float, prompt: Prefix) -> None:
    random = timeline.random
    user, text, turn, category = timeline.conversation(), timeline.text(prompt, TOOL_PROMPT), 0, "turn"
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
        if random.random() >= PREEMPTED:
            return


def cliff(seed: int = 0, *, requests: int = CLIFF_REQUESTS) -> Workload:
    """Generate agents in a closed loop whose live context is about a tenth of the working set."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    free_at = [0.0] * SESSIONS
    drawn = 0
    # A run draws the order of the sessions again, so the order here does not matter, only that there are enough.
    while drawn < 1.5 * SPARE * requests:
        slot = int(np.argmin(free_at))
        free_at[slot], calls = _agent(timeline, free_at[slot])
        drawn += calls
    log = timeline.workload("cliff", round(SPARE * requests))
    return closed_loop(log, SESSIONS, requests, seed, warm_up=WARM_UP_REQUESTS)


def _agent(timeline: Timeline, at: float) -> tuple[float, int]:
    """Add an agent that starts at ``at`` seconds. Return the time when it ends, and the number of its calls."""
    random = timeline.random
    calls = int(random.geometric(1 / MEAN_CALLS))
    new = np.minimum(lognormal(random, 200, 1.2, calls), 8_000).astype(int) + 1
    new[0] = int(np.clip(lognormal(random, 6_000, 0.5, 1)[0], 2_000, 14_000))
    replies = np.clip(lognormal(random, 230, 0.9, calls), 20, 4_000).astype(int)
    human = random.random(calls) < HUMAN_SHARE
    tool_s = np.clip(lognormal(random, 6.0, 0.6, calls), 1.0, 60.0)
    pauses = np.where(human, np.clip(lognormal(random, 90.0, 0.8, calls), 10.0, 1_800.0), tool_s).tolist()
    user, text, context, turn, category = timeline.conversation(), timeline.text(), 0, 0, "turn"
    for prompt, reply, is_human, pause in zip(new.tolist(), replies.tolist(), human.tolist(), pauses, strict=True):
        if context + prompt + reply > MAX_TOKENS:
            break
        turn, context = turn + 1, context + prompt
        reply_end = "turn" if is_human else "tool"
        end = timeline.ask(at, user, turn, text, context, reply, category=category, reply_end=reply_end)
        category = reply_end
        context += reply
        at = end + pause
    return at, turn
