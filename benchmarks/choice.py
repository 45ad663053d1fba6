"""Benchmark `choice`: time that the choice of an engine and the queue add to a request in the gateway, and their memory.

The gateway's own choice and queue before engines that have room, with many live conversations. A request is a conversation's
next turn: its engine is ranked, it is sent at once, has a first token and an answer with `usage`. Nothing of HTTP counts.
"""

import asyncio
import gc
import random
import time
import tracemalloc
from itertools import accumulate
from statistics import median
from typing import Any, Final

from rich.table import Table

from lpc.wire.terminal import console
from lpc_apps.routing.prompt import Prompt
from lpc_apps.routing.router import Router
from response_cache.gateway.choice import ByCost, ByHash, Route
from response_cache.gateway.engines import Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue

CACHE_TOKENS: Final = 200_000_000
"""Of each engine: all conversations fit, so that nothing is held."""
TURN_BYTES: Final = 4_000
ANSWER: Final = b'{"usage":{"prompt_tokens":20000,"completion_tokens":100,"prompt_tokens_details":{"cached_tokens":19000}}}'
SETS: Final = {"hash": (ByHash, False), "cost": (ByCost, False), "cost + queue": (ByCost, True)}


class Conversation:
    """A conversation of named turns: a question and a reply each."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.key = number.to_bytes(16, "big")
        self._ids = [rng.getrandbits(64) for _ in range(2 * rng.randint(4, 20))]
        self._rng = rng

    def next(self) -> Route:
        """Return the route of its next turn."""
        self._ids += [self._rng.getrandbits(64), self._rng.getrandbits(64)]
        count = len(self._ids) - 1
        sizes = tuple(accumulate([TURN_BYTES] * count))
        prompt = Prompt(tuple(self._ids[:count]), sizes, tuple(bool(at % 2) for at in range(count)), self.key)
        return Route(self.key, prompt)


def run(*, conversations: int, engines: int, requests: int) -> dict[str, Any]:
    """Measure each router; return microseconds of a request (p50, p99, mean) and bytes of a conversation."""
    return asyncio.run(_run(conversations, engines, requests))


async def _run(conversations: int, engines: int, requests: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"conversations": conversations, "engines": engines, "requests": requests}
    title = f"{conversations:,} live conversations, {engines} engines: processor time of a request that is not held, µs"
    shown = Table("router", "p50", "p99", "mean", "of it to rank, p50", "bytes a conversation", title=title)
    for name, (kind, queued) in SETS.items():
        figures[name] = found = await _measured(kind, queued, conversations, engines, requests)
        cells = (found[key] for key in ("p50_us", "p99_us", "mean_us", "ranked_p50_us"))
        shown.add_row(name, *(f"{cell:.0f}" for cell in cells), f"{found['conversation_bytes']:,.0f}")
        console().print(f"{name}: {found['p50_us']:.0f} µs")
    console().print(shown)
    return figures


async def _measured(kind: type[ByCost], queued: bool, count: int, engines: int, requests: int) -> dict[str, float]:
    rng, metrics = random.Random(0), Metrics()
    known = Engines([f"http://10.0.{number >> 8}.{number & 255}:8000" for number in range(engines)], metrics)
    router = Router([engine.url for engine in known.all])
    queue = Queue(known.all, router, metrics, CACHE_TOKENS) if queued else None
    choice = kind(known, router, queue, metrics)
    talks = [Conversation(number, rng) for number in range(count)]
    first = [talk.next() for talk in talks]
    gc.collect()
    tracemalloc.start()
    for route in first:
        await _served(choice, route)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    whole, ranking = [], []
    for talk in rng.choices(talks, k=requests):
        route = talk.next()
        began = time.thread_time_ns()
        ranked = await _served(choice, route)
        whole.append((time.thread_time_ns() - began) / 1e3)
        ranking.append((ranked - began) / 1e3)
    whole.sort()
    return {
        "p50_us": median(whole),
        "p99_us": whole[int(0.99 * len(whole))],
        "mean_us": sum(whole) / len(whole),
        "ranked_p50_us": median(ranking),
        "conversation_bytes": size,
    }


async def _served(choice: ByCost, route: Route) -> int:
    """Send one request to the first engine of its ranking; return the thread's time when that was known, ns."""
    engine = choice.ranked(route)[0]
    ranked = time.thread_time_ns()
    with choice.visiting(engine, route) as visit:
        await visit.turn()
        visit.begun()
        visit.part(ANSWER)
    return ranked
