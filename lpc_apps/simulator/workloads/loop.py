"""Loops: suites of prompts that are repeated continuously, as by evaluations and monitors, and chats.

A cyclic scan larger than the cache is LRU's worst case: it hits nothing, because LRU evicts each block just before it is
needed again (Belady 1966). Three suites have cycles of different sizes, so that at most capacities one of them is a little
larger than the cache. Each prompt returns periodically, although as a conversation it has only one turn.

- Suites of 60, 200 and 500 prompts; a round takes 2, 8 and 25 minutes. A prompt is the suite's instructions (500 tokens) and
  1,500 tokens of its own (median, sigma 0.5), the same in every round. Replies have 50 tokens.
- One chat of ShareGPT's lengths every 7 s; think times are lognormal (mean 100 s, sigma 1.3).
- Blocks of 64 tokens. **A suite's requests have no name**: a prompt cannot be linked to its previous round. All parameters
  except ShareGPT's lengths are assumptions.
"""

from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import converse, lognormal
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 64
REQUESTS: Final = 9_000
CHAT_EVERY_S: Final = 7.0
SUITES: Final = ((60, 120.0), (200, 480.0), (500, 1_500.0))
"""Prompts, and seconds per round."""
INSTRUCTIONS: Final = 500
PER_SECOND: Final = 1.8
"""Requests, approximately."""


def loop(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate continuously repeated suites of prompts, cyclic scans on which LRU hits nothing, and chats."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    end = 1.4 * requests / PER_SECOND
    converse(timeline, 0.0, end, CHAT_EVERY_S, lambda n: lognormal(random, 43.0, 1.3, n), timeline.text())
    for prompts, round_s in SUITES:
        instructions = timeline.text()
        lengths = np.clip(lognormal(random, 1_500, 0.5, prompts), 200, 6_000).astype(int).tolist()
        suite = [(timeline.conversation(), timeline.text(instructions, INSTRUCTIONS), tokens) for tokens in lengths]
        for start in np.arange(round_s * random.random(), end, round_s).tolist():
            for index, (user, text, tokens) in enumerate(suite):
                at = start + round_s * (index + 0.5 * random.random()) / prompts
                timeline.ask(at, user, 1, text, INSTRUCTIONS + tokens, 50, linked=False)
    return timeline.workload("loop", requests)
