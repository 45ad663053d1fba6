"""Adversaries of what learns: which kind of conversation returns is turned around, and a herd returns at one instant.

`adversary`: two kinds of conversation, easy to separate, and which of them returns is turned around again and again. Kind A:
short prompts (20 to 120 tokens and the 192 of the system prompt), category `a`; kind B: long ones (700 to 2,600), category
`b`. In odd phases A goes on with 0.95 after each turn and B with 0.02, in even ones the other way round: the kind, the
prompt's length and the category each predict it almost surely, and then just as surely wrong. Up to 12 turns; gaps lognormal,
median 60 s, sigma 1.3; replies of 250 tokens (median, sigma 0.6). The phase at a turn's end decides whether it is followed by
another, so what waits when a phase ends still comes back. Conversations arrive so that in either phase some 1.3 requests a
second come. Blocks of 32 tokens; every conversation has a name. No source: it is made to do harm.

`herd`: a herd: classes work in step, and all of a class return at the same instant; single users in between.

Everybody who waits looks alike until the bell, so what came back in time tells of the bell and not of the user; and at the
bell the cache is asked for more than it holds, in an order that is not that of last use.

- Twelve classes of 25; a class meets for 40 minutes, then the next class takes its place. A bell rings in each every 5 minutes
  (shifted by class; in every third class every 11 minutes); within 4 s of it, 8 of 10 of those who are still there ask; those
  who miss one ask at the next. One in ten leaves at each bell.
- A class shares its task sheet (1,500 tokens); prompts and replies as long as ShareGPT's.
- With them chats as ShareGPT's, one every 10 s, exponential think times, mean 100 s.
- Blocks of 32 tokens. Every conversation has a name. Assumed, but for ShareGPT's lengths.
"""

from bisect import bisect_right
from typing import Final

import numpy as np

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import (
    FIRST_PROMPT,
    LATER_PROMPT,
    REPLY,
    SYSTEM_PROMPT,
    converse,
    lognormal,
    poisson_times,
    tokens_at,
)
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
CLASSES: Final = 12
PUPILS: Final = 25
SHEET: Final = 1_500
MEETS_S: Final = 2_400.0
BELL_S: Final = (300.0, 300.0, 660.0)
WITHIN_S: Final = 4.0
ASKS: Final = 0.8
LEAVES: Final = 0.1
CHAT_EVERY_S: Final = 10.0
HERD_PER_SECOND: Final = 0.9
"""Requests, about."""


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


def herd(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Classes that all return within seconds of a bell, every 5 or 11 minutes, and single users."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    end = 1.5 * requests / HERD_PER_SECOND
    converse(timeline, 0.0, end, CHAT_EVERY_S, lambda n: random.exponential(100.0, n), timeline.text())
    for room in range(CLASSES):
        at = MEETS_S * room / CLASSES - MEETS_S
        while at < end:
            if at >= 0:
                _class(timeline, at, BELL_S[room % len(BELL_S)])
            at += MEETS_S
    return timeline.workload("herd", requests)


def _class(timeline: Timeline, start: float, every: float) -> None:
    random = timeline.random
    sheet = timeline.text()
    for _ in range(PUPILS):
        user, text, context, turn, bell = timeline.user(), timeline.text(sheet, SHEET), SHEET, 0, start
        while bell < start + MEETS_S and (turn == 0 or random.random() >= LEAVES):
            if turn == 0 or random.random() < ASKS:
                turn += 1
                context += int(tokens_at(LATER_PROMPT if turn > 1 else FIRST_PROMPT, random.standard_normal(1))[0])
                reply = int(tokens_at(REPLY, random.standard_normal(1))[0])
                timeline.ask(bell + WITHIN_S * random.random(), user, turn, text, context, reply)
                context += reply
            bell += every
