"""An adversary: two kinds of conversation, easy to separate, and which of them returns is turned around again and again.

Kind A: short prompts (20 to 120 tokens and the 192 of the system prompt), category `a`; kind B: long ones (700 to 2,600),
category `b`. In odd phases A goes on with 0.95 after each turn and B with 0.02, in even ones the other way round: the kind,
the prompt's length and the category each predict it almost surely, and then just as surely wrong. Up to 12 turns; gaps
lognormal, median 60 s, sigma 1.3; replies of 250 tokens (median, sigma 0.6). The phase at a turn's end decides whether it is
followed by another, so what waits when a phase ends still comes back. Conversations arrive so that in either phase some 1.3
requests a second come. Blocks of 32 tokens; every conversation has a name. No source: it is made to do harm.
"""

from bisect import bisect_right
from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import SYSTEM_PROMPT
from lpc.simulator.workloads.lengths import lognormal, poisson_times
from lpc.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 32
REQUESTS: Final = 8_000
EVERY_S: Final = 6.0
"""Seconds between the beginnings of conversations of each kind."""
PER_SECOND: Final = 1.3
PHASE_S: Final = 600.0
RETURNS: Final = 0.95
RETURNS_NOT: Final = 0.02
MOST_TURNS: Final = 12
PROMPT_TOKENS: Final = {"a": (20, 120), "b": (700, 2_600)}


def regular(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Turned around every 10 minutes: long enough for a learner to come to trust."""
    span = 2.0 * requests / PER_SECOND
    return _adversary("adversary", seed, requests, np.arange(PHASE_S, span, PHASE_S).tolist(), span)


def irregular(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Turned around after 1 to 12 minutes, 4 on average (1 + exponential): no period to be learnt."""
    span = 2.0 * requests / PER_SECOND
    phases = 60.0 + np.minimum(np.random.default_rng([seed, 1]).exponential(180.0, int(span / 60.0)), 660.0)
    return _adversary("adversary-irregular", seed, requests, np.cumsum(phases).tolist(), span)


def _adversary(name: str, seed: int, requests: int, turned: list[float], span: float) -> Workload:
    timeline = Timeline(seed, BLOCK_TOKENS)
    system = timeline.text()
    for kind in PROMPT_TOKENS:
        for at in poisson_times(timeline.random, 0.0, span, EVERY_S):
            _conversation(timeline, at, kind, turned, system)
    return timeline.workload(name, requests)


def _conversation(timeline: Timeline, at: float, kind: str, turned: list[float], system: Prefix) -> None:
    random = timeline.random
    user, text, context = timeline.user(), timeline.text(system, SYSTEM_PROMPT), SYSTEM_PROMPT
    for turn in range(1, MOST_TURNS + 1):
        context += int(random.integers(*PROMPT_TOKENS[kind])) if turn == 1 else int(random.integers(20, 120))
        reply = int(np.clip(lognormal(random, 250.0, 0.6, 1)[0], 10, 1_500))
        end = timeline.ask(at, user, turn, text, context, reply, category=kind)
        context += reply
        favoured = "b" if bisect_right(turned, end) % 2 else "a"
        if random.random() >= (RETURNS if kind == favoured else RETURNS_NOT):
            return
        at = end + float(lognormal(random, 60.0, 1.3, 1)[0])
