"""AIPerf as a client of a running `vllm serve`: agentic-code in a closed loop, against stock vLLM and the plug-in.

A load is fitted to the model and to the memory: lengths and delays of agentic-code are divided by one number, so that the
longest prompt fits the model's context. Then the contexts of the sessions at a time are some multiple of the engine's blocks.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx2

from benchmarks import BenchmarkError, aiperf
from benchmarks.fleet import HttpServer
from benchmarks.rules.figures import mean, table
from lpc_apps.logs.formats import open_trace
from testing.processes import free_port

SIDES: Final = {"stock": False, "plug-in": True}
"""Sides by name, and whether they have the plug-in. The first is the baseline."""
SCHEDULER: Final = "eviction_client.engines.vllm.LearnedScheduler"
MODEL: Final = "bench"
LONGEST: Final = 200_000
"""Tokens of the longest prompt of agentic-code (`max_prompt_tokens`)."""
MEAN: Final = 114_000
"""Tokens of its mean prompt."""
FILLED: Final = 0.8
"""Share of the model's context for the longest prompt. The rest is for its reply, for the chat template, and because text that
AIPerf makes of tokens may have more of them."""
AT_ONCE: Final = 32
LEAST_AT_ONCE: Final = 8
SESSIONS: Final = 8
"""Generated sessions, times the sessions at a time."""
SEED: Final = 42
START_S: Final = 120.0
"""Seconds that AIPerf may take in addition to the load: it makes the text, and writes its figures."""


@dataclass(frozen=True)
class Engine:
    """An engine that serves a load.

    Attributes:
        python: that has vLLM.
        model: folder with weights, config and tokenizer.
        context: tokens of the longest prompt and its reply.
        block: tokens of a block.
        options: further options of `vllm serve`, by name.
        environment: variables of its process.
    """

    python: str
    model: Path
    context: int
    block: int
    options: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """Sessions of agentic-code.

    Attributes:
        file: the sessions, in AIPerf's form.
        divisor: number by which lengths and delays are divided.
        at_once: sessions at a time; ``contexts``: their tokens, with the mean prompt of the file.
        seconds: length of the load.
    """

    file: Path
    divisor: int
    at_once: int
    contexts: int
    seconds: float


class VllmServer(HttpServer):
    """`vllm serve` with the engine's own processes."""

    start_s: ClassVar[float] = 600.0
    family: ClassVar[bool] = True

    @property
    def processor_s(self) -> float:
        """Return the processor time that its running processes have used, seconds."""
        ticks = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended
                fields = file.read_text().rpartition(")")[2].split()
                ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) == self.group)
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def group(self) -> int:
        """Return the number of its process group."""
        assert self._process is not None
        return self._process.pid


def fitted(context: int, room: float, least_times: float) -> tuple[int, int]:
    """Return the divisor of the lengths, and the number of sessions at a time.

    Args:
        context: tokens of the model's context.
        room: tokens for which the engine has memory.
        least_times: least multiple of the cache that is served, for which the pool is largest.
    """
    divisor = max(math.ceil(LONGEST / (FILLED * context)), 1)
    while (at_once := min(least_times * room * divisor / MEAN, AT_ONCE)) < LEAST_AT_ONCE:
        divisor += 1
    return divisor, int(at_once)


def load_of(folder: Path, divisor: int, at_once: int, seconds: float) -> Load:
    """Generate the sessions of a load. Raises BenchmarkError: AIPerf is not installed, or failed."""
    config = aiperf.BUILT_IN
    if divisor > 1:
        config = str(aiperf.shrunk(folder, tokens=divisor, delays=divisor))
    file = aiperf.synthesized(folder, sessions=SESSIONS * at_once, seed=SEED, config=config)
    tokens = mean(request.input_tokens for request in open_trace(file, "aiperf").requests)
    return Load(file, divisor, at_once, round(at_once * tokens), seconds)


