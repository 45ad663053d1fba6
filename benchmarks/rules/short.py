"""`python -m benchmarks rules-short`: the plug-in on short logs, from which it learns little.

A log of REQUESTS requests is over before faint evidence is in: what the guard lets a rule lose is a larger share of it. Each
run is compared with LRU and with `turn-ttl` after the first 500 requests, and from the first request on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.rules.figures import Row, mean, singles, table
from benchmarks.rules.runs import code_digest, size_name
from lpc_apps.logs.formats import CONVERSATIONS, open_trace
from lpc_apps.simulator.amounts import in_tokens
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import ACTIVE, draw
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.spread import spread
from lpc_apps.simulator.workload import Workload, from_trace
from lpc_apps.simulator.workloads import EVERYDAY, WORKLOADS
from lpc_apps.simulator.workloads.timeline import WARM_UP_REQUESTS
from lpc_cli.outcome import note

REQUESTS: Final = 4_000
SIZES: Final = (0.01, 0.02, 0.03, 0.05, 0.08, 0.2)
"""Shares of the working set."""
POLICIES: Final = ("lru", "turn-ttl", "mq", "plugin")
PLUGIN: Final = "plugin"
ALLOWED: Final = 0.3
"""Points that the plug-in may be below LRU."""
THINK_TIME_S: Final = 100.0
GENERATED: Final = "generated"
"""Format of a generated workload, whose name is the file."""
AIPERF: Final = "aiperf"
STARTS: Final = "mooncake_conversation_trace.jsonl"
"""A log that is long enough for several parts."""
LOGS: Final = {
    "agent_sessions_2026.tar.gz": "agents",
    "coding_sessions.tar.gz": "agents",
    "claude_code_sessions.tar.gz": "agents",
    "chatbot_arena_even.jsonl.gz": CONVERSATIONS,
}
"""Logs that are drawn by seed, and their formats."""


class Part(NamedTuple):
    """A short log.

    Attributes:
        file: the file, or the name of a generated workload; None: sessions in AIPerf's format, drawn by seed.
        start: first request, of a log that has its own times.
        seed: seed of a log that is drawn.
    """

    file: Path | None
    format: str
    start: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        """Name in tables."""
        name = AIPERF if self.file is None else self.file.name.split(".")[0]
        return f"{name} from {self.start}" if self.start or self.format == "mooncake" else f"{name} seed {self.seed}"


def parts_of(folder: Path, starts: Sequence[int], seeds: Sequence[int], generated: Sequence[str]) -> list[Part]:
    """Return the short logs: of files in ``folder``, of AIPerf's kind, and of generated workloads."""
    found = [Part(folder / STARTS, "mooncake", start) for start in starts if (folder / STARTS).exists()]
    for seed in seeds:
        found += [Part(folder / log, kind, seed=seed) for log, kind in LOGS.items() if (folder / log).exists()]
        found.append(Part(None, AIPERF, seed=seed))
        found += [Part(Path(name), GENERATED, seed=seed) for name in generated]
    return found


@lru_cache(maxsize=1)
def build(part: Part, requests: int = REQUESTS) -> Workload:
    """Return the requests of a short log. Hits are counted after the first 500 of them."""
    if part.format == GENERATED:
        return {**WORKLOADS, **EVERYDAY}[str(part.file)](part.seed, requests=requests)
    if part.format == CONVERSATIONS:
        assert part.file is not None
        workload = draw(read_conversations(part.file), think_time=THINK_TIME_S, active=ACTIVE, seed=part.seed)
        second = THINK_TIME_S / ACTIVE  # of a request, on average
        workload.count_from, workload.until = WARM_UP_REQUESTS * second, requests * second
        return workload
    with TemporaryDirectory() as folder:
        file = part.file or aiperf_sessions(Path(folder) / "sessions.jsonl", part.seed, requests)
        trace = open_trace(file, part.format, seed=part.seed)
    first, *_ = chosen = trace.requests[part.start : part.start + requests]
    chosen = [replace(request, arrival=request.arrival - first.arrival) for request in chosen]
    trace = replace(trace, name=part.name, requests=chosen)
    return from_trace(trace, count_from=chosen[min(WARM_UP_REQUESTS, len(chosen) - 1)].arrival, decodes=trace.decodes)


