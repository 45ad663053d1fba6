"""`python -m benchmarks rules-chat`: conversations without times, drawn as in the LPC paper, at seven sizes of the cache.

On average 200 conversations are active, think times are exponential with a mean of 100 s, and 20 minutes are counted.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.rules.figures import Row, against_best, by_seed, mean, table
from benchmarks.rules.runs import code_digest, label, rows_of, size_name
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import save_sample
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec

SIZES: Final = (20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 160_000)
"""Tokens."""
POLICIES: Final = ("lru", "turn-ttl", "mq", "lpc", "plugin", "plugin-sidecar")
PREDICTED: Final = ("lpc", "plugin-sidecar")
"""Policies that use a head's probabilities. Without a head, `lpc` uses shares by turn number."""
HEAD: Final = ", head"
"""End of the label of a policy with a head."""
READING: Final = (
    *("lpc_apps/logs", "lpc/model", "lpc_apps/training"),
    *("lpc_apps/simulator/conversation_log.py", "lpc_apps/simulator/conversations.py"),
)
"""Sources that the tokens and probabilities of conversations depend on."""


def run(
    file: Path, head: Path | None, seeds: Sequence[int], *, held_out: bool, models: Path, jobs: int, stored: Path
) -> dict[str, Any]:
    """Run everything and print the tables; return rows and summary.

    Args:
        head: file of a head that was trained on other conversations; None: no predictions from text.
        held_out: draw only conversations that `lpc train` holds out.
        models: model repository, for the encoder's files.
    """
    plain = counted(file, None, models, stored.parent, held_out=held_out)
    scored = None if head is None else counted(file, head, models, stored.parent, held_out=held_out)

    def named(run: SimulationRun) -> str:
        return label(run) + HEAD * (scored is not None and run.workload.conversations == scored)

    rows = rows_of(runs_of(plain, scored, seeds), stored, jobs=jobs, label=named)
    log, *_ = [row.pop("log") for row in rows]
    print("\n".join(report(rows)))
    return {"seeds": list(seeds), "code": code_digest(), "summary": summary(rows), "rows": rows, "log": log}


def runs_of(plain: Path, scored: Path | None, seeds: Sequence[int], sizes: Sequence[int] = SIZES) -> list[SimulationRun]:
    """Return the runs.

    Args:
        plain, scored: the conversations' tokens, without and with a head's probabilities (`counted`).
    """
    found = []
    for seed in seeds:
        for conversations, policies in ((plain, POLICIES), (scored, PREDICTED)):
            if conversations is not None:
                spec = WorkloadSpec(conversations=conversations, seed=seed)
                found += [SimulationRun(spec, policy, size) for size in sizes for policy in policies]
    return found


def counted(file: Path, head: Path | None, models: Path, folder: Path, *, held_out: bool = False) -> Path:
    """Return a file in ``folder`` with the conversations' tokens and a head's probabilities; write it if it is missing.

    Its name depends on the conversations, the head, ``held_out`` and the code that reads them.
    """
    parts = [file.read_bytes(), b"" if head is None else head.read_bytes(), f"{code_digest(READING)} {held_out}".encode()]
    digest = hashlib.blake2b(b"".join(hashlib.blake2b(part).digest() for part in parts), digest_size=8).hexdigest()
    found = folder / f"conversations-{digest}.json.gz"
    if not found.exists():
        scorer = None
        if head is not None:
            from lpc_apps.training.scoring import HeadScorer, encoder_of  # libraries that take seconds to load

            scorer = HeadScorer(encoder_of(models, head), head)
        folder.mkdir(parents=True, exist_ok=True)
        save_sample(read_conversations(file, scorer, held_out=held_out), found)
    return found


def goals(rows: Sequence[Row]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return what the plug-in is compared with: by a line's name, the plug-in's label and those of the other policies."""
    labels = {row["label"] for row in rows}
    end = HEAD if f"lpc{HEAD}" in labels else ""
    return {
        "plugin - better of lru, turn-ttl": ("plugin", ("lru", "turn-ttl")),
        f"plugin-sidecar{end} - best of turn-ttl, mq, lpc{end}, plugin": (
            f"plugin-sidecar{end}",
            ("turn-ttl", "mq", f"lpc{end}", "plugin"),
        ),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return by line of `goals` and size: the best of the others, and the difference with its standard error, points."""
    return {
        line: [
            {"size": size, "best": best, "mean": difference.mean, "standard_error": difference.error}
            for size in _sizes(rows)
            for best, difference in [against_best(rows, ours, others, size)]
        ]
        for line, (ours, others) in goals(rows).items()
    }


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tables."""
    sizes = _sizes(rows)
    labels = dict.fromkeys(row["label"] for row in rows)
    seeds = sorted({row["seed"] for row in rows})
    yield (
        f"{rows[0]['workload']}: hit rate, % of prompt tokens. Means of the seeds {','.join(map(str, seeds))}; "
        f"differences in points ± standard error, paired by seed. Code {code_digest()}."
    )
    yield ""
    lines = [[one, *(f"{mean(by_seed(rows, one, size).values()):.2f}" for size in sizes)] for one in labels]
    for line, (ours, others) in goals(rows).items():
        differences = [against_best(rows, ours, others, size) for size in sizes]
        lines.append([line, *(f"{difference} ({best})" for best, difference in differences)])
    yield table(["cache, tokens", *map(size_name, sizes)], lines)


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["share"] for row in rows})
