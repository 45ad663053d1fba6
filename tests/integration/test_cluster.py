"""`lpc simulate --dask` on a real Dask cluster: a scheduler and workers in processes of their own (`make test-extras`)."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.eventually import patiently
from tests.integration.test_extras import installed
from tests.integration.test_wheel import checkout, wheel

__all__ = ["checkout", "wheel"]

SWEEP = ["--workload", "few-shot", "--policies", "fifo,mq,arc,gdsf", "--capacity", "2%,4%,8%,16%"]


class Cluster:
    """An environment with the extra, and processes that end with it."""

    def __init__(self, python: Path, folder: Path, stack: ExitStack) -> None:
        self.python = python
        self.folder = folder
        self.stack = stack
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", self.address.split(":")[1])

    def start(self, kind: str, *arguments: str | Path, path: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a process of Dask, with a folder before its packages."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if path is None else {"PYTHONPATH": str(path)})
        command = [self.python, "-m", "distributed.cli.dask_" + kind, "--no-dashboard", *arguments]
        log = self.stack.enter_context((self.folder / f"{kind}.log").open("ab"))
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def worker(self, *, path: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a worker that nobody restarts, and wait until the scheduler has it."""
        before = (self.folder / "scheduler.log").read_text().count("Register worker")
        process = self.start("worker", f"tcp://{self.address}", "--nthreads", "1", "--no-nanny", path=path)
        until = time.monotonic() + patiently(120)
        while (self.folder / "scheduler.log").read_text().count("Register worker") == before:
            assert time.monotonic() < until and process.poll() is None, (self.folder / "worker.log").read_text()
            time.sleep(0.2)
        return process

    def simulation(self, *arguments: str | Path, address: str | None = None) -> subprocess.Popen[str]:
        """Start a sweep on the cluster."""
        command = [self.python.with_name("lpc"), "simulate", *arguments, "--dask", address or self.address]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def fails(self, *arguments: str | Path, address: str | None = None) -> str:
        """Return the error of a sweep."""
        with self.simulation(*arguments, address=address) as process:
            _, error = process.communicate(timeout=300)
            assert process.returncode == 1, error
        return error


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, "sim,cluster", tmp_path_factory.mktemp("cluster") / "environment")[0]


@contextmanager
def started(python: Path, folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(python, folder, stack)


@pytest.fixture
def cluster(python: Path, tmp_path: Path) -> Iterator[Cluster]:
    with started(python, tmp_path) as found:
        yield found


def rows(cluster: Cluster, *arguments: str | Path) -> list[dict[str, object]]:
    """Return the rows of a sweep in one process of this machine."""
    out = cluster.folder / "alone.json"
    command = [cluster.python.with_name("lpc"), "simulate", *arguments, "--jobs", "1", "--output", out]
    subprocess.run(command, cwd=cluster.folder, check=True, capture_output=True, timeout=600)
    found: list[dict[str, object]] = json.loads(out.read_text())["rows"]
    return found


@pytest.mark.timeout(1800)
def test_two_workers_give_the_rows_of_one_process_even_if_one_dies(cluster: Cluster) -> None:
    alone = rows(cluster, *SWEEP)
    workers = [cluster.worker(), cluster.worker()]
    out = cluster.folder / "together.json"
    for dies in (False, True):
        with cluster.simulation(*SWEEP, "--output", out) as process:
            if dies:
                wait_for_a_curve(process)
                workers[0].send_signal(signal.SIGKILL)
            _, error = process.communicate(timeout=600)
            assert process.returncode == 0, error
        assert json.loads(out.read_text())["rows"] == alone
        out.unlink()


@pytest.mark.timeout(900)
def test_a_cluster_that_cannot_run_the_sweep_is_one_error(cluster: Cluster, tmp_path: Path) -> None:
    assert "has no worker" in cluster.fails(*SWEEP)
    assert "no Dask scheduler answers at" in cluster.fails(*SWEEP, address="127.0.0.1:9")
    assert "no Dask scheduler answers at" in cluster.fails(*SWEEP, address="nonsense://x")
    cluster.worker()
    worker = cluster.worker(path=without_package(tmp_path))
    assert "lacks the package: pip install" in cluster.fails(*SWEEP)
    worker.kill()
    worker.wait()
    worker = cluster.worker(path=other_version(cluster, tmp_path))
    assert "has another version of the package" in cluster.fails(*SWEEP)


@pytest.mark.timeout(900)
def test_a_cluster_without_workers_left_ends_the_sweep(cluster: Cluster) -> None:
    worker = cluster.worker()
    with cluster.simulation(*SWEEP) as process:
        wait_for_a_curve(process)
        worker.kill()
        _, error = process.communicate(timeout=300)
    assert process.returncode == 1 and "have gone: start some" in error


@pytest.mark.timeout(900)
def test_ctrl_c_ends_a_sweep_with_what_is_known(cluster: Cluster) -> None:
    cluster.worker()
    long = ["--workload", "batch-scan", "--policies", "fifo,plugin,plugin-sidecar", "--capacity", "2%,4%,8%"]
    with cluster.simulation(*long) as process:
        wait_for_a_curve(process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in error
    assert error.splitlines()[-1] == "lpc: interrupted" and "what follows is from these" in error


def wait_for_a_curve(process: subprocess.Popen[str]) -> None:
    """Return when a sweep has printed the first policy's curve, while others run."""
    assert process.stdout is not None and process.stderr is not None
    assert any(line.startswith("fifo") for line in process.stdout), process.stderr.read()


def without_package(folder: Path) -> Path:
    """Return a folder that hides the package."""
    found = folder / "without/lpc_apps"
    found.mkdir(parents=True)
    (found / "__init__.py").write_text("raise ModuleNotFoundError(name=__name__)")
    return found.parent


def other_version(cluster: Cluster, folder: Path) -> Path:
    """Return a folder with a changed copy of the package."""
    site = next(cluster.python.parent.parent.glob("lib/python*/site-packages"))
    for package in ("lpc", "lpc_apps", "eviction_client"):
        shutil.copytree(site / package, folder / "other" / package)
    with (folder / "other/lpc_apps/simulator/engine.py").open("a") as file:
        file.write("\n# changed\n")
    return folder / "other"
