"""`lpc cache calibrate`: what labelled pairs say a scope may serve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lpc.responses.semantic.evidence_file import EvidenceError, read_evidence
from lpc.responses.semantic.gate import Gate


def calibrate(tmp_path: Path, models: Path, label: str, *flags: str) -> subprocess.CompletedProcess[str]:
    rows = "".join(f"How do I reset part {i}?\thow do i reset part {i}\t{label}\n" for i in range(90))
    (tmp_path / "pairs.tsv").write_text(rows)
    command = [
        sys.executable,
        "-m",
        "lpc",
        "cache",
        "calibrate",
        "--pairs",
        str(tmp_path / "pairs.tsv"),
        "--data",
        str(tmp_path),
    ]
    return subprocess.run(
        [*command, "--models", str(models), "--model", "tiny", *flags], capture_output=True, text=True, timeout=90, check=False
    )


def test_clean_pairs_open_a_scope_and_wrong_ones_do_not(tmp_path: Path, tiny_models: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "evidence.json"
    done = calibrate(tmp_path, tiny_models, "1", "--json", str(figures), "--out", str(kept))
    assert done.returncode == 0, done.stderr
    said = json.loads(figures.read_text())
    assert (said["pairs"], said["served_share"]) == (90, 1.0)
    assert said["wrong_of_served_at_most"] == pytest.approx(1 - 0.05 ** (1 / 90), abs=1e-4)
    assert read_evidence(kept).labels == 90
    assert Gate(start=read_evidence(kept)).threshold is None  # one look of many asks for more than one look alone
    with pytest.raises(EvidenceError, match="another encoder"):
        read_evidence(kept, encoder="other")

    wrong = calibrate(tmp_path, tiny_models, "0", "--json", str(figures))
    assert wrong.returncode == 0
    assert json.loads(figures.read_text())["threshold"] is None
    assert "nothing would be served" in wrong.stdout + wrong.stderr


def test_a_file_that_is_no_pairs_is_refused_in_one_line(tmp_path: Path, tiny_models: Path) -> None:
    done = calibrate(tmp_path, tiny_models, "perhaps")
    assert done.returncode == 2
    assert "line 1: the label is neither 1 nor 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "encoder": "x", "counts": {"a": "b"}}', '{"version": 2}']
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence.json").write_text(text)
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path / "evidence.json")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_evidence(tmp_path / "none.json")
