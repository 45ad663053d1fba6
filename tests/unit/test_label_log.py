"""The label log's files: whole, of one model version, bounded; a disk that fails costs rows and nothing else."""

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from lpc.model.artifact import Manifest
from lpc.model.features import FeatureSettings
from lpc.model.label_rows import metadata_of, read
from predictor_service.labels.log import LabelWriter
from predictor_service.labels.turn import Forecast, Label
from tests.eventually import patiently, until
from tests.label_log import remembered, rows_of

WIDTH = 384
NEVER = 3600.0
MIB = 2**20


def manifest(version: str = "v1") -> Manifest:
    return Manifest("m", version, "int8", {}, FeatureSettings(), WIDTH, "an-encoder", "5ha", {}, {}, f"2026-{version}")


def label(number: int = 0, version: str = "v1", continues: bool = True) -> Label:
    random = np.random.default_rng(number)
    forecast = Forecast(0.25, random.normal(size=WIDTH).astype("<f2").tobytes(), 17, manifest(version))
    turn = remembered(bytes([number % 256]) * 16, 1_700_000_000.1234, 3, 5)
    return Label(turn, forecast, continues, 12.5 if continues else math.nan)


@contextlib.contextmanager
def opened(
    folder: Path, rows: int = 10, interval_s: float = NEVER, max_bytes: int = 100 * MIB
) -> Iterator[tuple[LabelWriter, Counter[str]]]:
    fates: Counter[str] = Counter()
    log = LabelWriter(folder, rows, interval_s, max_bytes, lambda fate, count: fates.update({fate: count}))
    try:
        yield log, fates
    finally:
        log.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("labels-*.npz"))


def test_the_trainer_reads_a_written_file(tmp_path: Path) -> None:
    labels = [label(1), label(2, continues=False)]
    with opened(tmp_path) as (log, _):
        for one in labels:
            log.labelled(one)
    (path,) = files(tmp_path)
    assert {name: (values.dtype.str, values.shape) for name, values in read(path).items()} == {
        "embedding": ("<f2", (2, WIDTH)),
        **dict.fromkeys(("turn_count", "prompt_chars", "history_chars", "last_reply_chars", "tokens"), ("<i4", (2,))),
        "probability": ("<f4", (2,)),
        "continues": ("|b1", (2,)),
        "gap_s": ("<f4", (2,)),
        "asked_at": ("<M8[ms]", (2,)),
        "conversation": ("|S32", (2,)),
    }
    rows = rows_of(tmp_path)
    gaps = [row.pop("gap_s") for row in rows]
    assert gaps[0] == 12.5 and math.isnan(gaps[1])
    for row, one in zip(rows, labels, strict=True):
        assert np.array(row.pop("embedding"), np.float16).tobytes() == one.forecast.embedding
        assert row == {
            "turn_count": 3,
            "prompt_chars": 5,
            "history_chars": 11,
            "last_reply_chars": 7,
            "tokens": 17,
            "probability": 0.25,
            "continues": one.continues,
            "asked_at": datetime(2023, 11, 14, 22, 13, 20, 123_000),
            "conversation": one.turn.arrival.conversation.hex().encode(),
        }
    assert metadata_of(path) == {
        "format": 2,
        "rows": 2,
        "embedding_width": WIDTH,
        "encoder_id": "an-encoder",
        "encoder_sha256": "5ha",
        "precision": "int8",
        "features": json.loads(json.dumps(FeatureSettings().to_dict())),
        "model_version": "v1",
    }
    assert path.stat().st_mode & 0o007 == 0


def test_each_file_contains_one_model_version(tmp_path: Path) -> None:
    with opened(tmp_path, rows=100) as (log, _):
        for number in range(20):
            log.labelled(label(number, version=f"v{number % 2}"))
    found = {metadata_of(path)["model_version"]: metadata_of(path)["rows"] for path in files(tmp_path)}
    assert found == {"v0": 10, "v1": 10}


def test_the_folder_is_bounded_and_the_oldest_files_go_first(tmp_path: Path) -> None:
    (tmp_path / "labels-20200101T000000.000000Z-other.npz").write_bytes(bytes(20_000))
    (tmp_path / "not-ours.npz").write_bytes(bytes(90_000))
    with opened(tmp_path, rows=10, max_bytes=25_000) as (log, fates):
        seen: list[Path] = []
        for number in range(12):
            for _ in range(10):
                log.labelled(label(number))
            until(lambda n=number: fates == {"written": 10 * (n + 1)})
            seen += [path for path in files(tmp_path) if path not in seen]
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 25_000
    assert 2 < len(files(tmp_path)) < 12
    assert files(tmp_path) == seen[-len(files(tmp_path)) :]
    assert (tmp_path / "not-ours.npz").exists()


