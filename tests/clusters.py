"""Real clusters of two worker processes on the loopback address, and tasks that misbehave."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import free_port

ROOT = Path(__file__).parents[1]


@dataclass
class DaskCluster:
    """A scheduler and its workers, by default with one thread each."""

    address: str
    log: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, threads: int = 1) -> None:
        """Start a worker."""
        options = ["--nthreads", str(threads), "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        self.workers.append(_process("distributed.cli.dask_worker", [self.address, *options], self.log))

    def wait(self) -> None:
        """Wait until the scheduler listens and all started workers are registered."""
        host, port = self.address.removeprefix("tcp://").split(":")
        _until(
            lambda: _listens(host, int(port)) and self.log.read_bytes().count(b"Registered to:") >= len(self.workers), self.log
        )


@contextmanager
def dask_cluster(folder: Path, *, workers: int = 2, threads: int = 1, forgiving: int = 3) -> Iterator[DaskCluster]:
    """Run a scheduler, which allows so many dead workers per task, and so many workers."""
    port = str(free_port())
    options = ["--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-show"]
    made = DaskCluster(f"tcp://127.0.0.1:{port}", folder / "dask.log")
    forgives = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(forgiving)}
    scheduler = _process("distributed.cli.dask_scheduler", options, made.log, forgives)
    try:
        for _ in range(workers):
            made.start(threads=threads)
        made.wait()
        yield made
    finally:
        for process in (*made.workers, scheduler):
            process.kill()
            process.wait(20)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """Run a Ray node with two workers; yield its address."""
    port = free_port()
    options = ["start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "2"]
    options += ["--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(folder / "ray")]
    node = _process("ray.scripts.scripts", options, folder / "ray.log")
    try:
        _until(lambda: b"Ray runtime started" in (folder / "ray.log").read_bytes(), folder / "ray.log")
        yield f"127.0.0.1:{port}"
    finally:
        node.terminate()  # its child processes end with it
        node.wait(60)


def _until(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 100
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((host, port)) == 0


def _process(module: str, options: list[str], log: Path, also: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(also or {})}
    with log.open("ab") as said:
        return subprocess.Popen([sys.executable, "-m", module, *options], env=environment, stdout=said, stderr=said)


def die() -> None:
    """Kill the worker."""
    os._exit(9)
