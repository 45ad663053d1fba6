"""A herd: classes work in step, and all of a class return at the same instant; single users in between.

Everybody who waits looks alike until the bell, so what came back in time tells of the bell and not of the user; and at the
bell the cache is asked for more than it holds, in an order that is not that of last use.

- Twelve classes of 25; a class meets for 40 minutes, then the next class takes its place. A bell rings in each every 5 minutes
  (shifted by class; in every third class every 11 minutes); within 4 s of it, 8 of 10 of those who are still there ask; those
  who miss one ask at the next. One in ten leaves at each bell.
- A class shares its task sheet (1,500 tokens); prompts and replies as long as ShareGPT's.
- With them chats as ShareGPT's, one every 10 s, exponential think times, mean 100 s.
- Blocks of 32 tokens. Every conversation has a name. Assumed, but for ShareGPT's lengths.
"""

from typing import Final

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import converse
from lpc.simulator.workloads.lengths import FIRST_PROMPT, LATER_PROMPT, REPLY, tokens_at
from lpc.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 32
REQUESTS: Final = 8_000
CLASSES: Final = 12
PUPILS: Final = 25
SHEET: Final = 1_500
MEETS_S: Final = 2_400.0
BELL_S: Final = (300.0, 300.0, 660.0)
WITHIN_S: Final = 4.0
ASKS: Final = 0.8
LEAVES: Final = 0.1
CHAT_EVERY_S: Final = 10.0
PER_SECOND: Final = 0.9
"""Requests, about."""


def herd(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Classes that all return within seconds of a bell, every 5 or 11 minutes, and single users."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    end = 1.5 * requests / PER_SECOND
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
