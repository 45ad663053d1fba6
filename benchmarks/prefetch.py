"""Benchmark `prefetch`: LMCache loads a prompt while its request waits, with a backlog on the real stack.

Real vLLM with a tiny model and few seats, LMCache 0.5.6 in MP mode with a slow store behind its memory, and users who chat
(`benchmarks.chat_users`), each in real time. Sides: LMCache alone and with the controller, each without and with
``lmcache.mp.eager_prefetch``. Each side has processes of its own, one after the other. A step takes the time of a larger model
(`benchmarks.paced_scheduler`).
"""

import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.chat_users import Habits, reply_of, script
from benchmarks.lmcache_counted import LEARNED_TRIGGER, LEARNED_WATERMARK
from lpc.wire.terminal import console
from testing.lmcache_stack import CHUNK_BYTES, MODEL, Coordinator, Engine, Node

HABITS: Final = Habits(users=36, think_s=14.0, reply=24)
SEATS: Final = 2
"""Most requests that vLLM serves at a time."""
MEMORY: Final = 240
"""Chunks of LMCache's memory: about half of the users' prompts."""
DISK_S: Final = 0.04
"""Seconds to load a chunk."""
POOL: Final = 900
"""Blocks of vLLM's own cache: what its running requests need and little more."""
TURNS: Final = 500
QUICK_TURNS: Final = 120
COUNT_FROM: Final = 0.4
"""Share of the turns that is warm-up and does not count."""
SEEDS: Final = (6, 7)
DETAILS: Final = "--enable-prompt-tokens-details"
PACED: Final = "benchmarks.paced_scheduler.PacedScheduler"
EAGER: Final = {"lmcache.mp.eager_prefetch": True}


@dataclass(frozen=True)
class Side:
    """One side. ``learned``: with the controller; ``connector``: further configuration of LMCache's connector in vLLM."""

    learned: bool = False
    connector: Mapping[str, Any] = field(default_factory=dict)


SIDES: Final = {
    "LMCache alone": Side(),
    "eager prefetch": Side(connector=EAGER),
    "controller": Side(learned=True),
    "controller, eager prefetch": Side(learned=True, connector=EAGER),
}


class Answer(NamedTuple):
    """Seconds to the first token; tokens of the prompt, and of those found in a cache."""

    first_token_s: float
    prompt: int
    cached: int


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all sides; print a table; return the figures, times in seconds.

    Raises:
        BenchmarkError: LMCache's environment is missing, or a process failed.
    """
    turns, seeds = (QUICK_TURNS, SEEDS[:1]) if quick else (TURNS, SEEDS)
    screen = console()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    for seed, (name, side) in itertools.product(seeds, SIDES.items()):
        started = time.monotonic()
        rows[name].append(_measure(side, seed, turns))
        screen.print(f"seed {seed}, {name}: {rows[name][-1]} in {time.monotonic() - started:.0f} s")
    stock = rows["LMCache alone"]
    table = Table(
        *("", "first token, mean", "of LMCache alone", "worst seed", "p95", "requests/s"),
        title=f"{HABITS.users} users, {SEATS} seats, memory of {MEMORY} chunks",
    )
    for name, found in rows.items():
        ratios = [mine["ttft_mean_s"] / its["ttft_mean_s"] for mine, its in zip(found, stock, strict=True)]
        table.add_row(
            name,
            f"{statistics.fmean(row['ttft_mean_s'] for row in found):.2f} s",
            f"{statistics.fmean(ratios):.2f}",
            f"{max(ratios):.2f}",
            f"{statistics.fmean(row['ttft_p95_s'] for row in found):.2f} s",
            f"{statistics.fmean(row['requests_per_s'] for row in found):.2f}",
        )
    screen.print(table)
    return {"users": HABITS.users, "seats": SEATS, "memory_chunks": MEMORY, "disk_s": DISK_S, "seeds": seeds, "sides": rows}


def _measure(side: Side, seed: int, turns: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as running:
        folder = Path(temporary)
        more: dict[str, Any] = {"lmcache_watermark": LEARNED_WATERMARK} if side.learned else {}
        coordinator = running.enter_context(Coordinator(folder, learned=side.learned, **more))
        node = running.enter_context(
            Node(
                *(folder, coordinator.url),
                memory=MEMORY * CHUNK_BYTES,
                disk_bytes_per_s=CHUNK_BYTES / DISK_S,
                options=("--eviction-trigger-watermark", str(LEARNED_TRIGGER)) if side.learned else (),
            )
        )
        options = (*("--max-num-seqs", str(SEATS)), *("--scheduler-cls", PACED), *("--no-async-scheduling", DETAILS))
        engine = running.enter_context(Engine(folder, node, blocks=POOL, options=options, connector=side.connector))
        return asyncio.run(_chat(engine, seed, turns))


async def _chat(engine: Engine, seed: int, turns: int) -> dict[str, Any]:
    answers: list[Answer | None] = []
    """Answer before each turn in order; None: the first turn of a conversation."""
    done = asyncio.Event()
    counted_from = 0.0

    async def user(number: int, client: httpx2.AsyncClient) -> None:
        nonlocal counted_from
        says = script(HABITS, seed * 10_000 + number)
        said = next(says)
        while True:
            await asyncio.sleep(said.wait_s)
            answer = await _ask(client, engine.url, said.prompt)
            answers.append(answer if said.number > 1 else None)
            if len(answers) == int(COUNT_FROM * turns):
                counted_from = time.monotonic()
            if len(answers) >= turns:
                done.set()
            said = says.send(reply_of(HABITS.reply))

    async with httpx2.AsyncClient(
        timeout=300, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    ) as client:
        users = [asyncio.create_task(user(number, client)) for number in range(HABITS.users)]
        finished = asyncio.create_task(done.wait())
        await asyncio.wait([finished, *users], return_when=asyncio.FIRST_COMPLETED)
        lasted = time.monotonic() - counted_from
        for task in users:
            if task.done():
                task.result()  # a user ends only by an error
            task.cancel()
    counted = answers[int(COUNT_FROM * turns) : turns]
    returning = [answer for answer in counted if answer is not None]
    waits = sorted(answer.first_token_s for answer in returning)
    return {
        "returning_turns": len(returning),
        "ttft_mean_s": round(statistics.fmean(waits), 3),
        "ttft_p95_s": round(waits[int(0.95 * len(waits))], 3),
        "cached": round(sum(answer.cached for answer in returning) / sum(answer.prompt for answer in returning), 3),
        "requests_per_s": round(len(counted) / lasted, 3),
    }


async def _ask(client: httpx2.AsyncClient, url: str, prompt: str) -> Answer:
    """Return what the reply shows; it is read whole. Raises BenchmarkError if the engine refuses."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": HABITS.reply, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    used: dict[str, Any] = {}
    started, first = time.monotonic(), None
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.status_code != httpx2.codes.OK:
            raise BenchmarkError(f"vLLM answers {answer.status_code}: {json.dumps((await answer.aread()).decode()[:200])}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.monotonic() - started
                used = json.loads(line[6:]).get("usage") or used
    if first is None:
        raise BenchmarkError("vLLM ended a reply without a token")
    cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(first, used["prompt_tokens"], cached)
