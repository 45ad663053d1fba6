"""Commands that are killed before each of their file operations: `python -m tests.faults.killed_commands MODELS STEP`.

MODELS has a model `tiny` of two versions. A child of each command is killed before its first operation on a file of the model,
another before the next one, and so on in steps of STEP, until the command ends. After each kill the model is checked, then the
command is run again without a kill.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lpc.model.artifact import read_manifest, verify
from lpc.model.versions import newest_first, promote, prune, read_promotion, rollback, served_folder, unpin
from lpc_apps.training import retrain
from lpc_apps.training.export import export
from lpc_apps.training.head_file import HeadFile
from tests.tiny_model import tiny_encoder

OPERATIONS: Final = ("open", "os.", "shutil.", "tempfile.")


def commands(folder: Path) -> dict[str, Callable[[], object]]:
    """Return each command; one that is run again finds what the killed one has left."""
    encoder, head = tiny_encoder(folder.parent / ".encoder-tiny"), folder.parent / ".head-v2.safetensors"

    def publish() -> None:
        live = served_folder(folder)
        retrain.publish(live, encoder, HeadFile.load(head), read_manifest(live))  # type: ignore[arg-type]

    def exported() -> None:
        export(folder.parent, name="tiny", encoder=encoder, head=head, precision="fp32", version="v3")

    def over_damage() -> None:
        export(folder.parent, name="tiny", encoder=encoder, head=head, precision="fp32", version="v2")

    return {
        "promote": lambda: promote(folder, "v1"),
        "rollback": lambda: served_folder(folder).name == "v2" and rollback(folder),  # one that was killed late is complete
        "unpin": lambda: unpin(folder),
        "prune": lambda: prune(folder, 1),
        "export": exported,
        "export over a damaged version": over_damage,
        "publish": publish,
    }


def run(command: Callable[[], object], folder: Path, last: int | None) -> bool:
    """Run a command in a child, killed before its operation ``last``; return whether it ended before that."""
    child = os.fork()
    if not child:
        count = 0

        def kill(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event.startswith(OPERATIONS) and any(str(folder) in str(one) for one in arguments):
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1

        try:
            sys.addaudithook(kill)
            command()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def faults(folder: Path, damaged: frozenset[str]) -> list[str]:
    """Return what is wrong with a model after a kill. ``damaged``: versions that the command found damaged."""
    found = []
    try:
        read_promotion(folder)
        verify(served_folder(folder))
        found += [f"{one.name} is half there" for one in newest_first(folder) if one.name not in damaged and not _whole(one)]
    except Exception as error:
        found.append(repr(error))
    return found


def _whole(version: Path) -> bool:
    try:
        return verify(version).version == version.name
    except Exception:
        return False


def main(models: Path, step: int) -> None:
    """Print the number of kills of each command and what was wrong after them, as JSON."""
    kills: dict[str, int] = {}
    bad: list[str] = []
    for name in commands(models / "tiny"):
        kills[name], ends, last = 0, False, 0
        while not ends:
            copy = Path(shutil.copytree(models, models.with_name("copy")))
            folder = copy / "tiny"
            damaged: frozenset[str] = frozenset()
            if "damaged" in name:
                (folder / "v2" / "model.onnx").write_bytes(b"damaged")
                damaged = frozenset({"v2"})
            elif name != "prune":
                promote(folder, "v1")
                promote(folder, "v2")
            command = commands(folder)[name]
            ends = run(command, folder, last)
            if not ends:
                kills[name] += 1
                bad += [f"{name}, before operation {last}: {one}" for one in faults(folder, damaged)]
                if not run(command, folder, None):
                    bad.append(f"{name}, before operation {last}: it cannot be run again")
                bad += [f"{name}, again after operation {last}: {one}" for one in faults(folder, frozenset())]
            shutil.rmtree(copy)
            last += step
    print(json.dumps({"kills": kills, "bad": bad}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
