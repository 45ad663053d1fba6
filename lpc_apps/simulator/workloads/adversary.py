"""An adversary of learning: which of two kinds of conversation returns is inverted every ten minutes.

The kinds are easy to tell apart. Kind A has short prompts (20 to 120 tokens after a system prompt of 192) and category `a`;
kind B has long ones (700 to 2,600) and category `b`. In odd phases A continues with probability 0.95 after each turn and B
with 0.02; in even phases these are swapped. So kind, length and category first predict the return almost perfectly, and then
almost perfectly wrong.

- Up to 12 turns; gaps are lognormal (median 60 s, sigma 1.3), replies have 250 tokens (median, sigma 0.6).
- The phase at the end of a turn decides whether another turn follows, so waiting conversations still return in the next phase.
- In either phase about 1.3 requests arrive per second. Blocks of 32 tokens. Every conversation has a name. No source.
"""

from bisect import bisect_right
from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import SYSTEM_PROMPT, lognormal, poisson_times
from lpc_apps.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 32
REQUESTS: Final = 8_000
EVERY_S: Final = 6.0
"""Mean seconds between the starts of conversations of each kind."""
PER_SECOND: Final = 1.3
"""Requests, approximately."""
PHASE_S: Final = 600.0
LIKELY: Final = 0.95
UNLIKELY: Final = 0.02
MAX_TURNS: Final = 12
PROMPT_TOKENS: Final = {"a": (20, 120), "b": (700, 2_600)}


def adversary(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Invert the kinds every 10 minutes, long enough for a learner to trust its statistics."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    system = timeline.text()
    span = 2.0 * requests / PER_SECOND
    inversions = np.arange(PHASE_S, span, PHASE_S).tolist()
    for kind in PROMPT_TOKENS:
        for at in poisson_times(timeline.random, 0.0, span, EVERY_S):
            _conversation(timeline, at, kind, inversions, system)
    return timeline.workload("adversary", requests)


def _conversation(timeline: Timeline, at: float, kind: str, inversions: list[float], system: Prefix) -> None:
    random = timeline.random
    user, text, context = timeline.conversation(), timeline.text(system, SYSTEM_PROMPT), SYSTEM_PROMPT
    for turn in range(1, MAX_TURNS + 1):
        context += int(random.integers(*PROMPT_TOKENS[kind])) if turn == 1 else int(random.integers(20, 120))
        reply = int(np.clip(lognormal(random, 250.0, 0.6, 1)[0], 10, 1_500))
        end = timeline.ask(at, user, turn, text, context, reply, category=kind)
        context += reply
        favoured = "b" if bisect_right(inversions, end) % 2 else "a"
        if random.random() >= (LIKELY if kind == favoured else UNLIKELY):
            return
        at = end + float(lognormal(random, 60.0, 1.3, 1)[0])
