"""Benchmark `costs`: what a hit saves in real vLLM, as Figures 6 and 7 of Learned Prefix Caching (NeurIPS 2025) show it.

Time to the first token of a prompt behind a context that is cached, and that is not; prompt tokens/s by hit rate, measured and
by the simulator at the speed that vLLM has without hits. The model has the shape of a small real one and random weights, which
take the same time. vLLM has its own environment (`make engine`).
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks.engine import check_engine, in_engine
from lpc.wire.terminal import console
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.workload import Cost
from lpc_apps.tiny_llama import BLOCK

SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
"""Of SmolLM2-135M, without its vocabulary."""
CONTEXTS: Final = (512, 1024, 2048, 4096)
PROMPTS: Final = (32, 128, 512)
SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.9)
LENGTH: Final = 2048
SEATS: Final = 8


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure, print the tables, return the figures. Raises BenchmarkError: vLLM is not installed, or a run failed."""
    check_engine()
    screen = console()
    with tempfile.TemporaryDirectory() as name, screen.status("bench costs: several minutes"):
        folder = Path(name)
        model = in_engine("costs_model", folder=str(folder / "model"), shape=SHAPE)["model"]
        requests = SEATS if quick else 2 * SEATS
        figures = in_engine(
            "costs",
            model=model,
            contexts=CONTEXTS[:2] if quick else CONTEXTS,
            prompts=PROMPTS[:2] if quick else PROMPTS,
            rounds=1 if quick else 3,
            shares=SHARES[::2] if quick else SHARES,
            length=LENGTH,
            requests=requests,
            seats=SEATS,
        )
        speed = next(row["tokens_s"] for row in figures["rates"] if row["share"] == 0)
        for row in figures["rates"]:
            row["simulated"] = simulated(folder / "log.jsonl", row["share"], requests, speed)
    _show(figures)
    return figures


def simulated(path: Path, share: float, requests: int, speed: float) -> float:
    """Return the prompt tokens per second of prefill in the simulator, for requests with this share of cached tokens.

    Args:
        path: where the log of these requests is written.
        speed: prompt tokens per second without hits.
    """
    cached, blocks = int(share * LENGTH) // BLOCK, LENGTH // BLOCK
    rows = [_row(0, list(range(cached + 1)), 0.0)] if cached else []
    for number in range(1, requests + 1):
        own = 1_000 * number
        rows.append(_row(number, [*range(cached), *range(own, own + blocks - cached)], 1_000.0))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload, _ = build(WorkloadSpec(path, "qwen", count_from=1.0 if cached else 0.0))
    result = simulate(workload, 10**7, partial(REGISTRY["lru"], workload=workload, settings=PolicySettings()), cost=Cost(speed))
    return result.prompt_tokens / result.prefill_s


def _row(number: int, ids: list[int], at: float) -> dict[str, Any]:
    sizes = {"input_length": len(ids) * BLOCK, "output_length": 1, "block_size": BLOCK}
    return {"chat_id": number, "parent_chat_id": -1, "timestamp": at, "type": "text", "turn": 1, "hash_ids": ids, **sizes}


def _show(figures: dict[str, Any]) -> None:
    screen = console()
    table = Table("context", "prompt", "miss, s", "hit, s", "miss / hit", title="time to the first token")
    for row in figures["first"]:
        ratio = row["miss"] / row["hit"]
        table.add_row(f"{row['context']:,}", str(row["prompt"]), f"{row['miss']:.3f}", f"{row['hit']:.3f}", f"{ratio:.1f}")
    screen.print(table)
    table = Table("hit rate", "prompt tokens/s", "simulated", "measured / simulated", title=f"prompts of {LENGTH:,} tokens")
    for row in figures["rates"]:
        ratio = row["tokens_s"] / row["simulated"]
        table.add_row(f"{row['hit_rate']:.1%}", f"{row['tokens_s']:,.0f}", f"{row['simulated']:,.0f}", f"{ratio:.2f}")
    screen.print(table)
