"""Memory of this process: how much it may have, and how much it takes while something runs. Known on Linux only."""

import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 2**20
NO_LIMIT: Final = 2**60
"""Above it a number is a kernel's way to say that there is no limit."""
SAMPLE_S: Final = 0.002
PROC: Final = Path("/proc/self")
CGROUPS: Final = Path("/sys/fs/cgroup")


class MemoryGiven(NamedTuple):
    """What the process may have, and who says so."""

    bytes: int
    by: str


def memory_given(setting_mib: int = 0, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> MemoryGiven | None:
    """Return the tightest bound on this process's memory; None where there is none.

    Args:
        setting_mib: the operator's own, MiB; 0: none.
        proc: of this process.
        cgroups: where the cgroups of version 1 or 2 are mounted.
    """
    bounds = [MemoryGiven(limit, "the cgroup's limit") for limit in _of_cgroups(proc, cgroups)]
    if setting_mib:
        bounds.append(MemoryGiven(setting_mib * MIB, "LPC_MEMORY_MIB"))
    return min((bound for bound in bounds if bound.bytes < NO_LIMIT), default=None)


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the limits of this process's cgroup and of all above it. In a container its own may be mounted as the root."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        for place in (folder, *(parent for parent in folder.parents if parent.is_relative_to(root))):
            try:
                text = (place / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():
                yield int(text)


def resident(proc: Path = PROC) -> int:
    """Return the bytes that this process holds in memory; 0 where that is not told."""
    try:
        return int((proc / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_during(work: Callable[[], object]) -> int:
    """Run something that lets other threads run; return the most bytes that the process held meanwhile or afterwards."""
    peak, done = resident(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_S):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch, name="peak", daemon=True)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(peak, resident())
