"""Real redis-servers for tests: on free loopback ports, in folders of their own, to be killed, stopped and restarted."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import redis


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One redis-server process. Options are those of redis.conf: ``RedisServer(folder, requirepass="x")``."""

    def __init__(self, folder: Path, *, port: int | None = None, **options: str) -> None:
        self.port = port or free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: str) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5, **options)  # type: ignore[arg-type]

    def start(self) -> Self:
        """Start the server and wait until it answers, if only to ask for a password."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {"save": "", "appendonly": "no", "bind": "127.0.0.1", **self._options}
        command = [shutil.which("redis-server") or "redis-server", "--port", str(self.port), "--dir", str(self._folder)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", *(value.split(" ") if value else [""])]
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.closing(redis.Redis(port=self.port, socket_timeout=1)) as probe:
                try:
                    probe.ping()
                except redis.AuthenticationError:
                    return self
                except (redis.ConnectionError, redis.TimeoutError):
                    time.sleep(0.02)
                else:
                    return self
        raise RuntimeError(f"redis-server did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End the server at once, as kill -9 does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop the process: connections stay, connecting still works, nothing is ever answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


@pytest.fixture(scope="session")
def redis_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that neither kill nor configure it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(redis_session: RedisServer) -> RedisServer:
    """A running server without data."""
    with contextlib.closing(redis_session.client()) as client:
        client.flushall()
    return redis_session
