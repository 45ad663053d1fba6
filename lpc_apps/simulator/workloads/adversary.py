"""Adversaries of learning: the kind of conversation that returns is inverted, or many users return at one instant.

`adversary`: two kinds of conversation that are easy to tell apart. Kind A has short prompts (20 to 120 tokens after a system
prompt of 192) and category `a`; kind B has long ones (700 to 2,600) and category `b`. In odd phases A continues with
probability 0.95 after each turn and B with 0.02; in even phases these are swapped. So kind, length and category first predict
the return almost perfectly, and then almost perfectly wrong.

- Up to 12 turns; gaps are lognormal (median 60 s, sigma 1.3), replies have 250 tokens (median, sigma 0.6).
- The phase at the end of a turn decides whether another turn follows, so waiting conversations still return in the next phase.
- In either phase about 1.3 requests arrive per second. Blocks of 32 tokens. Every conversation has a name. No source.

`herd`: classes whose members all return at the same instant, and single users. Until the bell all waiting users look alike, so
earlier return times describe the bell and not the user. At the bell the requests need more than the cache holds, in an order
unrelated to last use.

- Twelve classes of 25. A class meets for 40 minutes, then another one follows. Its bell rings every 5 minutes, shifted by
  class; in every third class every 11 minutes. Within 4 s of a bell, 80% of those present send a request; the others wait for
  the next bell. 10% leave at each bell.
- A class shares its task sheet (1,500 tokens). Prompts and replies have ShareGPT's lengths.
- Also one chat of ShareGPT's lengths every 10 s; think times are exponential, mean 100 s.
- Blocks of 32 tokens. Every conversation has a name. All parameters except ShareGPT's lengths are assumptions.
"""

from bisect import bisect_right
from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import (
    FIRST_PROMPT,
    LATER_PROMPT,
    REPLY,
    SYSTEM_PROMPT,
    converse,
    lognormal,
    poisson_times,
    tokens_at,
)
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
CLASSES: Final = 12
CLASS_SIZE: Final = 25
TASK_SHEET: Final = 1_500
MEETING_S: Final = 2_400.0
BELL_EVERY_S: Final = (300.0, 300.0, 660.0)
BELL_SPREAD_S: Final = 4.0
RESPONDS: Final = 0.8
LEAVES: Final = 0.1
CHAT_EVERY_S: Final = 10.0
HERD_PER_SECOND: Final = 0.9
"""Requests, approximately."""


def regular(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Invert the kinds every 10 minutes, long enough for a learner to trust its statistics."""
    span = 2.0 * requests / PER_SECOND
    return _adversary("adversary", seed, requests, np.arange(PHASE_S, span, PHASE_S).tolist(), span)


def irregular(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Invert the kinds after 1 to 12 minutes, 4 on average (1 + exponential), so that there is no period to learn."""
    span = 2.0 * requests / PER_SECOND
    phases = 60.0 + np.minimum(np.random.default_rng([seed, 1]).exponential(180.0, int(span / 60.0)), 660.0)
    return _adversary("adversary-irregular", seed, requests, np.cumsum(phases).tolist(), span)


def _adversary(name: str, seed: int, requests: int, inversions: list[float], span: float) -> Workload:
    timeline = Timeline(seed, BLOCK_TOKENS)
    system = timeline.text()
    for kind in PROMPT_TOKENS:
        for at in poisson_times(timeline.random, 0.0, span, EVERY_S):
            _conversation(timeline, at, kind, inversions, system)
    return timeline.workload(name, requests)


def _conversation(timeline: Timeline, at: float, kind: str, inversions: list[float], system: Prefix) -> None:
    random = timeline.random
    user, text, context = timeline.user(), timeline.text(system, SYSTEM_PROMPT), SYSTEM_PROMPT
    for turn in range(1, MAX_TURNS + 1):
        context += int(random.integers(*PROMPT_TOKENS[kind])) if turn == 1 else int(random.integers(20, 120))
        reply = int(np.clip(lognormal(random, 250.0, 0.6, 1)[0], 10, 1_500))
        end = timeline.ask(at, user, turn, text, context, reply, category=kind)
        context += reply
        favoured = "b" if bisect_right(inversions, end) % 2 else "a"
        if random.random() >= (LIKELY if kind == favoured else UNLIKELY):
            return
        at = end + float(lognormal(random, 60.0, 1.3, 1)[0])


def herd(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate classes that return within seconds of a bell, every 5 or 11 minutes, and single users."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    end = 1.5 * requests / HERD_PER_SECOND
    converse(timeline, 0.0, end, CHAT_EVERY_S, lambda n: random.exponential(100.0, n), timeline.text())
    for number in range(CLASSES):
        at = MEETING_S * number / CLASSES - MEETING_S
        while at < end:
            if at >= 0:
                _class(timeline, at, BELL_EVERY_S[number % len(BELL_EVERY_S)])
            at += MEETING_S
    return timeline.workload("herd", requests)


def _class(timeline: Timeline, start: float, every: float) -> None:
    random = timeline.random
    sheet = timeline.text()
    for _ in range(CLASS_SIZE):
        user, text, context, turn, bell = timeline.user(), timeline.text(sheet, TASK_SHEET), TASK_SHEET, 0, start
        while bell < start + MEETING_S and (turn == 0 or random.random() >= LEAVES):
            if turn == 0 or random.random() < RESPONDS:
                turn += 1
                context += int(tokens_at(LATER_PROMPT if turn > 1 else FIRST_PROMPT, random.standard_normal(1))[0])
                reply = int(tokens_at(REPLY, random.standard_normal(1))[0])
                timeline.ask(bell + BELL_SPREAD_S * random.random(), user, turn, text, context, reply)
                context += reply
            bell += every
