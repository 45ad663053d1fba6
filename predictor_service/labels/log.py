"""The label log: labelled predictions as .npz files, for retraining; embeddings and numbers, never text.

A file is seen whole or not at all (`lpc.files`). It holds predictions of one model version, which its metadata names. A thread
of its own writes. If that fails (a full disk, a folder that cannot be written), rows are dropped and counted, the log
reports it once, and serving goes on.
"""

import errno
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from lpc.files import writing
from lpc.model.artifact import Manifest
from lpc.model.label_rows import EMBEDDING, FILES, write
from lpc.wire.bugs import log_bug
from predictor_service.labels.memory import Label, TurnObserver

log = logging.getLogger(__name__)

QUEUED_FILES: Final = 4
"""How many files' rows may wait for the thread before new ones are dropped."""

CLOSE_S: Final = 10.0
"""Seconds that the last files get at shutdown: a disk that hangs must not hold it up."""

STALE_S: Final = 600.0
"""Age at which a partial file is taken to be a killed process's, and removed."""

Fate: TypeAlias = Literal["written", "dropped"]


@dataclass
class _Rows:
    """Rows of one model version that wait for their file. ``due``: when it is written at the latest, monotonic seconds."""

    manifest: Manifest
    due: float
    labels: list[Label] = field(default_factory=list)


class LabelWriter(TurnObserver):
    """Writes labels into a folder. Any thread may hand them over; one of its own writes."""

    def __init__(self, folder: Path, rows: int, interval_s: float, max_bytes: int, count: Callable[[Fate, int], None]) -> None:
        """Start the thread. The folder is made if need be.

        Args:
            rows, interval_s: a file is written when it has so many rows, or its first row is so many seconds old.
            max_bytes: of all files of the folder, those of other sidecars too; the oldest are deleted.
            count: called with the rows written or dropped; from any thread.
        """
        self.folder = folder
        self._rows = rows
        self._interval_s = interval_s
        self._max_bytes = max_bytes
        self._count = count
        self._process = secrets.token_hex(4)
        self._failing = False
        self._queue: queue.Queue[Label | None] = queue.Queue(QUEUED_FILES * rows)
        self._thread = threading.Thread(target=self._run, name="label-log", daemon=True)
        self._thread.start()

    def labelled(self, label: Label) -> None:
        """Take a label, at once; where the thread cannot follow, it is dropped."""
        try:
            self._queue.put_nowait(label)
        except queue.Full:
            self._count("dropped", 1)

    def close(self) -> None:
        """Write what was added, for at most about CLOSE_S seconds."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the label log %s was not finished within %g s: its last rows are lost", self.folder, CLOSE_S)

    def _run(self) -> None:
        self._make_folder()
        # By version, since the label of an old version's prediction comes up to a horizon after the reload.
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
        """Return the seconds until a file is due; None: none is begun."""
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
        except Exception as error:  # OSError, and what nobody thought of: the thread must live on
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
            log.error("the label log %s cannot be written (%s): rows are dropped until it can", self.folder, reason)

    def _write_file(self, waiting: _Rows) -> None:
        """Write one file, whole or not at all, and delete what is then too much. Raises OSError."""
        written_at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = self.folder / f"labels-{written_at}-{self._process}.npz"
        # Not for everyone to read: an embedding tells something of its text.
        with writing(path, 0o640) as file:
            write(file, waiting.manifest, columns_of(waiting.labels))
            file.flush()
            size = os.fstat(file.fileno()).st_size
            if size > self._max_bytes:
                raise OSError(errno.EFBIG, f"{len(waiting.labels)} rows take {size} bytes; label_log_mib: {self._max_bytes}")
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        """Delete the oldest files, until one of ``size`` bytes fits, and what killed processes left half-written."""
        for partial in self.folder.glob(f".{FILES}.*"):
            with suppress(FileNotFoundError):  # here and below: another sidecar was faster
                if time.time() - partial.stat().st_mtime > STALE_S:
                    partial.unlink()
        sizes: dict[Path, int] = {}
        for path in sorted(self.folder.glob(FILES)):
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
        excess = sum(sizes.values()) + size - self._max_bytes
        for path, freed in sizes.items():
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= freed


def columns_of(labels: Sequence[Label]) -> dict[str, Any]:
    """Return labels, at least one, as `label_rows.write` takes them."""
    turns = [label.turn for label in labels]
    forecasts = [label.forecast for label in labels]
    return {
        EMBEDDING: np.frombuffer(b"".join(p.embedding or b"" for p in forecasts), "<f2").reshape(len(labels), -1),
        "turn_count": [turn.turn_count for turn in turns],
        "prompt_chars": [turn.prompt_chars for turn in turns],
        "history_chars": [turn.history_chars for turn in turns],
        "last_reply_chars": [turn.last_reply_chars for turn in turns],
        "tokens": [p.tokens for p in forecasts],
        "probability": [p.probability for p in forecasts],
        "continues": [label.continues for label in labels],
        "gap_s": [label.gap_s for label in labels],
        "asked_at": [round(turn.asked_at * 1000) for turn in turns],
        "conversation": [turn.conversation.hex() for turn in turns],
    }
