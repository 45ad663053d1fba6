"""Writes the log of the tutorial "Will it pay?" to standard output: two hours of three made-up applications on one engine.

New users and documents come in the first hour, and users ask again until the end of the second.

- `support`: a chat with a long system prompt, whose users return after about three minutes and mostly ask again.
- `summary`: long documents, each sent once, which push the chats out of a least-recently-used cache.
- `sales`: a chat whose system prompt begins with the time of the request, so that nothing behind it is ever found again.
"""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

START = datetime(2026, 11, 20, 9, tzinfo=UTC).timestamp()
LASTS_S = 3_600
WORDS = """
account address amount answer before branch cancel change charge client credit customer delay delivery device error
family file invoice letter limit market message month number office order other parcel payment phone please point
price problem question reason receipt refund report return route safety sample second secure server service signal
status street system table ticket today together update value window without yesterday
""".split()  # noqa: SIM905 (a list takes a line for each word)
CHATS = (("support", 30, 900, 0.8), ("sales", 60, 900, 0.6))
"""Name, mean seconds between new users, words of the system prompt, and the share of users who ask again."""


def text(rng: random.Random, words: int) -> str:
    """Return random words."""
    return " ".join(WORDS[int(rng.random() * len(WORDS))] for _ in range(words)) + "."


def chat(rng: random.Random, name: str, system: str, began: float, asks_again: float) -> Iterator[dict[str, Any]]:
    """Yield the requests of a conversation."""
    messages: list[dict[str, str]] = []
    while True:
        messages = [*messages, {"role": "user", "content": text(rng, 120)}]
        clock = f"It is {datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%S}. " if name == "sales" else ""
        reply = text(rng, 350)
        yield {
            "time": round(began, 3),
            "messages": [{"role": "system", "content": clock + system}, *messages],
            "response": reply,
        }
        messages = [*messages, {"role": "assistant", "content": reply}]
        began += 20 + rng.expovariate(1 / 180)
        if rng.random() >= asks_again:
            return


def requests(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the requests of all applications, by application."""
    for name, every, words, asks_again in CHATS:
        system, moment = text(rng, words), 0.0
        while (moment := moment + rng.expovariate(1 / every)) < LASTS_S:
            yield from chat(rng, name, system, START + moment, asks_again)
    moment = 0.0
    while (moment := moment + rng.expovariate(1 / 20)) < LASTS_S:
        message = {"role": "user", "content": "Summarise this document. " + text(rng, 3_000)}
        yield {"time": round(START + moment, 3), "messages": [message], "response": text(rng, 150)}


if __name__ == "__main__":
    for request in sorted(requests(random.Random(0)), key=lambda request: request["time"]):
        print(json.dumps(request))
