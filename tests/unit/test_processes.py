import os
import time
from pathlib import Path

from lpc.bench.processes import Server


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


def lives(process: Path) -> bool:
    """Whose parent has gone is reaped by another, in its time."""
    try:
        return ") Z " not in (process / "stat").read_text()
    except OSError:
        return False
