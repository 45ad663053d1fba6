"""Each extra in an empty environment, with the newest versions that its ranges admit: `make test-extras`.

Left out are the extras that bring CUDA or PyTorch (gpu, train), and vllm and tls, which bring one package.
"""

import json
import os
import resource
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lpc.distribution import install
from tests.integration.test_wheel import checkout, run_the_readmes_first_command, wheel

__all__ = ["checkout", "wheel"]

if "LPC_TEST_EXTRAS" not in os.environ:
    pytest.skip("needs a package index and minutes: make test-extras", allow_module_level=True)

SIM_MB = 150
SIM_S = 25.0
"""Of a processor, with a warm package cache: a busy machine takes longer."""
HEAVY = {"torch", "transformers", "onnx", "onnxruntime", "scipy", "scikit-learn", "pyarrow", "matplotlib"}
COMMANDS = {
    "sim": ["simulate", "--help"],
    "picture": ["simulate", "--help"],
    "cluster": ["simulate", "--help"],
    "cache": ["cache", "serve", "--help"],
    "lmcache": ["lmcache", "--help"],
    "cpu": ["serve", "--help"],
    "server": ["export", "--help"],
}


def installed(wheel: Path, extra: str, folder: Path) -> tuple[Path, float]:
    """Return the interpreter of a new environment with an extra, and the processor's seconds that it took."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    began = processor_s()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"),
            f"learned-prefix-cache[{extra}] @ {wheel.as_uri()}",
        ],
        check=True,
        timeout=600,
    )
    return python, processor_s() - began


def processor_s() -> float:
    """Return the seconds of a processor that this process's children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def packages(python: Path) -> set[str]:
    """Return the names of an environment's distributions."""
    command = [sys.executable, "-m", "pip", "--python", python, "list", "--format", "json", "--disable-pip-version-check"]
    return {row["name"].lower() for row in json.loads(subprocess.run(command, check=True, capture_output=True).stdout)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", COMMANDS)
def test_the_commands_of_an_extra_start_in_an_empty_environment(extra: str, wheel: Path, tmp_path: Path) -> None:
    python, _ = installed(wheel, extra, tmp_path / "environment")
    command = [python.with_name("lpc"), *COMMANDS[extra]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(900)
def test_the_readmes_first_command_works_in_an_empty_environment(checkout: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True, symlinks=True)
    done = run_the_readmes_first_command(checkout, tmp_path / "environment/bin/python")
    assert done.returncode == 0, done.stderr
    assert "an infinite cache" in " ".join(done.stdout.lower().split())


@pytest.mark.timeout(900)
def test_a_simulation_needs_little_room_and_time(wheel: Path, tmp_path: Path) -> None:
    installed(wheel, "sim", tmp_path / "first")  # fills pip's cache
    folder = tmp_path / "environment"
    python, seconds = installed(wheel, "sim", folder)
    found = packages(python)
    assert not HEAVY & found
    command = [python.with_name("lpc"), "secrets", "made"]
    secrets = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert secrets.returncode == 1 and install("tls") in secrets.stderr
    # The bytes of files, as in `benchmarks.peers`; blocks of 4 KiB are 9% more.
    megabytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6
    print(f"\n[sim]: {seconds:.0f} s of a processor, {megabytes:.0f} MB, {len(found)} packages")
    assert megabytes < SIM_MB
    assert seconds < SIM_S
    log = tmp_path / "log.jsonl"
    text = "What is the capital of Australia, and why is it not Sydney? " * 20
    lines = [{"time": 60 * turn, "messages": [{"role": "user", "content": f"{text}{turn % 7}"}]} for turn in range(50)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for arguments in ([log], []):
        command = [python.with_name("lpc"), "simulate", *arguments, "--policies", "lru,plugin-sidecar", "--capacity", "200%"]
        command += ["--html", "page.html"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "An infinite cache would serve" in done.stdout
        assert "An infinite cache would serve" in (tmp_path / "page.html").read_text()
    refused = subprocess.run([*command, "--picture", "a.png"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and install("picture") in refused.stderr
