"""Metrics of an engine that is a process of its own, shown by the process that has started it."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, subprocess, sys
from prometheus_client import generate_latest
from eviction_client.observability.metrics import EngineMetrics, register

def engine():
    register()  # as vLLM does in each of its processes
    EngineMetrics("0").update({("lpc_advantage", "ttl"): 0.25, ("lpc_predictions", "late"): 7})

if __name__ == "__main__":
    register()
    if "launcher" in sys.argv:
        raise SystemExit(subprocess.run([sys.executable, sys.argv[0]]).returncode)
    process = multiprocessing.get_context("spawn").Process(target=engine)
    process.start()
    process.join()
    print(generate_latest().decode())
"""


def shown(tmp_path: Path, *arguments: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return subprocess.run([sys.executable, file, *arguments], check=True, capture_output=True, text=True).stdout


def test_the_server_shows_its_engines_metrics(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert 'lpc_advantage{engine="0",rule="ttl"} 0.25' in text
    assert 'lpc_predictions_total{engine="0",fate="late"} 7.0' in text


def test_a_server_started_by_a_program_that_has_the_plug_in_too_shows_its_own(tmp_path: Path) -> None:
    assert 'lpc_advantage{engine="0",rule="ttl"} 0.25' in shown(tmp_path, "launcher")
