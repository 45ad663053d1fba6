"""`python -m benchmarks peers TRACE`: `lpc` beside other programs that judge a log's prefix reuse, each installed from PyPI.

Each program gets an environment of its own in a temporary folder, with its newest version. Nothing of them is kept. Seconds are
those of a processor, since a busy machine stretches the others.
"""

import json
import os
import re
import resource
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lpc_apps.tiny_llama import build

LOGS_OF_TESTS: Final[Any] = import_module("tests.unit.test_chat_logs")
TRAFFIC: Final[Any] = import_module("tests.unit.why.traffic")
"""Logs of this project's tests, which are not type-checked."""
OURS: Final = "lpc"
PEERS: Final = ("kvcache-simulator", "llmtrafficlens", "kvlint")
ROOT: Final = Path(__file__).parents[1]
LONGEST_S: Final = 900
SIZES: Final = 7
"""Sizes of the cache, in the curve of the trace."""
HASHED: Final = {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [0, 1]}
QWEN: Final = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1, **HASHED}
SHAREGPT: Final = {
    "id": "a",
    "conversations": [{"from": "human", "value": LOGS_OF_TESTS.LONG}, {"from": "gpt", "value": "yes"}],
}
LOGS: Final[dict[str, tuple[Any, Any]]] = {
    **{name: (record(0), record(1)) for name, (_, record) in LOGS_OF_TESTS.FORMS.items()},
    "Mooncake": (HASHED, HASHED),
    "Qwen-Bailian": (QWEN, {**QWEN, "chat_id": 2}),
    "ShareGPT": (SHAREGPT, SHAREGPT),
    "prompts": ({"prompt": LOGS_OF_TESTS.LONG}, {"prompt": LOGS_OF_TESTS.LONG}),
}
"""Two records of each format: those of this project's tests, and those that the others name."""
NOTHING_READ: Final = "no parseable requests"
"""End of llmtrafficlens, without an error, if it has read nothing."""
KVLINT: Final = {"ShareGPT": ("sharegpt",), "prompts": ("plain",)}
"""Its names of formats. It starts slowly, so others are read as `openai` only."""
OPTIONS: Final = {
    "names the format itself": {OURS: ("simulate --help", "--format")},
    "reads standard input": {OURS: ("simulate --help", "standard input"), "kvcache-simulator": ("run --help", "stdin")},
    "cache size in GiB": {
        OURS: ("simulate --help", "--gpu-gib"),
        "kvcache-simulator": ("run --help", "--budgets-gib"),
    },
    "learned and classic policies": {OURS: ("simulate --help", "plugin-sidecar")},
    "closed loop of agents": {OURS: ("simulate --help", "--closed")},
    "page to send around": {
        OURS: ("simulate --help", "--html"),
        "llmtrafficlens": ("profile --help", "output path prefix"),  # of a page and of figures
        "kvlint": ("report --help", "HTML"),
    },
    "anonymous trace": {OURS: ("export --help", "--anonymous"), "llmtrafficlens": ("--help", "anonymized")},
    "exit code for CI": {OURS: ("why --help", "--fail-on"), "kvlint": ("lint --help", "--fail-on")},
}
"""Command whose help names an option, and the words that show it."""


