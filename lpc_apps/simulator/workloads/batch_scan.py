"""Interactive chats while batch jobs read long documents, each exactly once.

The classical case against LRU: a scan evicts the blocks that chats come back to. It is also a trap for learning by turn and
length: one chat in eight begins with a pasted document of the same length, and asks about it again.

- One chat of ShareGPT's lengths every 6 s; think times are lognormal (median 90 s, sigma 1.5).
- Four jobs of 10 minutes, one every 17 minutes. Each sends a request every 1.1 s: the job's instructions (600 tokens) and a
  document of 6,000 tokens (median, sigma 0.5; 1,500 to 16,000). Replies have 80 tokens (median, sigma 0.6).
- Blocks of 64 tokens. All parameters except ShareGPT's lengths are assumptions. **Jobs send plain prompts without a name**;
  chats have a name.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import SYSTEM_PROMPT, draw_lengths, lognormal, poisson_times
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 64
REQUESTS: Final = 6_000
CHAT_EVERY_S: Final = 6.0
PASTED: Final = 1 / 8
JOB_EVERY_S: Final = 1_000.0
JOB_S: Final = 600.0
SCAN_EVERY_S: Final = 1.1
INSTRUCTIONS: Final = 600
PER_SECOND: Final = 1.35
"""Requests of chats and jobs together, approximately."""


def batch_scan(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate chats, one in eight about a long pasted document, and jobs that read long documents exactly once."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    end = 1.5 * requests / PER_SECOND
    _chats(timeline, end)
    for start in np.arange(JOB_EVERY_S / 2, end, JOB_EVERY_S).tolist():
        scan(timeline, start, start + JOB_S)
    return timeline.workload("batch-scan", requests)


def _chats(timeline: Timeline, end: float) -> None:
    random = timeline.random
    system = timeline.text()
    for at in poisson_times(random, 0.0, end, CHAT_EVERY_S):
        prompts, replies = draw_lengths(random)
        if random.random() < PASTED:
            prompts[0] += _document(random)
        gaps = lognormal(random, 90.0, 1.5, len(prompts)).tolist()
        timeline.converse(at, prompts, replies, gaps, after=system, tokens=SYSTEM_PROMPT, max_tokens=24_000)


def scan(timeline: Timeline, start: float, end: float, every: float = SCAN_EVERY_S) -> None:
    """Add a job's requests in [start, end), one per ``every`` seconds."""
    random = timeline.random
    instructions = timeline.text()
    for at in np.arange(start, end, every).tolist():
        tokens = INSTRUCTIONS + _document(random)
        reply = max(int(lognormal(random, 80, 0.6, 1)[0]), 1)
        timeline.ask(at, timeline.conversation(), 1, timeline.text(instructions, INSTRUCTIONS), tokens, reply, linked=False)


def _document(random: np.random.Generator) -> int:
    return int(np.clip(lognormal(random, 6_000, 0.5, 1)[0], 1_500, 16_000))
