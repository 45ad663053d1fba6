"""Label logs as training reads them: what is taken, what is left out and said, how time and conversations are split."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lpc.model import label_rows
from lpc.model.artifact import Manifest
from lpc.model.features import FeatureSettings
from lpc.model.label_rows import COUNTS, write
from lpc_apps.training.label_log import LabelLogError, TooFewTurnsError, newest_side, read_label_log
from predictor_service.labels.log import columns_of
from predictor_service.labels.turn import Forecast, Label
from tests.label_log import DAY_MS, END_MS, made_up_rows, remembered, write_file, write_made_up

WIDTH = 8
LIVE = Manifest("m", "v1", "int8", {}, FeatureSettings(), WIDTH, "an-encoder", "5ha", {}, {}, "2026-11-01")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made_up(tmp_path_factory.mktemp("log"), LIVE, made_up_rows(WIDTH, 1500))


def test_the_newest_day_is_evaluated_and_no_conversation_stands_on_two_sides(log: Path) -> None:
    found = read_label_log(log, LIVE)
    assert found.notes == ()
    assert found.last - found.cut == np.timedelta64(24, "h")
    sides = {side: set(found.examples.conversation[found.examples.split == side]) for side in np.unique(found.examples.split)}
    assert set(sides) == {"train", "validation", "evaluation"}
    assert not sides["train"] & sides["validation"] and not sides["train"] & sides["evaluation"]
    assert not sides["validation"] & sides["evaluation"]
    assert 0.05 < len(sides["validation"]) / len(sides["train"]) < 0.2
    newest = newest_side(found)
    rows = made_up_rows(WIDTH, 1500)
    assert len(newest.examples.continues) == sum(at >= max(rows["asked_at"]) - DAY_MS for at in rows["asked_at"])
    assert set(newest.model_version) == {"v1"}
    assert newest.probability == pytest.approx(0.7)
    assert found.examples.embedding.dtype == np.float32


def test_damaged_and_foreign_files_are_left_out_and_named(tmp_path: Path) -> None:
    rows = made_up_rows(WIDTH, 1500)
    write_made_up(tmp_path, LIVE, rows)
    whole = read_label_log(tmp_path, LIVE)
    good = next(tmp_path.glob("*/labels-00000.npz"))
    (tmp_path / "labels-a.npz").write_bytes(good.read_bytes()[:-100])
    (tmp_path / "labels-b.npz").write_bytes(b"")
    (tmp_path / "labels-c.npz").mkdir()
    (tmp_path / "labels-d.npz.partial").write_bytes(b"x")
    write_file(tmp_path / "labels-e.npz", LIVE, rows, format=1)
    write_file(tmp_path / "labels-f.npz", replace(LIVE, encoder_sha256="other"), rows)
    write_file(tmp_path / "labels-g.npz", replace(LIVE, features=FeatureSettings(prompt_window=3)), rows)
    write_file(tmp_path / "labels-h.npz", LIVE, {**rows, "embedding": rows["embedding"][:, :4]})
    np.savez(tmp_path / "labels-i.npz", **{name: values for name, values in np.load(good).items() if name != "turn_count"})
    data = bytearray(good.read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    (tmp_path / "labels-j.npz").write_bytes(data)  # its directory is sound, its columns are not
    found = read_label_log(tmp_path, LIVE)
    assert len(found.examples.continues) == len(whole.examples.continues)
    said = "\n".join(found.notes)
    assert "1 files left out, whose encoder is not that of the live version v1: labels-f.npz" in said
    assert "whose prompt_window is not that of the live version v1: labels-g.npz" in said
    assert "whose width of the embedding is not that of the live version v1: labels-h.npz" in said
    assert f"6 damaged files left out, the first {tmp_path / 'labels-a.npz'}" in said


def test_unusable_labels_are_refused_with_the_reason(tmp_path: Path) -> None:
    rows = made_up_rows(WIDTH, 60)
    with pytest.raises(LabelLogError, match=r"does not exist: name that of the sidecars' LPC_LABEL_LOG"):
        read_label_log(tmp_path / "none", LIVE)
    (tmp_path / "young").mkdir()
    with pytest.raises(TooFewTurnsError, match=r"no label log in .*neither it nor a folder in it has labels-"):
        read_label_log(tmp_path / "young", LIVE)
    with pytest.raises(TooFewTurnsError, match=r"is too small: .*train \d+ and \d+, .*at least 50 of each are needed"):
        read_label_log(write_made_up(tmp_path / "few", LIVE, rows), LIVE)
    with pytest.raises(LabelLogError, match=r"none of the 3 files in .*whose encoder is not that of the live version v1"):
        read_label_log(write_made_up(tmp_path / "other", replace(LIVE, encoder_sha256="x"), rows), LIVE)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "labels-1.npz").write_bytes(b"no archive")
    with pytest.raises(LabelLogError, match=r"none of the 1 files .*1 damaged files left out, the first .*labels-1.npz: "):
        read_label_log(tmp_path / "damaged", LIVE)
    nothing = {name: values[:0] for name, values in rows.items()}
    write_file(tmp_path / "empty" / "labels-1.npz", LIVE, nothing)
    with pytest.raises(TooFewTurnsError, match=r"no turns in .*the log is empty"):
        read_label_log(tmp_path / "empty", LIVE)


def test_the_files_that_a_sidecar_writes_are_read(tmp_path: Path) -> None:
    rows = made_up_rows(WIDTH, 1500)
    labels = []
    for i, conversation in enumerate(rows["conversation"]):
        said = Forecast(0.25, rows["embedding"][i].astype("<f2").tobytes(), 17, LIVE)
        key, at = bytes.fromhex(conversation), rows["asked_at"][i] / 1000
        turn = remembered(key, at, rows["turn_count"][i], rows["prompt_chars"][i])
        labels.append(Label(turn, said, rows["continues"][i], rows["gap_s"][i]))
    write_file(tmp_path / "labels-20261120T000000.000000Z-0123abcd.npz", LIVE, columns_of(labels))
    found = read_label_log(tmp_path, LIVE)
    expected = read_label_log(write_made_up(tmp_path / "made-up", LIVE, rows, files=1), LIVE)
    assert found.notes == expected.notes == ()
    assert np.array_equal(found.examples.embedding, expected.examples.embedding)
    assert np.array_equal(found.examples.continues, expected.examples.continues)
    assert np.array_equal(found.examples.split, expected.examples.split)
    assert abs(int(found.last.astype("datetime64[ms]").astype(np.int64)) - END_MS) < DAY_MS


def test_turns_without_numbers_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = made_up_rows(WIDTH, 1500)
    rows["embedding"][:5, 3] = math.nan
    rows["probability"][5] = math.nan
    rows["asked_at"] = np.array(rows["asked_at"], "<M8[ms]")
    rows["asked_at"][6] = np.datetime64("NaT")
    for place, name in enumerate(COUNTS, 7):
        rows[name] = np.array(rows[name])
        rows[name][place] = -1
    found = read_label_log(write_made_up(tmp_path, LIVE, rows), LIVE)
    assert any(note.startswith(f"{7 + len(COUNTS)} turns left out whose embedding") for note in found.notes)
    assert np.isfinite(found.examples.embedding).all()


@pytest.mark.parametrize("count", [math.nan, math.inf, 10**30, -(10**30), -1, 0, "many", None, [1]])
def test_a_file_with_a_wrong_number_of_rows_is_left_out(tmp_path: Path, count: object) -> None:
    rows = made_up_rows(WIDTH, 1500)
    whole = read_label_log(write_made_up(tmp_path, LIVE, rows), LIVE)
    with (tmp_path / "labels-a.npz").open("wb") as file:
        write(file, LIVE, {name: values[:5] for name, values in rows.items()}, rows=count)
    found = read_label_log(tmp_path, LIVE)
    assert len(found.examples.continues) == len(whole.examples.continues)
    assert any("1 damaged files left out" in note for note in found.notes)


def test_turns_from_the_future_are_left_out_counted_and_do_not_stop_the_training(tmp_path: Path, log: Path) -> None:
    """A clock that was a year ahead for a moment made its turns the newest day: training ended with too few turns."""
    whole = read_label_log(log, LIVE)
    rows = made_up_rows(WIDTH, 1500)
    write_made_up(tmp_path, LIVE, rows)
    year = 365 * DAY_MS
    ahead = {name: values[:5] for name, values in rows.items()}
    write_file(tmp_path / "labels-ahead.npz", LIVE, {**ahead, "asked_at": [at + year for at in ahead["asked_at"]]})
    found = read_label_log(tmp_path, LIVE)
    assert found.notes == (
        "5 turns left out whose time is in the future: check the clocks of the sidecars and of this machine",
    )
    assert (found.first, found.cut, found.last) == (whole.first, whole.cut, whole.last)
    assert len(found.probability) == len(whole.probability)


def test_files_that_are_deleted_during_the_reading_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sidecars delete the oldest files of a full log while training reads it."""
    rows = made_up_rows(WIDTH, 1500)
    write_made_up(tmp_path, LIVE, rows)
    some = {name: values[:5] for name, values in rows.items()}
    first, second = (write_file(tmp_path / f"labels-{number}.npz", LIVE, some) for number in (1, 2))
    real_metadata, real_read = label_rows.metadata_of, label_rows.read

    def metadata_of(path: Path) -> dict[str, Any]:
        first.unlink(missing_ok=True)
        return real_metadata(path)

    def read(path: Path) -> dict[str, NDArray[Any]]:
        second.unlink(missing_ok=True)
        return real_read(path)

    monkeypatch.setattr(label_rows, "metadata_of", metadata_of)
    monkeypatch.setattr(label_rows, "read", read)
    found = read_label_log(tmp_path, LIVE)
    assert found.notes == ("1 files left out, which sidecars deleted while the log was read, because it was full",) * 2
    assert len(found.probability) > 0