class Program:
    """A program in an environment of its own.

    Attributes:
        megabytes: size of its packages; ``install_s``: a processor's seconds of an installation from a warm package cache.
    """

    def __init__(self, name: str, requirement: str, folder: Path) -> None:
        self.name = name
        for attempt in ("first", "second"):  # the first fills pip's cache
            python = folder / attempt / "bin/python"
            venv.create(folder / attempt, with_pip=False, symlinks=True)
            pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check")
            done, self.install_s = timed([*pip, requirement], folder)
            if done.returncode:
                raise SystemExit(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        self.program = python.with_name(name)
        site = next(python.parents[1].glob("lib/python*/site-packages"))
        size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and not file.is_symlink())
        self.megabytes = size / 1e6
        (info,) = site.glob(f"{'learned_prefix_cache' if name == OURS else name.replace('-', '_')}-*.dist-info")
        self.version = info.name.removesuffix(".dist-info").rpartition("-")[2]

    def run(self, words: Sequence[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run a command in a folder; return what it did, and a processor's seconds."""
        return timed([str(self.program), *words], folder)

    def has(self, command: str, words: str, folder: Path) -> bool:
        """Return whether a command's help has some words."""
        done, _ = self.run(command.split(), folder)
        return words in " ".join(re.sub(r"[│╭╮╰╯─]|\x1b\[[\d;]*m", " ", done.stdout).split())


def timed(command: Sequence[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command; return what it did, and the seconds of a processor."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    before = _processor_s()
    options: dict[str, Any] = {"cwd": folder, "env": environment, "timeout": LONGEST_S, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return done, _processor_s() - before


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(trace: Path) -> dict[str, Any]:
    """Compare the programs on a Mooncake trace, small logs and planted causes; print the table, and return the figures."""
    with TemporaryDirectory(prefix="lpc-peers-") as made:
        folder = Path(made)
        wheel = _wheel(folder)
        requirements = {OURS: f"learned-prefix-cache[sim] @ {wheel.as_uri()}", **{name: name for name in PEERS}}
        programs = [Program(name, text, _new(folder / name)) for name, text in requirements.items()]
        rows: dict[str, list[Any]] = {}
        logs, planted = _new(folder / "logs"), _new(folder / "planted")
        measures: dict[str, Callable[[Program], Any]] = {
            "version": lambda program: program.version,
            "packages, MB": lambda program: round(program.megabytes),
            "installation, s of a processor": lambda program: round(program.install_s, 1),
            f"LRU on the trace, {SIZES} sizes, s": lambda program: _curve(program, trace, folder),
            f"formats read, of {len(LOGS)}": lambda program: _formats(program, logs),
            f"planted causes found, of {len(TRAFFIC.PLANTS)}": lambda program: _causes(program, planted),
            "causes found in a clean log": lambda program: _found(program, _planted(planted, None)),
            **{name: partial(_option, of=of, folder=folder) for name, of in OPTIONS.items()},
        }
        for name, measure in measures.items():
            rows[name] = [measure(program) for program in programs]
            print(name, *rows[name], sep=" | ", file=sys.stderr)
    print(table(rows))
    return {"programs": [OURS, *PEERS], "rows": rows}


def _option(program: Program, of: Mapping[str, tuple[str, str]], folder: Path) -> str:
    return "yes" if program.name in of and program.has(*of[program.name], folder) else "no"


def table(rows: dict[str, list[Any]]) -> str:
    """Return the rows as a table of a page. None: the program has no such command."""
    lines = [f"| | {' | '.join((OURS, *PEERS))} |", f"|---|{'---|' * (1 + len(PEERS))}"]
    shown = [[name, *("-" if cell is None else _text(cell) for cell in cells)] for name, cells in rows.items()]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in shown)])


def _text(cell: Any) -> str:
    return str(len(cell)) if isinstance(cell, list) else str(cell)


def _new(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=LONGEST_S)
    return next(folder.glob("*.whl"))


def _curve(program: Program, trace: Path, folder: Path) -> float | None:
    """Return the seconds for LRU's curve; None: the program has none."""
    budgets = ",".join(str(2**number) for number in range(SIZES))
    commands = {
        OURS: ["simulate", str(trace), "--policies", "lru", "--jobs", "1"],
        "kvcache-simulator": [
            *("run", "--trace", str(trace), "--model", "cohere-command-r7b-12-2024", "--block-size", "512"),
            *("--policies", "lru", "--budgets-gib", budgets, "--no-progress"),
        ],
        "llmtrafficlens": ["profile", str(trace), "--format", "mooncake"],
    }
    if program.name not in commands:
        return None
    done, seconds = program.run(commands[program.name], folder)
    return round(seconds, 1) if not done.returncode else None


def _formats(program: Program, folder: Path) -> list[str]:
    """Return the formats that a program reads, by the best of its own names for them."""
    found = []
    for name, records in LOGS.items():
        log = LOGS_OF_TESTS.written(folder / f"{name}.jsonl", *records)
        done = [program.run(words, folder)[0] for words in _readers(program, log)]
        if any(not each.returncode and NOTHING_READ not in each.stdout + each.stderr for each in done):
            found.append(name)
    return found


def _readers(program: Program, log: Path) -> list[list[str]]:
    """Return commands that read a log, one for each name of a format."""
    tokenizer = str(_tokenizer(log.parent))
    return {
        OURS: [
            ["simulate", str(log), "--policies", "lru", "--capacity", "10K", "--jobs", "1", *times]
            for times in (("--count-from", "0"), ())  # conversations without times are counted after 40 minutes
        ],
        "kvcache-simulator": [
            ["run", "--trace", str(log), "--model", "cohere-command-r7b-12-2024", "--block-size", "512", "--no-progress"]
        ],
        "llmtrafficlens": [["profile", str(log), "--format", name] for name in ("openai-gateway", "mooncake", "bailian")],
        "kvlint": [["analyze", str(log), "--model", tokenizer, "--format", name] for name in KVLINT.get(log.stem, ("openai",))],
    }[program.name]


def _tokenizer(folder: Path) -> Path:
    target = folder / "tokenizer"
    return target if target.is_dir() else build(target)


def _planted(folder: Path, cause: str | None) -> Path:
    """Write a log with a planted cause, or a clean one."""
    records = TRAFFIC.clean()
    log = folder / f"{cause}.jsonl"
    TRAFFIC.write(log, records if cause is None else TRAFFIC.PLANTS[cause](records))
    return log


def _found(program: Program, log: Path) -> list[str] | None:
    """Return the causes that a program reports of a log, none if it does not read it; None: it reports none of any log."""
    read: dict[str, tuple[list[str], Callable[[Any], list[str]]]] = {
        OURS: (["why", str(log), "--output", "found.json"], lambda found: [cause["cause"] for cause in found["causes"]]),
        "kvlint": (
            ["lint", str(log), "--model", str(_tokenizer(log.parent)), "--json", "found.json"],
            lambda found: [finding["rule_id"] for finding in found["findings"]],
        ),
    }
    if program.name not in read:
        return None
    words, causes = read[program.name]
    found = log.parent / "found.json"
    found.unlink(missing_ok=True)
    program.run(words, log.parent)
    return causes(json.loads(found.read_text())) if found.exists() else []


def _causes(program: Program, folder: Path) -> list[str] | None:
    """Return the planted causes for which a program reports something that it does not report of a clean log."""
    usual = _found(program, _planted(folder, None))
    if usual is None:
        return None
    return [cause for cause in TRAFFIC.PLANTS if set(_found(program, _planted(folder, cause)) or ()) - set(usual)]