def served(folder: Path, engine: Engine, load: Load, *, times: float, learned: bool, seconds: float) -> dict[str, Any]:
    """Serve a load, and return AIPerf's figures, and the share of prompt tokens that the engine had cached.

    Args:
        folder: for logs and AIPerf's files.
        times: contexts of the load, in multiples of the engine's blocks.
        learned: with the plug-in and its defaults; else stock.
        seconds: time limit of AIPerf, without the start of the engine.

    Raises:
        Unavailable: the engine does not serve.
        BenchmarkError: AIPerf failed, or the engine answered requests with errors.
    """
    name = f"{times:g}-{'plugin' if learned else 'stock'}"
    blocks = max(math.ceil(load.contexts / times / engine.block), math.ceil(engine.context / engine.block) + 1)
    with server(folder / f"vllm-{name}.log", engine, blocks, learned=learned) as started:
        before, used = counters(started.url), started.processor_s
        figures = profiled(folder / name, started.url, engine.model, load, block=max(512 // load.divisor, 1), seconds=seconds)
        after, used = counters(started.url), started.processor_s - used
    asked = after["queries"] - before["queries"]
    return {
        "blocks": blocks,
        **figures,
        "cached_share": (after["hits"] - before["hits"]) / asked if asked else 0.0,
        "prompt_tokens_processor_s": figures["prompt_tokens"] / used,
    }


def server(log: Path, engine: Engine, blocks: int, *, learned: bool) -> VllmServer:
    """Return `vllm serve` with this many blocks, not started."""
    port = free_port()
    words = [engine.python, "-m", "vllm.entrypoints.cli.main", "serve", str(engine.model), "--served-model-name", MODEL]
    words += ["--port", str(port), "--host", "127.0.0.1", "--max-model-len", str(engine.context)]
    words += ["--block-size", str(engine.block), "--num-gpu-blocks-override", str(blocks)]
    words += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    words += ["--scheduler-cls", SCHEDULER] if learned else []
    for option, value in engine.options.items():
        words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return VllmServer(log, port, words, HF_HUB_OFFLINE="1", **engine.environment)


def counters(url: str) -> dict[str, float]:
    """Return the prompt tokens that an engine has looked up in its cache, and those that it found: queries and hits."""
    text = httpx2.get(f"{url}/metrics", timeout=60.0, trust_env=False).text
    return {
        name: sum(float(value) for value in re.findall(rf"(?m)^vllm:prefix_cache_{name}_total\S* (\S+)$", text))
        for name in ("queries", "hits")
    }


def profiled(folder: Path, url: str, model: Path, load: Load, *, block: int, seconds: float) -> dict[str, Any]:
    """Send a load with `aiperf profile`; return its figures. Raises BenchmarkError.

    Args:
        folder: for AIPerf's files.
        model: folder with the tokenizer.
        block: tokens of a block of the file.
        seconds: time limit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        "profile",
        "--model",
        MODEL,
        "--tokenizer",
        aiperf.TOKENIZER,
        "--url",
        url,
        "--endpoint-type",
        "chat",
        "--streaming",
    ]
    words += ["--input-file", str(load.file), "--custom-dataset-type", "mooncake-trace", "--isl-block-size", str(block)]
    # Rows have times, by which AIPerf would otherwise start all sessions at once.
    words += ["--no-fixed-schedule", "--concurrency", str(load.at_once)]
    words += ["--benchmark-duration", f"{load.seconds:g}", "--benchmark-grace-period", "0", "--random-seed", str(SEED)]
    words += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-gpu-telemetry", "--ui", "none"]
    words += ["--output-artifact-dir", str(folder)]
    written = folder / "profile_export_aiperf.json"
    written.unlink(missing_ok=True)
    aiperf.ran(words, folder / "aiperf.log", seconds=seconds, hub=aiperf.hub_with(folder / "hub", model))
    if not written.exists():
        raise BenchmarkError(f"aiperf profile wrote no figures (see {folder / 'aiperf.log'})")
    return figures_of(json.loads(written.read_text()))


def figures_of(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that are shown, of those that AIPerf writes: seconds, tokens, and rates per second.

    Raises:
        BenchmarkError: requests failed, or none was answered.
    """

    def of(name: str, statistic: str = "avg") -> float:
        return float((written.get(name) or {}).get(statistic) or 0.0)

    if failed := of("error_request_count"):
        raise BenchmarkError(
            f"{failed:.0f} of {of('completed_request_count'):.0f} requests failed: {written.get('error_summary')}"
        )
    if not of("request_count"):
        raise BenchmarkError("no request was answered in the time of the load")
    return {
        "requests": round(of("request_count")),
        "requests_s": of("request_throughput"),
        "prompt_tokens": round(of("total_isl")),
        "prompt_tokens_s": of("input_token_throughput"),
        "first_token_mean_s": of("time_to_first_token") / 1000,
        "first_token_p99_s": of("time_to_first_token", "p99") / 1000,
        "latency_mean_s": of("request_latency") / 1000,
        "latency_p99_s": of("request_latency", "p99") / 1000,
        "seconds": of("benchmark_duration"),
    }


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown. A row has ``times``, ``side`` and the figures of :func:`served`; sides follow stock."""
    per = ("prompt_tokens_s", "prompt_tokens_processor_s")
    heads = ["contexts / cache", "side", "requests", "cached", "prompt tokens/s", "per processor second"]
    heads += ["first token mean, p99", "latency mean, p99"]
    lines: list[list[str]] = []
    stock: Mapping[str, Any] = {}
    for row in rows:
        stock = row if row["side"] == "stock" else stock
        lines.append(
            [
                *(f"{row['times']:g}", row["side"], f"{row['requests']:,}", f"{row['cached_share']:.1%}"),
                *(f"{row[name]:,.0f} ({row[name] / stock[name]:.2f})" if stock else f"{row[name]:,.0f}" for name in per),
                f"{row['first_token_mean_s']:.2f} s, {row['first_token_p99_s']:.2f} s",
                f"{row['latency_mean_s']:.2f} s, {row['latency_p99_s']:.2f} s",
            ]
        )
    return table(heads, lines)


def tiny(python: str, model: Path) -> Engine:
    """Return an engine with the tiny model on a CPU."""
    options = {"enforce-eager": True, "dtype": "float32", "kv-cache-memory-bytes": 2**28, "max-num-seqs": 64}
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return Engine(python, model, 4096, 32, options, quiet)


def run(folder: Path, engine: Engine, load: Load, *, live: Sequence[float], note: Any = print) -> list[dict[str, Any]]:
    """Serve a load by stock and by the plug-in at each multiple of the cache; print the table, and return its rows.

    Raises:
        Unavailable, BenchmarkError: see :func:`served`.
    """
    rows = []
    for times in live:
        for side, learned in SIDES.items():
            found = served(folder, engine, load, times=times, learned=learned, seconds=load.seconds + START_S)
            rows.append({"times": times, "side": side, **found})
            note(f"{side}, {times:g} times: {found['prompt_tokens_s']:,.0f} prompt tokens/s")
    return rows
