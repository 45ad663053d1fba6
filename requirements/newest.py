"""Install the newest version of each dependency into an environment of its own, and run the unit tests there.

`make test-newest` runs it. No lock and no hash takes part, so the environment is for this test alone.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def main(folder: Path) -> int:
    """Build the environment in ``folder``, and return the exit code of the tests."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = str(folder / "bin/python")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--editable", f"{ROOT}[test]"]
    subprocess.run([python, *install], check=True)
    tests = ["-m", "pytest", "--numprocesses", "3", "--dist", "loadfile", "--max-worker-restart", "0", "tests/unit"]
    return subprocess.run([python, *tests], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
