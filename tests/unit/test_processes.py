import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from benchmarks import BenchmarkError, processes
from benchmarks.processes import CLUSTER_BUS, Server, free_port


class Family(Server):
    """A shell with a child that would live on."""

    family = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "log", ["sh", "-c", "sleep 600 & echo $!; wait"], dict(os.environ))

    def _serves(self) -> bool:
        return self.log.endswith("\n")


def test_a_server_with_a_family_leaves_none_of_it_behind(tmp_path: Path) -> None:
    with Family(tmp_path) as server:
        child = Path(f"/proc/{int(server.log)}")
        assert lives(child)
    assert not server.running
    deadline = time.monotonic() + 30
    while lives(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(child)


class Silent(Server):
    """It says something and never serves."""

    start_s = 2.0

    def __init__(self, folder: Path, command: str) -> None:
        super().__init__(folder / "log", ["sh", "-c", command], dict(os.environ))

    def _serves(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("command", "why"),
    [("echo bye; exit 3", "ended with exit code 3; its last line: bye"), ("exec sleep 600", r"did not serve within 2 s")],
)
def test_a_server_that_does_not_serve_says_why_and_is_not_left_behind(tmp_path: Path, command: str, why: str) -> None:
    server = Silent(tmp_path, command)
    with pytest.raises(BenchmarkError, match=why):
        server.start()
    assert not server.running


def lives(process: Path) -> bool:
    """Whose parent has gone is reaped by another, in its time."""
    try:
        return ") Z " not in (process / "stat").read_text()
    except OSError:
        return False


def test_a_port_is_given_once_and_not_from_those_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_clients_from", lambda: 20_000)
    given = [free_port() for _ in range(300)] + [free_port(CLUSTER_BUS) for _ in range(100)]
    assert len(set(given)) == len(given)
    assert all(processes.LOWEST_PORT <= port < 20_000 for port in given)


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first, below = processes.LOWEST_PORT, processes.LOWEST_PORT + 1_001
    monkeypatch.setattr(processes, "_clients_from", lambda: below)
    with contextlib.ExitStack() as servers:
        held = set()
        for port in range(first, below - 20):
            with contextlib.suppress(OSError):
                servers.enter_context(socket.create_server(("127.0.0.1", port)))
                held.add(port)
        assert free_port() not in held


def test_ports_with_a_second_one_above_stay_below_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_clients_from", lambda: 1_024)
    assert all(free_port(CLUSTER_BUS) + CLUSTER_BUS < 65_536 for _ in range(100))
