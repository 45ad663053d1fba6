"""Returning turns with LMCache alone and with our controller: who waits how long, and what was fetched ahead.

Real vLLM, LMCache and sidecar on this machine's CPU, users who think for a while, and a mock of a remote store behind memory
that is as slow, chunk by chunk, as one is for a large model (:mod:`lpc.bench.lmcache_stack`). Both sides are asked the same
things, one after the other; the first turns, from which return curves are learnt, count on neither side. LMCache alone keeps
what a look-up has loaded in memory (``--l2-prefetch-policy retain``), which is not its default and better for it here.
"""

import asyncio
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from lpc.bench.chat_users import Habits, Talk, Turn, talk
from lpc.bench.lmcache_stack import CHUNK_BYTES, MODEL, Coordinator, Engine, Node
from lpc.bench.processes import Sidecar

MEMORY_CHUNKS: Final = 192
DISK_S_PER_CHUNK: Final = 0.033
"""80 MiB, a chunk of a model of 70 billion parameters (80 layers, 8 heads of 128, 2 bytes), at 2.5 GB/s."""
WARM_UP: Final = 260
"""Turns before anything counts: the return model begins to tell after 200."""
MEASURED: Final = 240
HABITS: Final = Habits(think_s=12.0)


def run(models: Path, model: str, *, quick: bool = False, seed: int = 1) -> dict[str, Any]:
    """Measure both sides; print and return the figures.

    Raises BenchmarkError: LMCache's environment has not been built, or a process does not start.
    """
    warm_up, measured = (WARM_UP, 60) if quick else (WARM_UP, MEASURED)
    sides = {}
    for side in ("lmcache", "learned"):
        print(f"{side}: starting vLLM, LMCache{' and the sidecar' if side == 'learned' else ''} ...", flush=True)
        sides[side] = _side(models, model, warm_up, measured, seed, learned=side == "learned")
        print(f"{side}: {sides[side]}", flush=True)
    before, after = sides["lmcache"], sides["learned"]
    figures = {
        "prefetched": after["prefetched"],
        "used": after["used"],
        "ttft_ratio": after["ttft_mean_s"] / before["ttft_mean_s"],
        "ttft_median_ratio": after["ttft_median_s"] / before["ttft_median_s"],
        "sides": sides,
    }
    share = figures["used"] / max(figures["prefetched"], 1)
    print(
        f"{share:.0%} of the bytes fetched ahead were used; time to first token of returning turns {figures['ttft_ratio']:.2f}"
    )
    return figures


def _side(models: Path, model: str, warm_up: int, measured: int, seed: int, *, learned: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lpc-")))
        settings: dict[str, Any] = {}
        if learned:
            sidecar = stack.enter_context(Sidecar(folder, models.absolute(), model, returns_refit_s=10))
            settings = {
                "predictor_address": sidecar.address,
                "lmcache_served_model": MODEL,
                "lmcache_tokenizer": folder / "model",
                "lmcache_refit_s": 10,
            }
        coordinator = stack.enter_context(Coordinator(folder, learned=learned, **settings))
        node = stack.enter_context(
            Node(
                folder,
                coordinator.url,
                memory=MEMORY_CHUNKS * CHUNK_BYTES,
                disk_bytes_per_s=CHUNK_BYTES / DISK_S_PER_CHUNK,
            )
        )
        engine = stack.enter_context(Engine(folder, node))
        begun: dict[str, Any] = {}

        def enough(done: Talk) -> bool:
            if learned and not begun and len(done.turns) >= warm_up:
                begun.update(coordinator.status)
            return len(done.turns) >= warm_up + measured

        done = asyncio.run(talk(engine.url, MODEL, HABITS, seed, enough))
        figures: dict[str, Any] = _ttft(done.turns[warm_up : warm_up + measured])
        figures["failed"] = done.failed
        if learned:
            ended = coordinator.status
            for name, key in (("prefetched", "prefetched_bytes"), ("used", "used_bytes"), ("useless", "useless_bytes")):
                figures[name] = _sum(ended, key) - _sum(begun, key)
            # What still waits is neither used nor useless, and counts for neither.
            figures["prefetched"] -= _sum(ended, "waiting_bytes") - _sum(begun, "waiting_bytes")
            memory = ended["memory_chunks"] - begun["memory_chunks"]
            disk = ended["disk_chunks"] - begun["disk_chunks"]
            figures["found_in_memory"] = memory / max(memory + disk, 1)
        return figures


def _ttft(turns: list[Turn]) -> dict[str, float]:
    waits = sorted(turn.ttft_s for turn in turns if turn.number > 1)
    return {
        "returning_turns": len(waits),
        "ttft_mean_s": statistics.mean(waits),
        "ttft_median_s": statistics.median(waits),
        "ttft_p90_s": waits[int(0.9 * len(waits))],
    }


def _sum(status: dict[str, Any], key: str) -> int:
    return sum(int(row[key]) for row in status["prefetch"])
