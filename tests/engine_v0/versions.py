"""Runs the tests of the V0 adapter against V0's own allocator and scheduler, per release (`make test-vllm-v0`).

Like tests/engine/versions.py, it puts the Python sources of each release's wheel before the installed vLLM on the path.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.engine.versions import ROOT, unpack


def run(version: str, folder: Path) -> tuple[str, bool]:
    """Return the result of the tests with a release, and whether all passed."""
    environment = {**os.environ, "PYTHONPATH": f"{unpack(version, folder)}:{ROOT}", "VLLM_LOGGING_LEVEL": "ERROR"}
    options = ("-q", "--confcutdir=tests/engine_v0", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "--timeout=600")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/engine_v0"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    (folder / f"{version}-v0.log").write_text(done.stdout + done.stderr)
    last = (done.stdout.strip().splitlines() or ["nothing ran"])[-1]
    return re.sub(r"[= ]*$|^[= ]*| in [\d.]+s.*|, \d+ warnings?", "", last), done.returncode == 0


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    passed = True
    for version in sys.argv[2:]:
        result, good = run(version, folder)
        passed = passed and good
        print(f"| {version} | {result} |", flush=True)
    sys.exit(not passed)
