"""Benchmark `engine`: the plug-in in real vLLM against stock vLLM, on the same real conversations.

vLLM lives in an environment of its own (`make engine`) and runs there in a process of its own
(`benchmarks.engine_run`). The model is a two-layer Llama with random weights and a byte-level tokenizer: what is compared
is the cache, and the tokens only to see that they are the same. Conversations: a sample of ShareGPT's evaluation half, all
their turns (a conversation cut short would end where the predictor rightly expects it to go on), each user turn cut to 200
bytes; the replies are the model's own, 24 tokens. 48 are under way at a time, think times are exponential, 100 s at the mean.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.processes import Sidecar
from lpc.logs.datasets.conversation import conversation_key, split_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.wire.terminal import console

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = ROOT / ".venv-engine" / "bin" / "python"
TURN_BYTES: Final = 200
CAPACITIES: Final = (480, 800, 1200)
"""Blocks of 32 tokens."""
REQUESTS: Final = 1200
QUICK_CAPACITIES: Final = (240,)
"""So few requests fill no more: with 480 blocks nothing would be evicted that anybody asks for again."""
QUICK_REQUESTS: Final = 320
LONGEST: Final = 7000
"""Tokens of a conversation; longer ones are left out."""
REPLY_BYTES: Final = 24
"""Tokens of each reply (`engine_hits.REPLY`)."""


def conversations(requests: int, tokenizer: Path) -> dict[str, list[list[int]]]:
    """Return the token ids of each user turn of whole conversations, which make at least so many requests.

    They come in the order of their keys' second half, which is as good as random and has no part in the split.
    """
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(tokenizer))
    sample = []
    for conversation in load_sharegpt():
        prompts = [content for role, content in conversation.messages if role == "user" and content.strip()]
        if prompts and conversation.ended and split_of(key := conversation_key(prompts[0])) == "evaluation":
            sample.append((key[len(key) // 2 :], prompts))
    chosen: dict[str, list[list[int]]] = {}
    count = 0
    for _, prompts in sorted(sample):
        turns = [_ids(tokens, text, first=i == 0) for i, text in enumerate(prompts)]
        if sum(len(turn) + REPLY_BYTES for turn in turns) > LONGEST:
            continue
        chosen[f"c{len(chosen)}"] = turns
        count += len(turns)
        if count >= requests:
            break
    return chosen


def _ids(tokens: "Tokenizer", text: str, *, first: bool) -> list[int]:
    cut = text.encode()[:TURN_BYTES].decode(errors="ignore")
    before = "<|system|>You are a helpful assistant. Answer briefly.<|end|>" if first else "<|end|>"
    ids: list[int] = tokens.encode(f"{before}<|user|>{cut}<|end|><|assistant|>").ids
    return ids


SHOWN: Final = (
    *("tokens_identical", "eviction_order_identical", "step_time_ratio", "waiting_step_time_ratio", "joining_ms"),
    *("free_ratio", "allocate_ratio"),
)


def run(models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Measure; print tables; return the figures.

    Raises:
        BenchmarkError: vLLM is not installed in .venv-engine, or a run failed.
    """
    check_engine()
    screen = console()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        tiny = tiny_model(Path(folder))
        texts = Path(folder) / "conversations.json"
        texts.write_text(json.dumps(conversations(QUICK_REQUESTS if quick else REQUESTS, tiny / "tokenizer.json")))
        sidecar = stack.enter_context(Sidecar(Path(folder), models, model, served_models={"tiny": str(tiny)}))
        job = {"model": str(tiny), "conversations": str(texts), "capacities": QUICK_CAPACITIES if quick else CAPACITIES}
        with screen.status("bench engine: several minutes"):
            figures = in_engine("compare", **job, predictor=sidecar.address, rounds=1 if quick else 5)
    rows = figures["rows"]
    usual = [row for row in rows if row["think_s"] == max(row["think_s"] for row in rows)]
    figures["cached_tokens"] = {name: sum(row["cached_tokens"][name] for row in usual) for name in rows[0]["cached_tokens"]}
    _show(screen, figures)
    return figures


def check_engine() -> None:
    """Raise BenchmarkError where vLLM is not installed."""
    if not PYTHON.exists():
        raise BenchmarkError(f"vLLM is not installed in {PYTHON.parents[2].name}: run make engine first")


def tiny_model(folder: Path) -> Path:
    """Write the tiny Llama with its weights, and return where. Raises BenchmarkError."""
    made = folder / "tiny"
    program = f"from pathlib import Path; from benchmarks.tiny_llama import build; build(Path({str(made)!r}), weights=True)"
    _python(["-c", program])
    return made


def in_engine(run: str, **arguments: object) -> dict[str, Any]:
    """Run a function of `engine_run.RUNS` where vLLM is installed; return its figures. Raises BenchmarkError."""
    command = ["-m", "benchmarks.engine_run", json.dumps({"run": run, **arguments})]
    figures: dict[str, Any] = json.loads(_python(command).strip().splitlines()[-1])
    return figures


def _python(arguments: list[str]) -> str:
    # Sets of names have one order in all runs, else not even vLLM's own tier evicts the same twice.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    ended = subprocess.run([PYTHON, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True)
    if ended.returncode < 0:
        raise BenchmarkError(f"the run in .venv-engine was killed by signal {-ended.returncode}")
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise BenchmarkError(f"the run in .venv-engine failed: {lines[-1] if lines else ended.returncode}")
    return ended.stdout


def _show(screen: Console, figures: dict[str, Any]) -> None:
    hits = Table(title="tokens served from the cache")
    sides = list(figures["cached_tokens"])
    for column in ("blocks", "think s", "prompt tokens", *sides):
        hits.add_column(column, justify="right")
    for row in figures["rows"]:
        stock = row["cached_tokens"]["stock"]
        cells = [f"{row['cached_tokens'][side]:,} ({100 * (row['cached_tokens'][side] / stock - 1):+.1f}%)" for side in sides]
        hits.add_row(f"{row['blocks']:,}", f"{row['think_s']:g}", f"{row['prompt_tokens']:,}", *cells)
    screen.print(hits)
    for name in SHOWN:
        screen.print(f"{name}: {figures[name]}")