def aiperf_sessions(file: Path, seed: int, requests: int) -> Path:
    """Write sessions in AIPerf's format: new tokens per row, tool calls and users between them; return the file.

    Parameters are assumptions: one of four tool sets of 1 to 4 blocks, files of 1 to 12, turns of 300 to 8,000
    new tokens, a third of the gaps those of users (median 40 s), the rest those of tools (2 s); 8 turns on average.
    """
    random = np.random.default_rng(seed)
    tools = [(1_000_000 * (1 + kind), int(random.integers(1, 5))) for kind in range(4)]
    fresh, at, session = 10_000_000, 0.0, 0
    rows: list[dict[str, Any]] = []
    while len(rows) < requests:
        session += 1
        at += float(random.exponential(4_000.0))
        begin, blocks = tools[int(random.choice(4, p=(0.5, 0.3, 0.15, 0.05)))]
        ids = list(range(begin, begin + blocks))
        own = int(random.integers(1, 13))
        ids += range(fresh, fresh + own)
        fresh += own
        row: dict[str, Any] = {"session_id": f"s{session}", "timestamp": round(at)}
        for _ in range(int(random.geometric(1 / 8))):
            row |= {"input_length": 512 * len(ids), "output_length": int(random.integers(50, 1_000)), "hash_ids": ids}
            rows.append(row)
            new = int(np.clip(random.lognormal(7.0, 1.0), 300, 8_000)) // 512 + 1
            ids = list(range(fresh, fresh + new))
            fresh += new
            median = 40_000.0 if random.random() < 1 / 3 else 2_000.0
            row = {"session_id": f"s{session}", "delay": round(random.lognormal(np.log(median), 1.0))}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def run_one(part: Part, policy: str, size: float) -> Row:
    """Return the row of a run: ``hit_rate`` after the first 500 requests, ``whole_hit_rate`` from the first one on."""
    workload = build(part)
    capacity = in_tokens(size, workload.working_set_tokens())
    settings = PolicySettings()
    result = simulate(workload, capacity, lambda blocks: REGISTRY[policy](blocks, workload, settings))
    figures = result.figures()
    return {
        "workload": part.name,
        "share": size,
        "seed": part.seed,
        "label": policy,
        **{name: figures[name] for name in ("hit_rate", "whole_hit_rate", "requests", "refused")},
    }


def run(parts: Sequence[Part], sizes: Sequence[float] = SIZES, *, jobs: int) -> dict[str, Any]:
    """Run everything and print the tables; return rows and summary."""
    tasks = [(run_one, (part, policy, size)) for part in parts for size in sizes for policy in POLICIES]
    rows: list[Row] = [{} for _ in tasks]
    for done, (place, row) in enumerate(spread(tasks, jobs), 1):
        rows[place] = row
        note(f"{done}/{len(tasks)}: {row['workload']} {size_name(row['share'])} {row['label']}: {row['hit_rate']:.2%}")
    print("\n".join(report(rows)))
    return {"code": code_digest(), "summary": summary(rows), "rows": rows}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the plug-in's mean distance from LRU, its worst runs, and how many are more than ALLOWED below, points."""
    found = sorted((one for one in singles(rows) if one.label == PLUGIN), key=lambda one: one.gain)
    return {
        "runs": len(found),
        "mean_gain": mean(one.gain for one in found),
        "below": sum(one.gain < -ALLOWED for one in found),
        "worst": [one._asdict() | {"gain": one.gain} for one in islice(found, 5)],
    }


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tables."""
    found = summary(rows)
    yield f"{REQUESTS} requests a log: hit rate after the first {WARM_UP_REQUESTS}, % of prompt tokens. Code {code_digest()}."
    yield ""
    found_at = {(row["workload"], row["share"], row["label"]): row for row in rows}
    lines = []
    for name, size in dict.fromkeys((row["workload"], row["share"]) for row in rows):
        each = [100 * found_at[name, size, label]["hit_rate"] for label in POLICIES]
        whole = [100 * found_at[name, size, label]["whole_hit_rate"] for label in (POLICIES[0], PLUGIN)]
        distances = [f"{rates[-1] - rates[0]:+.2f}" for rates in (each, whole)]
        lines.append([f"{name} {size_name(size)}", *(f"{one:.2f}" for one in each), *distances])
    yield table(["log, cache", *POLICIES, f"{PLUGIN} - lru", "from the first request"], lines)
    yield ""
    yield (
        f"Mean gain over LRU of {found['runs']} runs: {found['mean_gain']:+.2f}. Runs more than {ALLOWED} below LRU: "
        f"{found['below']}."
    )
    for one in found["worst"]:
        yield f"- {one['workload']} {size_name(one['size'])}: {one['gain']:+.2f} (LRU {one['lru']:.2f})"
