"""`lpc cache calibrate`: what labelled pairs say a scope may serve."""

import json
from pathlib import Path

import pytest

from lpc.responses.semantic.calibration import Embeddings
from lpc.responses.semantic.evidence_file import EvidenceError, read_evidence, read_judge_error
from lpc.responses.semantic.gate import Gate
from lpc.responses.semantic.threshold import JudgeError
from tests.command import Done, lpc
from tests.judge_double import JudgeDouble, judging


def measured(tmp_path: Path, models: Path, lines: list[dict[str, object]], *flags: str) -> Done:
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    where = ("--vectors", str(tmp_path), "--models", str(models), "--model", "tiny")
    return lpc("cache", "calibrate", "--answers", str(tmp_path / "answers.jsonl"), *flags, *where)


def calibrate(tmp_path: Path, models: Path, label: str, *flags: str) -> Done:
    rows = "".join(f"How do I reset part {i}?\thow do i reset part {i}\t{label}\n" for i in range(90))
    (tmp_path / "pairs.tsv").write_text("question_a\tquestion_b\tlabel\n" + rows)
    where = ("--vectors", str(tmp_path), "--models", str(models), "--model", "tiny")
    return lpc("cache", "calibrate", "--pairs", str(tmp_path / "pairs.tsv"), *flags, *where)


def test_clean_pairs_open_a_scope_and_wrong_ones_do_not(tmp_path: Path, tiny_models: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "evidence.json"
    done = calibrate(tmp_path, tiny_models, "1", "--output", str(figures), "--evidence", str(kept))
    assert done.returncode == 0, done.err
    said = json.loads(figures.read_text())
    assert (said["pairs"], said["served_share"]) == (90, 1.0)
    assert said["wrong_of_served_at_most"] == pytest.approx(1 - 0.05 ** (1 / 90), abs=1e-4)
    assert read_evidence(kept).labels == 90
    assert Gate(start=read_evidence(kept)).threshold is None  # one look of many asks for more than one look alone
    with pytest.raises(EvidenceError, match="another encoder"):
        read_evidence(kept, encoder="other")

    wrong = calibrate(tmp_path, tiny_models, "0", "--output", str(figures))
    assert wrong.returncode == 0
    assert json.loads(figures.read_text())["threshold"] is None
    assert "nothing would be served" in wrong.out + wrong.err


def answer_pairs(count: int = 20) -> list[dict[str, object]]:
    said = "It opens at {} and is the same all week, also in winter"
    same = [{"answer_a": said.format(i), "answer_b": said.format(i), "label": 1} for i in range(5)]
    return [*same, *({"answer_a": said.format(i), "answer_b": said.format(i + 1), "label": 0} for i in range(count))]


def test_how_often_a_judge_errs_is_kept_with_the_evidence(tmp_path: Path, tiny_models: Path) -> None:
    kept, encoder = tmp_path / "evidence.json", Embeddings(tiny_models, "tiny", tmp_path).encoder
    with pytest.raises(EvidenceError, match=r"run `lpc cache calibrate --answers FILE --judge embedding --evidence FILE`"):
        read_judge_error(None, "embedding", "", encoder)
    done = measured(tmp_path, tiny_models, answer_pairs(), "--evidence", str(kept))
    assert done.returncode == 0, done.err
    assert "0 of 20 different answers" in done.out + done.err  # their numbers differ
    assert read_judge_error(kept, "embedding", "", encoder) == JudgeError(0, 20)
    assert read_evidence(kept).labels == 0
    for judge, model in (("model", "m"), ("model", "")):
        with pytest.raises(EvidenceError, match="lacks the error of judge"):
            read_judge_error(kept, judge, model, encoder)
    with judging(JudgeDouble("SAME")) as judge:
        flags = ("--judge", "model", "--judge-url", judge.url, "--judge-model", "m", "--evidence", str(kept))
        done = measured(tmp_path, tiny_models, answer_pairs(), *flags)
    assert done.returncode == 0, done.err
    assert read_judge_error(kept, "model", "m", encoder) == JudgeError(20, 20)
    assert len(judge.bodies) == 20  # equal texts need no model


@pytest.mark.parametrize(
    ("lines", "flags", "says"),
    [
        ([], (), "no pair of different answers"),
        ([{"answer_a": "x", "label": 1}], (), "line 1: answer_a and answer_b must be non-empty"),
        (answer_pairs(1), ("--judge", "text"), "--judge model with --judge-url"),
        (answer_pairs(1), ("--judge", "model"), "--judge-url"),
        (
            answer_pairs(1),
            ("--judge", "model", "--judge-url", "http://127.0.0.1:1/v1", "--judge-model", "m"),
            "does not answer",
        ),
    ],
)
def test_a_judge_that_cannot_be_measured_is_refused_in_one_line(
    tmp_path: Path, tiny_models: Path, lines: list[dict[str, object]], flags: tuple[str, ...], says: str
) -> None:
    done = measured(tmp_path, tiny_models, lines, *flags)
    assert done.returncode == 1
    assert says in " ".join(done.err.split()) and "Traceback" not in done.err


def test_a_file_that_is_no_pairs_is_refused_in_one_line(tmp_path: Path, tiny_models: Path) -> None:
    done = calibrate(tmp_path, tiny_models, "perhaps")
    assert done.returncode == 1
    assert "line 2: the label must be 1 or 0" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "encoder": "x", "counts": {"a": "b"}}', '{"version": 2}']
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence.json").write_text(text)
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path / "evidence.json")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_evidence(tmp_path / "none.json")
