"""Carries out the Dockerfile's lines for the CPU sidecar with its artefact baked in, in clean virtual environments.

No container engine takes part: COPY and RUN happen below a folder, commands that change the system (users, apt) are left out,
and the CUDA and vLLM images are not built. What comes out is started with the image's command, environment and health check.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import free_port
from tests.dockerfile import Stage, below, carry_out, stages

ORDER = ("wheel", "venv-cpu", "trainer", "models", "cpu")


def main() -> None:
    """Build and start; say what was done."""
    _, found = stages()
    folder = Path(tempfile.mkdtemp(prefix="lpc-image-"))
    try:
        copied: dict[str, Path] = {}
        for name in ORDER:
            # A stage that is built from another goes on in its folder.
            root = copied.get(found[name].base, folder / name)
            carry_out(inheriting(found[name], found), root, copied)
            copied[name] = root
        serve(found["cpu"].command("ENTRYPOINT") + found["cpu"].command("CMD"), folder / "cpu")
    finally:
        shutil.rmtree(folder)


def inheriting(stage: Stage, found: dict[str, Stage]) -> Stage:
    """Return a stage with the environment of the stage that it is built from."""
    before = found[stage.base].lines if stage.base in found else []
    return Stage(stage.base, stage.name, [line for line in before if line[0] in {"ENV", "WORKDIR"}] + stage.lines)


def serve(command: list[str], root: Path) -> None:
    """Start the image's command and wait until its health check is content."""
    cpu = stages()[1]["cpu"]
    # The venv was made in another stage's folder, so its scripts name that one: its Python is the same.
    python = root / "opt/lpc/bin/python"
    env = {name: below(root, value) for name, value in cpu.env().items() if name != "PATH"}
    env |= {"PATH": f"{root}/opt/lpc/bin:/usr/bin:/bin", "HOME": os.environ["HOME"]}
    env |= {"LPC_PORT": str(free_port()), "LPC_METRICS_PORT": str(free_port()), "LPC_HOST": "127.0.0.1"}
    for name in ("run", "cache"):
        (root / name).mkdir(exist_ok=True)
    check = [str(python), *(below(root, word) for word in cpu.command("HEALTHCHECK")[1:])]
    assert subprocess.run(check, env=env, capture_output=True, check=False).returncode == 1, "healthy before it runs"
    # Not in the checkout: `-m` would find its packages there, not the image's.
    sidecar = subprocess.Popen([str(python), "-m", *command], env=env, cwd=root)
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(check, env=env, capture_output=True, check=False).returncode != 0:
            if sidecar.poll() is not None or time.monotonic() > deadline:
                sys.exit("the sidecar did not become healthy")
            time.sleep(0.5)
        print("== the sidecar is healthy; it drains at SIGTERM")
    finally:
        sidecar.terminate()
    assert sidecar.wait(30) == 0
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
