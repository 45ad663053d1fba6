"""Sidecars and Redis servers as processes that benchmarks and tests start, stop and kill. Each keeps its address."""

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

from testing import Unavailable

START_S: Final = 300.0
"""Time limit of a start. It is for processes that hang: a failed one exits."""
POLL_S: Final = 0.02
CLUSTER_BUS: Final = 10_000
"""Offset of the port on which a Redis Cluster node listens for the other nodes."""
LOWEST_PORT: Final = 10_000


_draws = random.SystemRandom()  # a generator of its own: processes with the same global seed would get the same ports
_taken: set[int] = set()
"""Ports that this process has returned. A port stays reserved while its server is down."""


def _clients_from() -> int:
    """Return the first port of the system's range for outgoing connections (Linux; elsewhere Linux's default)."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def free_port(also: int = 0) -> int:
    """Return a free TCP port on loopback, never the same one twice.

    It is below the system's range for outgoing connections and for port 0, which could take it while its server is down.

    Args:
        also: offset of a second port that must also be free.
    """
    highest = 65_536 - also
    below = min(_clients_from(), highest)
    if below - LOWEST_PORT < 1_000:  # the system's range for outgoing connections covers nearly all ports
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
    """A server process. As a context manager it kills the process at the end.

    Args:
        log: file to which its output is appended.
    """

    start_s: ClassVar[float] = START_S
    family: ClassVar[bool] = False
    """Whether it has child processes that would survive it."""

    def __init__(self, log: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._command = command
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0

    def start(self) -> Self:
        """Start it, and wait until it serves. Raises Unavailable if it exits or exceeds the time limit."""
        self._began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self.environment, start_new_session=self.family
            )
        deadline = time.monotonic() + self.start_s
        while not self._serves():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.kill()
                why = f"did not serve within {self.start_s:g} s" if ended is None else f"ended with exit code {ended}"
                lines = self.log.strip().splitlines()
                last = next((line for line in lines if line.startswith("lpc: ")), lines[-1] if lines else "none")
                raise Unavailable(f"{self._command[0]} {why}: {last}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """Kill it and its child processes (SIGKILL)."""
        if self._process is None:
            return
        if self.family:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop it (SIGSTOP): it accepts connections but never answers."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def rss_mib(self) -> float:
        """Return its resident memory. Raises Unavailable if the process is gone."""
        for line in self.proc_file("status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise Unavailable("the server died")

    @property
    def processor_s(self) -> float:
        """Return the processor time that it has used, seconds. Raises Unavailable if the process is gone."""
        fields = self.proc_file("stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(list(self.proc_file("fd").iterdir()))

    @property
    def log(self) -> str:
        """Its output since the first start."""
        return self._log.read_text(errors="replace")

    def _said(self) -> str:
        """Its output since the last start."""
        return self._log.read_bytes()[self._began :].decode(errors="replace")

    def _serves(self) -> bool:
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    def proc_file(self, name: str) -> Path:
        """Return a file of the process under /proc. Raises Unavailable if the process is gone."""
        return Path(f"/proc/{self._pid}/{name}")

    @property
    def _pid(self) -> int:
        if self._process is None or not self.running:
            raise Unavailable(f"the server died: {self.log.strip().rpartition(chr(10))[2]}")
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # such as a test's time limit
            self.kill()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


class Sidecar(Server):
    """The process of `lpc serve`, on a TCP port and a Unix socket.

    Args:
        command: module and arguments of another server command.
        python: interpreter that runs it.
        settings: names and values of LPC_ variables, without the prefix.
    """

    def __init__(
        self,
        folder: Path,
        models: Path,
        model: str,
        *,
        command: Sequence[str] = ("lpc_cli", "serve"),
        python: str = sys.executable,
        **settings: object,
    ) -> None:
        self.port = free_port()
        self.socket = folder / "s.sock"
        values = {
            "models": models,
            "model": model,
            "port": self.port,
            "unix_socket": self.socket,
            "metrics_port": "",
            # Benchmarks send more than an engine.
            "client_rate": 0,
            **settings,
        }
        # Drop LPC_ variables of the environment.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
        for name, value in values.items():
            environment[f"LPC_{name.upper()}"] = json.dumps(value) if isinstance(value, dict) else str(value)
        super().__init__(folder / "sidecar.log", [python, "-m", *command], environment)

    @property
    def address(self) -> str:
        """Of gRPC over TCP."""
        return f"127.0.0.1:{self.port}"

    @property
    def socket_address(self) -> str:
        """Of gRPC over the Unix socket."""
        return f"unix://{self.socket}"

    def _serves(self) -> bool:
        return "listening on " in self._said()


class RedisServer(Server):
    """A redis-server without persistence, on loopback.

    Args:
        port: default: a free port.
        options: of redis.conf, with underscores for hyphens.
    """

    def __init__(self, folder: Path, *, port: int | None = None, **options: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Unavailable("redis-server is not installed: install it (Debian: apt-get install redis-server)")
        self.port = port or free_port(CLUSTER_BUS)
        folder.mkdir(parents=True, exist_ok=True)
        command = [program, "--port", str(self.port), "--dir", str(folder)]
        for name, value in {"bind": "127.0.0.1", "save": "", "appendonly": "no", **options}.items():
            command += [f"--{name.replace('_', '-')}", *(value.split(" "))]
        super().__init__(folder / "redis.log", command, dict(os.environ))

    @property
    def bus_port(self) -> int:
        """Port on which a Cluster node listens for the other nodes."""
        return self.port + CLUSTER_BUS

    @property
    def url(self) -> str:
        """For clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a client with administrator rights."""
        return redis.Redis(port=self.port, **{"socket_timeout": 5, **options})

    def ask(self, *command: str) -> Any:
        """Return the answer to one command; None if the server is unreachable."""
        with contextlib.closing(self.client(socket_timeout=2, decode_responses=True)) as client:
            try:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]
            except (redis.ConnectionError, redis.TimeoutError):
                return None

    def _serves(self) -> bool:
        with contextlib.closing(self.client(socket_timeout=1)) as client:
            try:
                client.ping()
            except redis.AuthenticationError:  # it answers, even if only to request a password
                return True
            except (redis.ConnectionError, redis.TimeoutError):
                return False
        return True
