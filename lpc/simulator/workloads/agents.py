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
"""

from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.lengths import lognormal, poisson_times
from lpc.simulator.workloads.timeline import Prefix, Timeline

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
