"""The tutorial of the dry run: its rehearsal runs as written on real vLLM, and prints what the page has, but for figures."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from testing.processes import free_port
from tests.eventually import patiently, until
from tests.page import ROOT, paragraphs, words

PAGE: Final = paragraphs("docs/tutorials/dry-run.md")
PORT: Final = "8000"
"""Of the engine on the page."""


def shape(text: str) -> str:
    """Return text without its figures, the name of a socket, and which rule is the best."""
    plain = re.sub(r"(unix://)\S+|\bbest\b", r"\1", text)
    return words(re.sub(r"[-+]?\d[\d.,]*%?", "#", plain))


def command(start: str) -> str:
    """Return the page's last command that starts so."""
    return next(part for part in reversed(PAGE) if part.startswith(start))


def shown_after(start: str) -> str:
    """Return the paragraph behind a command."""
    return PAGE[PAGE.index(command(start)) + 1]


class Rehearsal:
    """Runs the page's commands in a new folder, on free ports. Ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, sidecar = str(free_port()), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = {
            "LPC_PORT": str(sidecar),
            "LPC_METRICS_PORT": str(free_port()),
            "LPC_UNIX_SOCKET": str(folder / "s.sock"),
            "LPC_STATE": str(folder / "state"),
            "LPC_PREDICTOR_ADDRESS": f"127.0.0.1:{sidecar}",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1",
        }
        # One thread: on few cores more of them mostly wait for each other.
        quiet = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "COLUMNS": "160"}
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("LPC_", "VLLM_", "OPENAI_"))}
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self._environment = {**plain, **quiet, **path, **settings}

    def start(self, script: str, log: str) -> Path:
        """Start a command of the page in the background; return the file of its output."""
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                script,
                shell=True,
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return self.folder / log

    def wait_for(self, log: Path, shown: str) -> None:
        """Wait until a log has the lines of the page."""

        def logged() -> bool:
            found = shape(log.read_text(errors="replace"))
            missing = [line for line in shown.splitlines() if shape(line) not in found]
            assert not missing or all(process.poll() is None for process in self._processes), log.read_text()[-3000:]
            return not missing

        until(logged, 200)

    def run(self, script: str) -> str:
        """Run a command of the page; return what it printed."""
        script = script.replace(f"localhost:{PORT}", f"127.0.0.1:{self.port}").replace("docs/", f"{ROOT}/docs/")
        done = subprocess.run(
            script, shell=True, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=patiently(200)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """End what was started."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(patiently())
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path)
    yield made
    made.stop()


def lines_of(printed: str) -> list[str]:
    """Return the shapes of metrics' lines."""
    return [shape(line) for line in printed.splitlines()]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_rehearsal_runs_as_written_and_prints_what_the_page_has(rehearsal: Rehearsal) -> None:
    makes, serves = command("lpc tiny-model").split("\n", 1)
    in_production = command("pip install '.[vllm]'").splitlines()[-1]
    assert serves.startswith(f"{in_production} ")
    # The sidecar has an environment of its own.
    sidecar = command("pip install '.[server]'").splitlines()[-1].replace("lpc ", f"{ROOT}/.venv/bin/python -m lpc_cli ")
    rehearsal.wait_for(rehearsal.start(sidecar, "sidecar.log"), shown_after("pip install '.[server]'"))
    rehearsal.run(makes)
    engine = rehearsal.start(f"{serves} --port {rehearsal.port}", "vllm.log")
    rehearsal.wait_for(engine, shown_after("pip install '.[vllm]'"))
    until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{rehearsal.port}/health", timeout=patiently()), 60)
    checked = words(rehearsal.run(command("lpc doctor")))
    for line in shown_after("lpc doctor").splitlines():
        assert words(line) in checked
    assert "conversations and" in rehearsal.run(command("python docs/"))
    reported = shape(rehearsal.run(command("lpc report")))
    for line in shown_after("lpc report").splitlines():
        assert shape(line) in reported
    counts = next(part for part in PAGE if part.startswith("curl") and "requests_ended_total" in part)
    counted = rehearsal.run(counts)
    assert sorted(lines_of(counted)) == sorted(lines_of(PAGE[PAGE.index(counts) + 1]))
    assert 'lpc_failures_total{engine="0"} 0.0' in counted
    thrashing = next(part for part in PAGE if part.startswith("curl") and "repeated_prefill" in part)
    assert {line.split("{")[0] for line in rehearsal.run(thrashing).splitlines()} == {
        "lpc_repeated_prefill",
        "lpc_waited_requests_total",
    }