def test_a_full_disk_drops_rows_until_it_has_space(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(52 * 1024))
    with opened(small_disk, rows=20) as (log, fates):
        for number in range(60):
            log.labelled(label(number))
        until(lambda: fates == {"dropped": 60})
        assert [path.name for path in small_disk.iterdir()] == ["ballast"]
        assert caplog.messages == [
            f"cannot write the label log {small_disk} (No space left on device): rows are dropped until it is writable"
        ]
        ballast.unlink()
        for number in range(20):
            log.labelled(label(number))
        until(lambda: fates == {"dropped": 60, "written": 20})
    assert caplog.messages[-1] == f"the label log {small_disk} is written again"
    (path,) = files(small_disk)
    assert len(read(path)["tokens"]) == 20


def test_adding_never_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, release = threading.Event(), threading.Event()
    real = os.fsync

    def hang(descriptor: int) -> None:
        hung.set()
        assert release.wait(patiently())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    with opened(tmp_path, rows=1) as (log, fates):
        log.labelled(label())
        assert hung.wait(patiently())
        for _ in range(10):
            log.labelled(label())
        # The disk hangs until now.
        assert fates == {"dropped": 6}
        release.set()
    assert fates == {"dropped": 6, "written": 5}


def test_partial_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name, age in (("old", 3600), ("young", 10)):
        path = tmp_path / f".labels-{name}.npz.0123456789abcdef"
        path.write_bytes(b"PK")
        os.utime(path, (time.time() - age,) * 2)
    with opened(tmp_path) as (log, _):
        log.labelled(label())
    assert [path.name for path in tmp_path.glob(".labels-*")] == [".labels-young.npz.0123456789abcdef"]


def test_an_unwritable_folder_drops_rows_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "log"
    folder.write_text("a file is in the way")
    with opened(folder, rows=2) as (log, fates):
        for _ in range(4):
            log.labelled(label())
        until(lambda: fates == {"dropped": 4})
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        folder.unlink()
        for _ in range(2):
            log.labelled(label())
        until(lambda: fates == {"dropped": 4, "written": 2})
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "rows are dropped until it is writable" in caplog.messages[0]


def test_a_disk_that_killed_writers_have_filled_is_written_again(small_disk: Path) -> None:
    for number in range(3):
        left = small_disk / f".labels-{number}.npz.{number:016x}"
        left.write_bytes(bytes(18 * 1024))
        os.utime(left, (time.time() + (-3600, -3600, 900_000)[number],) * 2)  # the last one before the clock was set back
    with opened(small_disk, rows=20) as (log, fates):
        for number in range(20):
            log.labelled(label(number))
        until(lambda: fates == {"written": 20})
    assert [path.suffix for path in small_disk.iterdir()] == [".npz"]


def test_after_the_clock_was_set_back_the_oldest_files_still_go_first(tmp_path: Path) -> None:
    """Files of a time in which the clock was years ahead were kept for ever, and each new one went instead."""
    first = "labels-20990101T000000.000000Z-0000abcd.npz"
    with opened(tmp_path, rows=1) as (log, fates):
        log.labelled(label(0))
        until(lambda: fates == {"written": 1})
        (written,) = files(tmp_path)
        size = written.stat().st_size
        written.rename(tmp_path / first)
    with opened(tmp_path, rows=1, max_bytes=int(3.5 * size)) as (log, fates):
        for number in range(1, 6):
            log.labelled(label(number))
            until(lambda number=number: fates == {"written": number})
    kept = [read(path)["conversation"][0][:2] for path in files(tmp_path)]
    assert kept == [b"03", b"04", b"05"]


@pytest.mark.parametrize("name", ["labels-99991231T235959.999999Z-0.npz", "labels-20991399T000000.000000Z-0.npz"])
def test_a_file_whose_name_has_an_impossible_time_stops_no_writing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with opened(tmp_path, rows=1) as (log, fates):
        log.labelled(label())
        until(lambda: fates == {"written": 1})
