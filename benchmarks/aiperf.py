"""AIPerf, in its own environment by its lock (`make aiperf`): it generates agentic-code, and sends it to a server.

`aiperf synthesize` needs no tokenizer, no data set and no network: a row has lengths and ids of blocks, and no text.
`aiperf profile` makes text of them with a tokenizer, which must be a folder here.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import BenchmarkError
from benchmarks.engine import ROOT

PROGRAM: Final = ROOT / ".venv-aiperf" / "bin" / "aiperf"
VERSION: Final = "0.13.0"
TOKENIZER: Final = "local/bench"
"""Name of the tokenizer in :func:`hub_with`."""
BUILT_IN: Final = "built-in"
"""Parameters of `aiperf synthesize` without `--config`. Those of `--config default` are others."""
SHORTEST_REPLY: Final = 30
"""Tokens below which AIPerf raises the length of a reply."""
_TOKENS: Final = ("layer1_tokens", "layer1_5_tokens", "max_prompt_tokens", "block_size")
_LENGTHS: Final = ("new_tokens_per_turn", "generation_length", "layer2")
_DELAYS: Final = ("agentic_delay", "human_delay")


def why_missing() -> str:
    """Return why AIPerf cannot run here, and what to do; empty: it can."""
    return "" if PROGRAM.exists() else f"AIPerf {VERSION} is not installed in .venv-aiperf: run make aiperf first"


def synthesized(folder: Path, *, sessions: int, seed: int, config: str = BUILT_IN) -> Path:
    """Return the file of generated agentic-code, which is made if it is not there. Equal arguments make equal files.

    Args:
        folder: folder of generated files.
        sessions: number of sessions.
        seed: of AIPerf.
        config: name of a config that AIPerf ships, or the path of one; BUILT_IN: none.

    Raises:
        BenchmarkError: AIPerf is not installed, or failed.
    """
    name = Path(config).stem
    made = folder / f"aiperf-{VERSION}-{name}-{sessions}-seed{seed}.jsonl"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".aiperf-", dir=folder) as scratch:
        _synthesize(Path(scratch), sessions=sessions, seed=seed, config=config)
        (found,) = Path(scratch).glob("*/dataset.jsonl")
        found.replace(made)
    return made


def _synthesize(folder: Path, *, sessions: int, seed: int, config: str) -> None:
    given = [] if config == BUILT_IN else ["--config", config]
    words = ["synthesize", "agentic-code", "--num-sessions", str(sessions), "--seed", str(seed), *given]
    ran([*words, "--output", str(folder)], folder / "aiperf.log")


def shrunk(folder: Path, *, tokens: int, delays: float = 1.0) -> Path:
    """Write AIPerf's built-in parameters with all lengths divided by ``tokens``, and all delays by ``delays``; return the file.

    Sessions keep their numbers of turns, and prompts their ratios to each other, so a model with short prompts can serve them.

    Raises:
        BenchmarkError: AIPerf is not installed, or failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".aiperf-", dir=folder) as scratch:
        _synthesize(Path(scratch), sessions=1, seed=0, config=BUILT_IN)
        (manifest,) = Path(scratch).glob("*/manifest.json")
        parameters = json.loads(manifest.read_text())["generation_params"]
    made = folder / f"shrunk-{tokens}-{delays:g}.json"
    made.write_text(json.dumps(divided(parameters, tokens, delays)))
    return made


def hub_with(folder: Path, tokenizer: Path) -> Path:
    """Return a Hugging Face cache that has a folder as TOKENIZER.

    Offline, AIPerf looks for a tokenizer in that cache alone, also if it is named by a folder.
    """
    place = folder / f"models--{TOKENIZER.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text("0")
    snapshot = place / "snapshots" / "0"
    snapshot.parent.mkdir(exist_ok=True)
    snapshot.unlink(missing_ok=True)
    snapshot.symlink_to(tokenizer.absolute())
    return folder


def divided(parameters: Mapping[str, Any], tokens: int, delays: float) -> dict[str, Any]:
    """Return parameters of `aiperf synthesize` with lengths divided by ``tokens``, and delays by ``delays``.

    A lognormal distribution is named by its mean and median alone, of which AIPerf calculates the others.
    """
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _TOKENS:
            found[name] = max(value // tokens, 1)
        elif name in _LENGTHS or name in _DELAYS:
            by = delays if name in _DELAYS else tokens
            known = {key: one for key, one in value.items() if key not in ("mu", "sigma")}
            found[name] = {
                key: one / by if key in ("mean", "median", "min", "max") and one is not None else one
                for key, one in known.items()
            }
            if name == "generation_length" and found[name]["mean"] < SHORTEST_REPLY:
                # No reply is shorter than that, unless the longest is.
                found[name]["median"] = found[name]["max"] = found[name]["mean"]
        else:
            found[name] = divided(value, tokens, delays) if isinstance(value, Mapping) else value
    return found


def ran(words: Sequence[str], log: Path, *, seconds: float | None = None, hub: Path | None = None) -> None:
    """Run AIPerf without a network, its output to a file. Raises BenchmarkError.

    Args:
        seconds: time limit.
        hub: folder of the Hugging Face cache. Default: the user's.
    """
    if why := why_missing():
        raise BenchmarkError(why)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**kept, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    if hub is not None:
        environment["HF_HUB_CACHE"] = str(hub.absolute())
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                [PROGRAM, *words], env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"aiperf {words[0]} did not end within {seconds:.0f} s (see {log})") from None
    if done.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise BenchmarkError(f"aiperf {words[0]} failed: {lines[-1][:200] if lines else done.returncode} (see {log})")
