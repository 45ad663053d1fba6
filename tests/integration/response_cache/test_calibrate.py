"""`lpc cache calibrate`: the evidence of labelled pairs."""

import json
from pathlib import Path
from typing import Any

import pytest

from response_cache.semantic.calibration import Embeddings
from response_cache.semantic.evidence_file import EvidenceError, read_evidence, read_judge_error
from response_cache.semantic.gate import Gate
from response_cache.semantic.threshold import JudgeError
from tests.command import Done, lpc

SENTENCE = "It opens at {} and is the same all week, also in winter"


def calibrate(tmp_path: Path, models: Path, kind: str, lines: list[Any], *flags: str) -> Done:
    path = tmp_path / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lpc("cache", "calibrate", f"--{kind}", str(path), *flags, "--models", str(models), "--model", "tiny")


def questions(label: object, count: int = 120) -> list[Any]:
    return [{"a": f"How do I reset part {i}?", "b": f"please how do I reset part {i}", "label": label} for i in range(count)]


def answers(different: int = 20) -> list[Any]:
    same = [{"a": SENTENCE.format(i), "b": SENTENCE.format(i), "label": True} for i in range(5)]
    return [*same, *({"a": SENTENCE.format(i), "b": SENTENCE.format(i + 1), "label": False} for i in range(different))]


def test_clean_pairs_open_a_scope_and_wrong_ones_do_not(tmp_path: Path, tiny_models: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "evidence.json"
    done = calibrate(tmp_path, tiny_models, "pairs", questions(True), "--output", str(figures), "--evidence", str(kept))
    assert done.returncode == 0, done.err
    said = json.loads(figures.read_text())
    assert (said["pairs"], said["served_share"]) == (120, 1.0)
    assert said["wrong_of_served_at_most"] == pytest.approx(1 - 0.05 ** (1 / 120), abs=1e-4)
    assert read_evidence(kept).labels == 120
    assert Gate(start=read_evidence(kept)).threshold is None  # one look of many needs more labels than a single look
    with pytest.raises(EvidenceError, match="another encoder"):
        read_evidence(kept, encoder="other")

    wrong = calibrate(tmp_path, tiny_models, "pairs", questions(False), "--output", str(figures))
    assert wrong.returncode == 0
    assert json.loads(figures.read_text())["threshold"] is None
    assert "nothing would be served" in wrong.out + wrong.err


def test_the_judges_error_is_stored_with_the_evidence(tmp_path: Path, tiny_models: Path) -> None:
    kept, encoder = tmp_path / "evidence.json", Embeddings(tiny_models, "tiny").encoder
    with pytest.raises(EvidenceError, match=r"run `lpc cache calibrate --answers FILE --evidence FILE`"):
        read_judge_error(None, encoder)
    done = calibrate(tmp_path, tiny_models, "answers", answers(), "--evidence", str(kept))
    assert done.returncode == 0, done.err
    assert "0 of 20 different answers" in done.out + done.err  # their numbers differ
    assert read_judge_error(kept, encoder) == JudgeError(0, 20)
    assert read_evidence(kept).labels == 0


@pytest.mark.parametrize(
    ("kind", "lines", "message"),
    [
        ("answers", answers(0), "no pair of different answers"),
        ("pairs", [], "is empty: it has no pairs"),
        ("pairs", [*questions(True, 1), {"a": "private", "label": 1}], "line 2: expected"),
        ("pairs", [{"a": "private", "b": " ", "label": 1}], "line 1: expected"),
        ("pairs", [{"a": "private", "b": 7, "label": 1}], "line 1: expected"),
        ("pairs", [{"a": "private", "b": "b", "label": "perhaps"}], "line 1: expected"),
        ("pairs", [["private"]], "line 1: expected"),
    ],
)
def test_an_invalid_file_of_pairs_is_one_line_that_does_not_quote_it(
    tmp_path: Path, tiny_models: Path, kind: str, lines: list[Any], message: str
) -> None:
    done = calibrate(tmp_path, tiny_models, kind, lines)
    assert done.returncode == 1
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err and "private" not in done.err


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "encoder": "x", "counts": {"a": "b"}}', '{"version": 2}']
)
def test_an_invalid_evidence_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence.json").write_text(text)
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path / "evidence.json")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_evidence(tmp_path / "none.json")
