"""`python -m benchmarks speed --against REV`: commands of this tree against those of another revision, in the same run.

The other revision is unpacked into a temporary folder, and each side imports its own. Runs alternate between the sides, and
the least of each side counts, since other work on the machine only adds time. Seconds are those of a processor. A row also
compares what the commands write: a faster command with other figures is wrong.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lpc.errors import LpcError, UsageError

ROOT: Final = Path(__file__).parents[1]
GENERATED: Final = ("lpc/v1", "lpc/cache/v1")
"""Code that is not in the repository: both sides have that of this tree."""
DATA: Final = Path("data")
MOONCAKE: Final = DATA / "mooncake_conversation_trace.jsonl"
AGENTS: Final = DATA / "agent_sessions_2026.tar.gz"
COPIES: Final = Path("copies.jsonl")
"""Stands for the long log, which is written before the runs."""
HOUR_MS: Final = 3_600_000
"""Time between the copies of the long log: that of Mooncake's trace."""
_LRU: Final = ("--policies", "lru")
_PLUGIN: Final = ("--policies", "plugin")
_CLOSED: Final = ("--closed", "--sessions", "32", "--capacity", "4M", "--keep-waiting", "--schedule", "warm-first")
ROWS: Final[Mapping[str, tuple[str | Path, ...]]] = {
    "start": ("simulate", "--help"),
    "curve": ("simulate", MOONCAKE, *_LRU),
    "plugin": ("simulate", MOONCAKE, *_PLUGIN, "--capacity", "5%"),
    "closed-lru": ("simulate", AGENTS, *_LRU, *_CLOSED),
    "closed-plugin": ("simulate", AGENTS, *_PLUGIN, *_CLOSED),
    "long-lru": ("simulate", COPIES, *_LRU, "--capacity", "5%", "--sample", "1"),
    "long-plugin": ("simulate", COPIES, *_PLUGIN, "--capacity", "5%", "--sample", "1"),
    "generated": ("simulate", "--workload", "chat-exponential", "--policies", "lru,plugin", "--capacity", "5%"),
}
"""Commands by name of the row."""


class SpeedError(LpcError):
    """A side cannot be measured."""


@dataclass(frozen=True)
class Run:
    """One run of a command: seconds of a processor, the largest memory (MiB), and the figures that it wrote."""

    seconds: float
    memory: float
    figures: Any


def run(against: str, rows: Sequence[str], *, rounds: int, copies: int) -> dict[str, Any]:
    """Measure rows on both sides; print a table, and return its figures.

    Args:
        against: a revision of git.
        rows: names of ROWS. Rows whose log is missing are left out.
        rounds: runs of each side.
        copies: copies of Mooncake's trace in the long log.

    Raises:
        UsageError: a row is unknown.
        SpeedError: the revision is unknown, or a command fails.
    """
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise UsageError(f"unknown row {unknown[0]!r:.40}: choose from {', '.join(ROWS)}")
    found: dict[str, Any] = {}
    with TemporaryDirectory(prefix="lpc-speed-") as made, unpacked(against) as other:
        for row in rows:
            command = _with_logs(ROWS[row], Path(made), copies)
            if command is None:
                print(f"{row} is left out: a log is missing", file=sys.stderr)
                continue
            pairs = [(measured(other, command), measured(ROOT, command)) for _ in range(rounds)]
            found[row] = figures_of([before for before, _ in pairs], [now for _, now in pairs])
            print(row, found[row], file=sys.stderr)
    print(table(found, against))
    return {"against": against, "rounds": rounds, "copies": copies, "rows": found}


@contextmanager
def unpacked(revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a revision, and the generated code of this tree. Raises SpeedError."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SpeedError(f"git has no revision {revision!r:.60}: {done.stderr.decode(errors='replace').strip()}")
    with TemporaryDirectory(prefix="lpc-revision-") as made:
        with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            archive.extractall(made, filter="data")
        for folder in GENERATED:
            shutil.copytree(ROOT / folder, Path(made) / folder, dirs_exist_ok=True)
        yield Path(made)


def measured(root: Path, command: Sequence[str | Path]) -> Run:
    """Run `lpc` with the packages of a folder, and in it. Raises SpeedError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    with TemporaryDirectory(prefix="lpc-speed-") as made:
        output = Path(made) / "figures.json"
        words = [str(word) for word in command]
        if "--help" not in words:
            words += ["--jobs", "1", "--output", str(output)]
        with (Path(made) / "errors").open("w+") as errors:
            command = [sys.executable, "-m", "lpc_cli", *words]
            child = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                errors.seek(0)
                raise SpeedError(f"lpc {' '.join(words)} of {root} ended with {child.returncode}: {errors.read()[-500:]}")
        figures = json.loads(output.read_text()) if output.exists() else None
    return Run(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, figures)


def figures_of(before: Sequence[Run], now: Sequence[Run]) -> dict[str, Any]:
    """Return the least seconds and memory of both sides, and whether all runs wrote the same figures."""
    return {
        "before_s": min(run.seconds for run in before),
        "now_s": min(run.seconds for run in now),
        "before_mib": min(run.memory for run in before),
        "now_mib": min(run.memory for run in now),
        "same": all(run.figures == before[0].figures for run in (*before, *now)),
    }


def table(found: Mapping[str, Mapping[str, Any]], against: str) -> str:
    """Return the rows as a table of a page."""
    lines = [f"| row | {against}, s | now, s | share | {against}, MiB | now, MiB | same figures |", f"|{'---|' * 7}"]
    for row, of in found.items():
        seconds = f"{of['before_s']:.2f} | {of['now_s']:.2f} | {of['now_s'] / of['before_s']:.2f}"
        same = "yes" if of["same"] else "**no**"
        lines.append(f"| {row} | {seconds} | {of['before_mib']:,.0f} | {of['now_mib']:,.0f} | {same} |")
    return "\n".join(lines)


def write_copies(trace: Path, copies: int, file: Path) -> None:
    """Write a log of copies of a Mooncake trace, one an hour, whose blocks differ from copy to copy."""
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    apart = 1 + max(block for record in records for block in record["hash_ids"])
    with file.open("w") as written:
        for copy in range(copies):
            for record in records:
                moved = {
                    **record,
                    "timestamp": record["timestamp"] + copy * HOUR_MS,
                    "hash_ids": [block + copy * apart for block in record["hash_ids"]],
                }
                written.write(json.dumps(moved) + "\n")


def _with_logs(command: Sequence[str | Path], folder: Path, copies: int) -> list[str | Path] | None:
    """Return a command with the files that stand for its logs; None: one is missing."""
    found: list[str | Path] = []
    for word in command:
        log = word
        if word == COPIES and (ROOT / MOONCAKE).exists():
            log = folder / COPIES
            if not log.exists():
                write_copies(ROOT / MOONCAKE, copies, log)
        elif isinstance(word, Path):
            log = ROOT / word
        if isinstance(log, Path) and not log.exists():
            return None
        found.append(log)
    return found
