"""Simulated users who chat with an engine, think, and return."""

import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

ALPHABET: Final = "abcdefgh "


@dataclass(frozen=True, slots=True)
class Habits:
    """How users behave. Tokens are characters with the tiny model's tokenizer.

    Attributes:
        users: concurrent users; one whose conversation ends starts another.
        think_s, think_sigma: median of the think times, and standard deviation of their logarithm.
        goes_on: probability of another turn.
        opening, further, reply: tokens of the first prompt (half to twice as many), of later ones, and of replies.
        longest: prompt length, in tokens, at which a conversation ends.
    """

    users: int = 24
    think_s: float = 20.0
    think_sigma: float = 0.5
    goes_on: float = 0.85
    opening: int = 1800
    further: int = 500
    reply: int = 16
    longest: int = 5000


class Said(NamedTuple):
    """A request: seconds after the previous reply, number of the turn from 1, and prompt."""

    wait_s: float
    number: int
    prompt: str


def script(habits: Habits, seed: int) -> Generator[Said, str, None]:
    """Yield a user's requests, conversation after conversation, without end. Receives the replies, empty after a failure."""
    draws = random.Random(seed)
    wait = draws.uniform(0.0, habits.think_s)
    while True:
        prompt = _text(draws, int(habits.opening * 2 ** draws.uniform(-1.0, 1.0)))
        number, goes_on = 1, True
        while goes_on and len(prompt) <= habits.longest:
            prompt += yield Said(wait, number, prompt)
            goes_on = draws.random() < habits.goes_on
            prompt += _text(draws, int(habits.further * 2 ** draws.uniform(-1.0, 1.0)))
            wait = habits.think_s * math.exp(habits.think_sigma * draws.gauss(0.0, 1.0))
            number += 1


def reply_of(tokens: int) -> str:
    """Return a text of this many tokens that replaces the reply.

    The output of random weights is not always valid text that could be sent back.
    """
    return f"{tokens:04d}" * (tokens // 4)


def _text(draws: random.Random, length: int) -> str:
    return "".join(draws.choices(ALPHABET, k=length))
