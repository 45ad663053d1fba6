"""CPU time of a scheduler's step, patched with the default queue against stock: `python -m tests.upstream.cost data/vllm`.

Three processes on one processor serve the same conversations in turn: stock, patched, and stock once more as a control. Step k
does the same work in every round. Other work on the machine only adds to its time, so its least time over the rounds counts.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.engine.versions import unpack
from tests.upstream.side import PATCH, RELEASE, Side, patched


def main(folder: Path, sets: int = 5, rounds: int = 20) -> None:
    """Print the time of a step and its ratio to stock's by set of processes, and the median of the ratios."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    release, ratios = unpack(RELEASE, folder), []
    with tempfile.TemporaryDirectory() as temporary:
        files = (release, patched(release, Path(temporary) / "patched", PATCH), release)
        for _ in range(sets):
            sides = [Side(of) for of in files]
            served: list[list[list[int]]] = [[], [], []]
            for number in range(3 * rounds):
                which = (number + number // 3) % 3
                served[which].append(sides[which].ask("serve", "stock")["step_ns"])
            for side in sides:
                side.close()
            stock, ours, control = (statistics.mean(map(min, zip(*one, strict=True))) / 1000 for one in served)
            ratios.append((ours / stock, control / stock))
            print(f"{stock:.2f} us a step; patched {ratios[-1][0]:.4f}, control {ratios[-1][1]:.4f} of it", flush=True)
    ours, control = map(statistics.median, zip(*ratios, strict=True))
    print(f"median of {sets} sets, {rounds} rounds each: patched {ours:.4f}, control {control:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:]))
