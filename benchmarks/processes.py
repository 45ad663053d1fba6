"""Processes that benchmarks and tests kill, stop and start again, each at one address for good: sidecars, Redis servers."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import redis

from benchmarks import BenchmarkError

START_S: Final = 300.0
"""Longest time that a process may take to serve: one that has failed ends, so this is for those that hang."""
POLL_S: Final = 0.02
CLUSTER_BUS: Final = 10_000
"""How far above its port a Redis Cluster node listens for the other nodes."""
LOWEST_PORT: Final = 10_000


_draws = random.SystemRandom()  # two processes that seed the common one alike would be given the same ports
_taken: set[int] = set()
"""Ports that this process has given out: a server may be down for a while, and its port is still its own."""


def _clients_from() -> int:
    """Return the first port that the system gives to connections going out (Linux; its own default elsewhere)."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def free_port(also: int = 0) -> int:
    """Return a TCP port on loopback that nobody listens on, never the same one twice.

    It lies below those that the system gives to outgoing connections and to whoever listens on port 0: one of these would
    take it before its server starts, or while its server is down.

    Args:
        also: the port so far above it is free, too.
    """
    highest = 65_536 - also
    below = min(_clients_from(), highest)
    if below - LOWEST_PORT < 1_000:  # this system's connections go out from nearly everywhere
        below = highest
    while True:
        port = _draws.randrange(LOWEST_PORT, below)
        ports = {port, port + also}
        if not ports & _taken and all(map(_is_free, ports)):
            _taken.update(ports)
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


class Server:
    """A process that serves. Use it as a context manager: at the end it is killed.

    Args:
        log: file that its output is appended to.
    """

    start_s: ClassVar[float] = START_S
    family: ClassVar[bool] = False
    """Whether it has processes of its own that would live on without it."""

    def __init__(self, log: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0

    def start(self) -> Self:
        """Start it, and wait until it serves. Raises BenchmarkError when it ends or takes too long."""
        self._began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=self.family
            )
        deadline = time.monotonic() + self.start_s
        while not self._serves():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.kill()
                why = f"did not serve within {self.start_s:g} s" if ended is None else f"ended with exit code {ended}"
                last = self.log.strip().rpartition("\n")[2]
                raise BenchmarkError(f"{self._command[0]} {why}; its last line: {last or 'none'}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """End it, and its family, as `kill -9` does."""
        if self._process is None:
            return
        if self.family:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop it: connections stay, connecting still works, nothing is ever answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def rss_mib(self) -> float:
        """Resident memory. Raises BenchmarkError when the process is gone."""
        for line in self._proc("status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise BenchmarkError("the server died")

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(list(self._proc("fd").iterdir()))

    @property
    def log(self) -> str:
        """What it has said since the first start."""
        return self._log.read_text(errors="replace")

    def _said(self) -> str:
        """What it has said since the last start."""
        return self._log.read_bytes()[self._began :].decode(errors="replace")

    def _serves(self) -> bool:
        raise NotImplementedError

    def _signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def _proc(self, name: str) -> Path:
        return Path(f"/proc/{self._pid}/{name}")

    @property
    def _pid(self) -> int:
        if self._process is None or not self.running:
            raise BenchmarkError(f"the server died: {self.log.strip().rpartition(chr(10))[2]}")
        return self._process.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


class Sidecar(Server):
    """The process of `lpc serve`, on a TCP port and a Unix socket.

    Args:
        command: module and arguments of another command that serves.
        settings: as in the environment, without LPC_.
    """

    def __init__(
        self, folder: Path, models: Path, model: str, *, command: Sequence[str] = ("lpc", "serve"), **settings: object
    ) -> None:
        self.port = free_port()
        self.socket = folder / "s.sock"
        values = {
            "models": models,
            "model": model,
            "port": self.port,
            "unix_socket": self.socket,
            "metrics_port": "",
            **settings,
        }
        # The machine's own LPC_ variables are for its own sidecar.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
        for name, value in values.items():
            environment[f"LPC_{name.upper()}"] = json.dumps(value) if isinstance(value, dict) else str(value)
        super().__init__(folder / "sidecar.log", [sys.executable, "-m", *command], environment)

    @property
    def address(self) -> str:
        """Of gRPC over TCP."""
        return f"127.0.0.1:{self.port}"

    def _serves(self) -> bool:
        return "listening on " in self._said()


class RedisServer(Server):
    """A redis-server without persistence, on loopback.

    Args:
        port: default: a free one.
        options: those of redis.conf, with underscores for hyphens; of several words where they take several.
    """

    def __init__(self, folder: Path, *, port: int | None = None, **options: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise BenchmarkError("redis-server is not installed: install it (Debian: apt-get install redis-server)")
        self.port = port or free_port(CLUSTER_BUS)
        folder.mkdir(parents=True, exist_ok=True)
        command = [program, "--port", str(self.port), "--dir", str(folder)]
        for name, value in {"bind": "127.0.0.1", "save": "", "appendonly": "no", **options}.items():
            command += [f"--{name.replace('_', '-')}", *(value.split(" "))]
        super().__init__(folder / "redis.log", command, dict(os.environ))

    @property
    def bus_port(self) -> int:
        """Where a Cluster node listens for the others."""
        return self.port + CLUSTER_BUS

    @property
    def url(self) -> str:
        """For clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of its administrator."""
        return redis.Redis(port=self.port, **{"socket_timeout": 5, **options})

    def ask(self, *command: str) -> Any:
        """Return the answer to one command; None when the server cannot be reached."""
        with contextlib.closing(self.client(socket_timeout=2, decode_responses=True)) as client:
            try:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]
            except (redis.ConnectionError, redis.TimeoutError):
                return None

    def _serves(self) -> bool:
        with contextlib.closing(self.client(socket_timeout=1)) as client:
            try:
                client.ping()
            except redis.AuthenticationError:  # it answers, if only to ask for a password
                return True
            except (redis.ConnectionError, redis.TimeoutError):
                return False
        return True
