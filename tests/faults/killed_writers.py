"""A process that is killed while it saves: `python -m tests.faults.killed_writers FOLDER MODEL KILLS`.

Each killed child saves the return model, labels, verdicts and promotions in turn, as fast as it can.
"""

import json
import os
import queue
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from lpc.model import label_rows
from lpc.model.artifact import read_manifest
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrival, WatchedTurn
from lpc.model.returns.model import ReturnModel
from lpc.model.versions import PROMOTED, promote, read_promotion
from predictor_service.labels.log import LabelWriter
from predictor_service.labels.turn import Forecast, Label, Sent, Turn
from predictor_service.returns import learning
from response_cache.semantic.evidence_file import Verdicts

ROWS = 50
"""Rows of a file of labels."""
LONGEST_S = 0.05
"""Longest time until a child is killed after its first save."""


def save_forever(folder: Path, model: Path, begun: int) -> None:
    """Save everything again and again; write a byte to ``begun`` after the first time."""
    returns, number = ReturnModel(1000), 0
    for n in range(500):
        turn = WatchedTurn(arrival=Arrival(b"%d" % n, float(n), Facts(1, 100.0)))
        returns.answer([turn], [turn.arrival.facts])
    verdicts = Verdicts(folder / "verdicts.json")
    fates: queue.Queue[tuple[str, int]] = queue.Queue()
    writer = LabelWriter(folder / "labels", ROWS, 1e6, 2**20, lambda *fate: fates.put(fate))
    forecast = Forecast(0.5, bytes(768), 3, read_manifest(model / "v1"))
    labelled = Turn(arrival=Arrival(bytes(16), 1.7e9, Facts(1)), sent=Sent(b"", b"", False, 1, 1, 1, 1))
    while True:
        number += 1
        learning.write_state(folder / "returns.npz", returns.state(1e3))
        for _ in range(ROWS):
            writer.labelled(Label(labelled, forecast, True, 1.0))
        assert fates.get() == ("written", ROWS)
        verdicts.grow("key", {"turned": int(time.monotonic() * 1000)})
        verdicts.write()
        promote(model, f"v{1 + number % 2}")
        if number == 1:
            os.write(begun, b".")


def unreadable(folder: Path, model: Path) -> list[str]:
    """Return the files that cannot be read."""
    found = []
    readers = {
        folder / "returns.npz": lambda path: ReturnModel(1000).restore(learning.read_state(path) or {}, 1e3),
        folder / "verdicts.json": lambda path: Verdicts(path),
        model / PROMOTED: lambda path: read_promotion(path.parent),
        **dict.fromkeys((folder / "labels").glob(label_rows.FILES), label_rows.read),
    }
    for path, read in readers.items():
        try:
            read(path)
        except Exception as error:
            found.append(f"{path.name}: {error!r}")
    return found


def main(folder: Path, model: Path, kills: int) -> None:
    """Kill a child again and again, and print the unreadable files and the temporary files as JSON."""
    draw, bad = random.Random(0), []
    for _ in range(kills):
        reading, begun = os.pipe()
        child = os.fork()
        if not child:
            try:
                save_forever(folder, model, begun)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(begun)
        assert os.read(reading, 1) == b".", "the child ended before its first save"
        os.close(reading)
        time.sleep(draw.uniform(0.0, LONGEST_S))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        bad += unreadable(folder, model)
    left = {path for path in (*folder.rglob(".*.*"), *model.glob(".*.*")) if not path.name.endswith(".lock")}
    print(json.dumps({"kills": kills, "unreadable": bad, "temporary": len(left)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
