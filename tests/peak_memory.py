"""Peak memory of a process with all its descendants, sampled from Linux' /proc."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

INTERVAL_S: Final = 0.05


class PeakMemory:
    """Samples in a thread, within a block.

    Attributes:
        peak: largest sum so far of the processes' proportional set sizes, bytes. Pages that processes share count once.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.peak = max(self.peak, _family_bytes(self._pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()


def _family_bytes(pid: int) -> int:
    """Return the proportional set size of a process and its descendants; 0 for one that has ended."""
    process = Path(f"/proc/{pid}")
    try:
        rollup = process.joinpath("smaps_rollup").read_text()
        children = [child for task in process.joinpath("task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return own + sum(_family_bytes(int(child)) for child in children)
