"""The label log's disk fills up under load: answers go on; when there is room again, so does the log."""

import asyncio
import contextlib
import itertools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.processes import Sidecar
from lpc.model import label_rows
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from tests.tuned import command

DISK_KIB: Final = 256
ROWS: Final = 4
"""Of one file of the label log: under load files are written all the time."""
CALLERS: Final = 4


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system of DISK_KIB at a folder; tell whether that was allowed (it takes the rights of root)."""
    folder.mkdir()
    options = f"size={DISK_KIB}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        # Lazily: a reader's thread may close its file a moment later, and that would fail an umount.
        subprocess.run(["umount", "--lazy", folder], check=True)


async def _keep_asking(address: str, stop: asyncio.Event) -> tuple[int, int]:
    answered = failed = 0
    numbers = itertools.count()

    async def call(stub: Any) -> None:
        nonlocal answered, failed
        while not stop.is_set():
            message = pb.ChatMessage(role="user", content=f"question {next(numbers)} of many that are long enough to be known")
            conversation = pb.Conversation(chat=pb.ChatMessages(messages=[message]), conversation_id=str(next(numbers)))
            try:
                await stub.Predict(pb.PredictRequest(conversation=conversation), timeout=30)
                answered += 1
            except grpc.aio.AioRpcError:
                failed += 1

    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = rpc.ContinuationPredictorStub(channel)
        await asyncio.gather(*(call(stub) for _ in range(CALLERS)))
    return answered, failed


async def _until(sidecar: Sidecar, words: str, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while words not in sidecar.log:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def _fill(sidecar: Sidecar, disk: Path, seconds: float) -> dict[str, Any]:
    stop = asyncio.Event()
    asking = asyncio.create_task(_keep_asking(sidecar.address, stop))
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    noticed = await _until(sidecar, "rows are dropped until it can")
    await asyncio.sleep(seconds)
    ballast.unlink()
    recovered = await _until(sidecar, "is written again")
    stop.set()
    answered, failed = await asking
    return {"answered": answered, "failed": failed, "noticed": noticed, "recovered": recovered}


def full_disk(folder: Path, models: Path, model: str, *, seconds: float) -> dict[str, Any]:
    """Keep the disk full for ``seconds``; return what became of the requests, and of the log's files.

    Raises:
        BenchmarkError: the sidecar does not start.
    """
    with small_disk(folder / "disk") as allowed:
        if not allowed:
            return {"skipped": "mounting a small file system takes the rights of root", "passed": True}
        disk = folder / "disk"
        serves = command(label_log_rows=ROWS)
        settings = {"label_log": disk, "label_horizon_s": 1, "log_format": "text"}
        with Sidecar(folder, models, model, command=serves, **settings) as sidecar:
            figures = asyncio.run(_fill(sidecar, disk, seconds))
            figures["lines_about_it"] = sidecar.log.count("rows are dropped until it can")
        files = list(disk.glob(label_rows.FILES))
        figures["readable_files"] = sum(len(label_rows.read(file)["tokens"]) > 0 for file in files)
        figures["files"] = len(files)
    figures["passed"] = (
        figures["failed"] == 0
        and figures["noticed"]
        and figures["recovered"]
        and figures["lines_about_it"] <= 1
        and 0 < figures["files"] == figures["readable_files"]
    )
    return figures
