"""Benchmark `prefetch`: returning turns with LMCache alone and with our controller: latency and use of fetches ahead.

Real vLLM, LMCache and sidecar run on this machine's CPU, with users who think between turns. A mock of a remote store behind
memory is as slow per chunk as for a large model (:mod:`benchmarks.lmcache_stack`). Both sides get the same requests, one side
after the other. Every second round inverts the order, and each round has other users. The first turns, which train the reuse
curves, do not count.

LMCache alone keeps chunks in memory that a look-up has loaded (``--l2-prefetch-policy retain``), which is not its default but
better here. Its coordinator runs our controller only to count where chunks were found: it fetches nothing, and deletes nothing,
since its watermark is above LMCache's own. Our side fills as much memory as LMCache's own eviction leaves on average
(:data:`LEARNED_WATERMARK`).
"""

import asyncio
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.chat_users import Habits, Talk, Turn, talk
from benchmarks.lmcache_stack import CHUNK_BYTES, MODEL, Coordinator, Engine, Node
from benchmarks.processes import Sidecar

MEMORY_CHUNKS: Final = 192
DISK_S_PER_CHUNK: Final = 0.033
"""Delay per chunk: 80 MiB, as for a model of 70 billion parameters (80 layers, 8 heads of 128, 2 bytes), at 2.5 GB/s."""
WARM_UP: Final = 260
"""Warm-up turns, which do not count."""
MEASURED: Final = 240
HABITS: Final = Habits(think_s=12.0)
LEARNED_TRIGGER: Final = 0.95
"""LMCache's own watermark on our side: higher than ours by what is stored until our controller reacts."""
LEARNED_WATERMARK: Final = 0.73
"""Our watermark: on average as much memory is filled as under LMCache's own eviction."""
SIDES: Final = ("lmcache", "learned")
_SUMS: Final = ("prefetched", "used", "useless", "returning_turns", "memory_chunks", "disk_chunks", "failed")

Figures = dict[str, Any]


def run(models: Path, model: str, *, quick: bool = False, seed: int = 1, rounds: int = 2) -> Figures:
    """Measure both sides ``rounds`` times; print and return the figures.

    Raises:
        BenchmarkError: LMCache's environment does not exist, or a process does not start.
    """
    measured = 60 if quick else MEASURED
    found: dict[str, list[Figures]] = {side: [] for side in SIDES}
    for place in range(rounds):
        for side in SIDES[:: -1 if place % 2 else 1]:
            print(f"{side}: starting vLLM, LMCache{' and the sidecar' if side == 'learned' else ''} ...", flush=True)
            found[side].append(_side(models, model, measured, seed + place, learned=side == "learned"))
            print(f"{side}: {_told(found[side][-1])}", flush=True)
    return _figures(found)


def _figures(found: Mapping[str, list[Figures]]) -> Figures:
    """Return the figures of all rounds: sums of counts, and means of times over all returning turns."""
    sides = {side: _together(rounds) for side, rounds in found.items()}
    before, after = sides["lmcache"], sides["learned"]
    figures = {
        "prefetched": after["prefetched"],
        "used": after["used"],
        "used_share": after["used"] / max(after["prefetched"], 1),
        "ttft_ratio": after["ttft_mean_s"] / before["ttft_mean_s"],
        "ttft_median_ratio": after["ttft_median_s"] / before["ttft_median_s"],
        "found_in_memory": {side: figures["found_in_memory"] for side, figures in sides.items()},
        "sides": sides,
        "rounds": {side: [_told(figures) for figures in rounds] for side, rounds in found.items()},
    }
    print(
        f"{figures['used_share']:.0%} of the bytes fetched ahead were used; returning turns found "
        f"{after['found_in_memory']:.0%} of their chunks in memory instead of {before['found_in_memory']:.0%}, and waited "
        f"{figures['ttft_ratio']:.2f} times as long for the first token (median {figures['ttft_median_ratio']:.2f})"
    )
    return figures


def _together(rounds: list[Figures]) -> Figures:
    waits = sorted(wait for figures in rounds for wait in figures["waits"])
    sums: Figures = {name: sum(figures.get(name, 0) for figures in rounds) for name in _SUMS}
    return {
        **sums,
        "found_in_memory": sums["memory_chunks"] / max(sum(figures["chunks"] for figures in rounds), 1),
        "ttft_mean_s": statistics.mean(waits),
        "ttft_median_s": statistics.median(waits),
        "ttft_p90_s": waits[int(0.9 * len(waits))],
    }


def _told(figures: Figures) -> Figures:
    return {name: value for name, value in figures.items() if name != "waits"}


def _side(models: Path, model: str, measured: int, seed: int, *, learned: bool) -> Figures:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lpc-")))
        settings: Figures = {"lmcache_prefetch_share": 0, "lmcache_watermark": 0.99}
        options = ["--eviction-trigger-watermark", str(LEARNED_TRIGGER)] if learned else []
        if learned:
            sidecar = stack.enter_context(Sidecar(folder, models.absolute(), model))
            settings = {
                "predictor_address": sidecar.address,
                "served_model": MODEL,
                "lmcache_tokenizer": folder / "model",
                "lmcache_watermark": LEARNED_WATERMARK,
            }
        coordinator = stack.enter_context(Coordinator(folder, learned=True, **settings))
        node = stack.enter_context(
            Node(
                folder,
                coordinator.url,
                memory=MEMORY_CHUNKS * CHUNK_BYTES,
                disk_bytes_per_s=CHUNK_BYTES / DISK_S_PER_CHUNK,
                options=options,
            )
        )
        engine = stack.enter_context(Engine(folder, node))
        begun: Figures = {}

        def enough(done: Talk) -> bool:
            if not begun and len(done.turns) >= WARM_UP:
                begun.update(coordinator.status)
            return len(done.turns) >= WARM_UP + measured

        done = asyncio.run(talk(engine.url, MODEL, HABITS, seed, enough))
        ended = coordinator.status
        figures: Figures = _ttft(done.turns[WARM_UP : WARM_UP + measured])
        figures["failed"] = done.failed
        for name in ("memory_chunks", "disk_chunks"):
            figures[name] = ended[name] - begun[name]
        figures["chunks"] = figures["memory_chunks"] + figures["disk_chunks"]
        figures["found_in_memory"] = figures["memory_chunks"] / max(figures["chunks"], 1)
        # Fetched chunks that may still be used count neither as used nor as unused.
        for name in ("used", "useless"):
            figures[name] = _sum(ended, f"{name}_bytes") - _sum(begun, f"{name}_bytes")
        figures["prefetched"] = figures["used"] + figures["useless"]
        figures["evicted_by_lmcache"] = sum(row["lost_bytes"] for row in ended["tiers"] if row["tier"] == "l1")
        figures["failures"] = ended["failures"]
        return figures


def _ttft(turns: list[Turn]) -> Figures:
    waits = sorted(turn.ttft_s for turn in turns if turn.number > 1)
    return {
        "returning_turns": len(waits),
        "ttft_mean_s": statistics.mean(waits),
        "ttft_median_s": statistics.median(waits),
        "ttft_p90_s": waits[int(0.9 * len(waits))],
        "waits": waits,
    }


def _sum(status: Figures, key: str) -> int:
    return sum(int(row[key]) for row in status["prefetch"])
