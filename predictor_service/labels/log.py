"""The label log: labelled predictions as .npz files for retraining, with embeddings and numbers, never text.

Files appear atomically (`lpc.files`). Each contains predictions of one model version, which its metadata names. A separate
thread writes them. If writing fails (a full disk, a folder without permission), rows are dropped and counted, one message is
logged, and serving goes on.
"""

import errno
import logging
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from lpc.files import sweep, writing
from lpc.model.artifact import Manifest
from lpc.model.label_rows import EMBEDDING, FILES, write
from lpc.wire.bugs import log_bug
from predictor_service.labels.turn import Label, TurnObserver

log = logging.getLogger(__name__)

QUEUED_FILES: Final = 4
"""Files whose rows may be queued, above which new rows are dropped."""

_TIME_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"
_TIME: Final = re.compile(r"labels-(\d{8}T\d{6}\.\d{6}Z)-")
"""The time in a file's name."""

CLOSE_S: Final = 10.0
"""Time for writing the last files at shutdown, so that a disk that hangs does not block it."""

Fate: TypeAlias = Literal["written", "dropped"]


@dataclass
class _Rows:
    """Rows of one model version that are not written yet. ``due``: latest time of writing, monotonic seconds."""

    manifest: Manifest
    due: float
    labels: list[Label] = field(default_factory=list)


class LabelWriter(TurnObserver):
    """Writes labels into a folder, in a thread of its own. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        rows: int,
        interval_s: float,
        max_bytes: int,
        count: Callable[[Fate, int], None],
        ahead: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start the thread, which creates the folder.

        Args:
            rows, interval_s: a file is written when it has ``rows`` rows or its first row is ``interval_s`` seconds old.
            max_bytes: limit of all files in the folder, including those of other sidecars; the oldest are deleted.
            count: called from any thread with the number of rows written or dropped.
            ahead: returns by how many seconds the wall clock, whose time the rows contain, is ahead of the turns' clock.
        """
        self.folder = folder
        self._rows = rows
        self._interval_s = interval_s
        self._max_bytes = max_bytes
        self._count = count
        self._ahead = ahead
        self._process = secrets.token_hex(4)
        self._failing = False
        self._queue: queue.Queue[Label | None] = queue.Queue(QUEUED_FILES * rows)
        self._thread = threading.Thread(target=self._run, name="label-log", daemon=True)
        self._thread.start()

    def labelled(self, label: Label) -> None:
        """Queue a label, or drop it if the queue is full."""
        try:
            self._queue.put_nowait(label)
        except queue.Full:
            self._count("dropped", 1)

    def close(self) -> None:
        """Write the queued rows, in at most about CLOSE_S seconds."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the label log %s was not written within %g s: its last rows are lost", self.folder, CLOSE_S)

    def _run(self) -> None:
        self._make_folder()
        # One file per version, because labels of the old version's predictions follow until a horizon after a reload.
        files: dict[tuple[str, str], _Rows] = {}
        while True:
            closing = False
            try:
                label = self._queue.get(timeout=self._patience(files.values()))
            except queue.Empty:
                pass
            else:
                if label is None:
                    closing = True
                else:
                    manifest = label.forecast.manifest
                    version = manifest.version, manifest.created
                    waiting = files.setdefault(version, _Rows(manifest, time.monotonic() + self._interval_s))
                    waiting.labels.append(label)
            now = time.monotonic()
            for version, waiting in list(files.items()):
                if closing or waiting.due <= now or len(waiting.labels) >= self._rows:
                    del files[version]
                    self._write(waiting)
            if closing:
                return

    def _patience(self, files: Iterable[_Rows]) -> float | None:
        """Return the seconds until the next file is due; None: there are no rows."""
        due = min((waiting.due for waiting in files), default=None)
        return None if due is None else max(due - time.monotonic(), 0.0)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            self._failed(error)

    def _write(self, waiting: _Rows) -> None:
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._write_file(waiting)
        except Exception as error:  # any error, so that the thread goes on
            self._failed(error)
            self._count("dropped", len(waiting.labels))
            return
        self._count("written", len(waiting.labels))
        if self._failing:
            self._failing = False
            log.info("the label log %s is written again", self.folder)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            log_bug(log, "the label log", error)
        if not self._failing:
            self._failing = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            log.error("cannot write the label log %s (%s): rows are dropped until it is writable", self.folder, reason)

    def _write_file(self, waiting: _Rows) -> None:
        """Write one file atomically, and delete the oldest ones above the limit. Raises OSError."""
        sweep(self.folder, FILES)
        path = self.folder / f"labels-{self._written_at()}-{self._process}.npz"
        # Not readable by all users, because embeddings reveal something about the text.
        with writing(path, 0o640) as file:
            write(file, waiting.manifest, columns_of(waiting.labels, self._ahead()))
            file.flush()
            size = os.fstat(file.fileno()).st_size
            if size > self._max_bytes:
                raise OSError(errno.EFBIG, f"{len(waiting.labels)} rows take {size} bytes; label_log_mib: {self._max_bytes}")
            self._delete_oldest(size)

    def _written_at(self) -> str:
        """Return a time for a file's name, after those of all files that exist.

        So the names are in the order of writing, also after the clock was set back: else the newest rows would go first.
        """
        latest = max((found[1] for path in self.folder.glob(FILES) if (found := _TIME.match(path.name))), default="")
        now = datetime.now(UTC)
        with suppress(ValueError, OverflowError):  # a time that does not exist, or the last one
            now = max(now, datetime.strptime(latest, _TIME_FORMAT).replace(tzinfo=UTC) + timedelta(microseconds=1))
        return now.strftime(_TIME_FORMAT)

    def _delete_oldest(self, size: int) -> None:
        """Delete the oldest files until one of ``size`` bytes fits."""
        sizes: dict[Path, int] = {}
        for path in sorted(self.folder.glob(FILES)):
            with suppress(FileNotFoundError):  # another sidecar has deleted it
                sizes[path] = path.stat().st_size
        excess = sum(sizes.values()) + size - self._max_bytes
        for path, freed in sizes.items():
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= freed


def columns_of(labels: Sequence[Label], ahead: float = 0.0) -> dict[str, Any]:
    """Return one or more labels as columns for `label_rows.write`; ``ahead`` as in `LabelWriter`."""
    arrivals = [label.turn.arrival for label in labels]
    sent = [label.turn.sent for label in labels]
    forecasts = [label.forecast for label in labels]
    return {
        EMBEDDING: np.frombuffer(b"".join(p.embedding or b"" for p in forecasts), "<f2").reshape(len(labels), -1),
        "turn_count": [one.turn_count for one in sent],
        "prompt_chars": [one.prompt_chars for one in sent],
        "history_chars": [one.history_chars for one in sent],
        "last_reply_chars": [one.last_reply_chars for one in sent],
        "tokens": [p.tokens for p in forecasts],
        "probability": [p.probability for p in forecasts],
        "continues": [label.continues for label in labels],
        "gap_s": [label.gap_s for label in labels],
        "asked_at": [round((one.asked_at + ahead) * 1000) for one in arrivals],
        "conversation": [one.conversation.hex() for one in arrivals],
    }
