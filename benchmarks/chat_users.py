"""Simulated users who chat with an engine over HTTP, think, and return. Measures each answer's time to first token."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import httpx

ALPHABET: Final = "abcdefgh "
DONE: Final = "[DONE]"


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


@dataclass(slots=True)
class Turn:
    """One request. ``at``: monotonic seconds; ``number``: of the turn, from 1; ``ttft_s``: time to first token."""

    at: float
    number: int
    prompt_tokens: int
    ttft_s: float


@dataclass
class Talk:
    """All turns so far, and the number of failed requests."""

    turns: list[Turn] = field(default_factory=list)
    failed: int = 0


async def talk(base_url: str, model: str, habits: Habits, seed: int, enough: Callable[[Talk], bool]) -> Talk:
    """Let the users chat until ``enough`` returns true; return all turns. The seed determines the prompts."""
    done = Talk()
    async with httpx.AsyncClient(base_url=base_url, timeout=120.0, trust_env=False) as client:
        users = [asyncio.create_task(_user(client, model, habits, seed * 10_000 + n, done)) for n in range(habits.users)]
        while not enough(done) and not all(user.done() for user in users):
            await asyncio.wait(users, timeout=0.2)
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    return done


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


async def _user(client: httpx.AsyncClient, model: str, habits: Habits, seed: int, done: Talk) -> None:
    says = script(habits, seed)
    said = next(says)
    while True:
        await asyncio.sleep(said.wait_s)
        started = time.monotonic()
        reply = ""
        try:
            reply, ttft = await _ask(client, model, said.prompt, habits.reply)
            done.turns.append(Turn(started, said.number, len(said.prompt), ttft))
        except (httpx.HTTPError, ValueError):
            done.failed += 1
        said = says.send(reply)


async def _ask(client: httpx.AsyncClient, model: str, prompt: str, tokens: int) -> tuple[str, float]:
    """Return a reply and the seconds until its first token. Raises httpx.HTTPError, ValueError."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    started = time.monotonic()
    first = math.nan
    parts: list[str] = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and not line.endswith(DONE):
                if math.isnan(first):
                    first = time.monotonic() - started
                parts.append(line)
    if math.isnan(first):
        raise ValueError("an answer without a token")
    return reply_of(len(parts)), first


def _text(draws: random.Random, length: int) -> str:
    return "".join(draws.choices(ALPHABET, k=length))
