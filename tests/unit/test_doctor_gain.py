"""`lpc doctor --prometheus` recommends to run without a sidecar that has added nothing for a week."""

import pytest

from lpc.errors import LpcError
from lpc_cli import checks
from lpc_cli.checks import WEEK_H
from lpc_cli.engines import Finding
from lpc_cli.report import Counted


def counted(value: int, *, asked: int = 10_000, answered: int = 5) -> Counted:
    """Return counts in which `own` hits 4,000 of 10,000 blocks."""
    own = 4000 * asked // 10_000
    blocks = {"asked": asked, "own": own, "value": own + value}
    sums = {("lpc_ghost_blocks_total", cache): float(count) for cache, count in blocks.items()}
    return Counted({**sums, ("lpc_predictions_total", "answered"): float(answered)})


def found(monkeypatch: pytest.MonkeyPatch, week: Counted, two_weeks: Counted) -> Finding:
    answers = {WEEK_H: week, 2 * WEEK_H: two_weeks}
    monkeypatch.setattr(checks, "of_prometheus", lambda _, hours, names: answers[hours])
    (finding,) = checks.gain("http://prometheus:9090")
    return finding


def test_a_sidecar_that_adds_hits_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, counted(120), counted(240, asked=20_000)).status == "ok"


@pytest.mark.parametrize("value", [0, 4, -50])
def test_after_a_week_without_a_gain_it_recommends_to_run_without(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    finding = found(monkeypatch, counted(value), counted(value, asked=20_000))

    assert finding.status == "warn" and "without" in finding.advice


def test_before_a_week_has_passed_it_recommends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, counted(0), counted(0)).status == "ok"


def test_without_answers_of_a_sidecar_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no engine" in found(monkeypatch, counted(0, answered=0), counted(0)).found


def test_a_prometheus_that_does_not_answer_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, hours: float, names: object) -> Counted:
        raise LpcError(f"cannot read {address}")

    monkeypatch.setattr(checks, "of_prometheus", refuse)
    (finding,) = checks.gain("http://nowhere")

    assert finding.status == "fail" and "nowhere" in finding.found
