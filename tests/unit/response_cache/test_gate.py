"""The gate with repeated looks: on adversarial streams, wrong answers stay within the bound in 95 of 100 runs."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from response_cache.semantic.drift import EACH, RIGHT, STEPS, Drift
from response_cache.semantic.evidence import NO_RECORD, Evidence
from response_cache.semantic.gate import AUDITS, RECONSIDERED, Decision, Gate
from response_cache.semantic.threshold import JudgeError, upper_limit

Stream = tuple[NDArray[np.float64], NDArray[np.bool_]]
SEEDS = 100


def replay(gate: Gate, stream: Stream, judged: NDArray[np.bool_] | None = None) -> tuple[int, int]:
    """Return the number of served and of wrong answers. ``judged`` are the labels, if they differ from the truth."""
    served = wrong = 0
    labels = stream[1] if judged is None else judged
    for i, (similarity, different) in enumerate(zip(stream[0].tolist(), stream[1].tolist(), strict=True)):
        decision = gate.decide(similarity, i.to_bytes(8, "big"))
        if decision is Decision.SERVE:
            served, wrong = served + 1, wrong + different
        else:
            gate.learn(similarity, same=not labels[i], decision=decision)
    return served, wrong


def runs(make: Callable[[np.random.Generator], Stream], seeds: int = SEEDS) -> list[tuple[int, int]]:
    return [replay(Gate(draw=random.Random(seed)), make(np.random.default_rng(seed))) for seed in range(seeds)]


def within(found: list[tuple[int, int]], delta: float = 0.05) -> int:
    return sum(wrong <= delta * served for served, wrong in found)


def flat(lookups: int, risk: float) -> Callable[[np.random.Generator], Stream]:
    """Every answer is wrong with the same probability."""
    return lambda draw: (draw.uniform(0.985, 1, lookups), draw.random(lookups) < risk)


def top(lookups: int, clean: float, later: float, turns: int) -> Callable[[np.random.Generator], Stream]:
    """A third is similar and wrong with probability ``clean``, after ``turns`` lookups ``later``; the rest with one half."""

    def make(draw: np.random.Generator) -> Stream:
        near = draw.random(lookups) < 0.3
        risk = np.where(near, np.where(np.arange(lookups) < turns, clean, later), 0.5)
        return np.where(near, draw.uniform(0.99, 1, lookups), draw.uniform(0.9, 0.98, lookups)), draw.random(lookups) < risk

    return make


@pytest.mark.parametrize("risk", [0.04, 0.05])
def test_repeated_looks_at_a_risk_near_the_bound_do_not_open_the_gate(risk: float) -> None:
    found = runs(flat(700, risk))
    assert within(found) >= 95
    assert sum(served > 0 for served, _ in found) <= 8


def test_repeated_tests_without_correction_would_exceed_the_bound() -> None:
    opened = 0
    for seed in range(50):
        wrong = np.cumsum(np.random.default_rng(seed).random(2000) < 0.05)
        opened += any(upper_limit(float(wrong[n - 1]), n, 0.05) <= 0.05 for n in range(60, 2000, 60))
    assert opened > 8


@pytest.mark.parametrize("risk", [0.005, 0.02])
def test_short_runs_are_within_the_bound(risk: float) -> None:
    assert within(runs(flat(500, risk))) >= 95


def test_nothing_is_served_if_no_similarity_is_safe() -> None:
    assert all(served == 0 for served, _ in runs(flat(200, 1.0)))
    assert all(served == 0 for served, _ in runs(flat(200, 0.5)))


def test_safe_candidates_are_served() -> None:
    found = runs(flat(1200, 0.0))
    assert all(served > 200 and wrong == 0 for served, wrong in found)


@pytest.mark.parametrize("later", [1.0, 0.3])
def test_drift_shuts_the_gate_before_the_run_exceeds_the_bound(later: float) -> None:
    found = runs(top(2500, 0.003, later, turns=1800), seeds=40)
    assert sum(served > 0 for served, _ in found) > 20
    assert within(found) >= 38


def test_sixty_rewordings_of_one_question_are_not_sixty_labels() -> None:
    gate = Gate(draw=random.Random(0))
    for i in range(2000):
        assert gate.decide(0.995, b"q%d" % i) is not Decision.SERVE
        gate.learn(0.995, same=True, decision=Decision.BELOW, earlier=((i, 0), *NO_RECORD[1:]))
    assert gate.threshold is None


def test_a_popular_question_gets_one_semantic_hit() -> None:
    gate = Gate(draw=random.Random(0))
    replay(gate, flat(800, 0.0)(np.random.default_rng(0)))
    decisions = [gate.decide(0.999, b"the same") for _ in range(200)]
    served = decisions.index(Decision.SERVE)
    assert set(decisions[served + 1 :]) == {Decision.REPEATED}


def test_hits_are_audited_at_the_given_rate_and_all_of_them_after_a_wrong_one() -> None:
    gate = Gate(draw=random.Random(1))
    replay(gate, flat(5000, 0.0)(np.random.default_rng(1)))
    drawn = [gate.decide(0.999, b"more %d" % i) for i in range(2000)]
    assert drawn.count(Decision.AUDIT) == pytest.approx(AUDITS * 2000, rel=0.35)
    for number in range(2):
        gate.learn(0.999, same=False, decision=Decision.AUDIT)
        assert gate.decide(0.999, b"next %d" % number) is Decision.AUDIT
    gate.learn(0.999, same=False, decision=Decision.AUDIT)
    assert gate.threshold is None
    assert gate.forgotten


@pytest.mark.parametrize("excused", [False, True])
def test_an_audit_without_a_label_stops_serving_until_enough_are_right(excused: bool) -> None:
    gate = Gate(draw=random.Random(1))
    replay(gate, flat(5000, 0.0)(np.random.default_rng(1)))
    gate.unjudged(0.999, Decision.BELOW, excused=excused)
    assert Decision.SERVE in [gate.decide(0.999, b"before %d" % i) for i in range(20)]
    for _ in range(3):  # count as one
        gate.unjudged(0.999, Decision.AUDIT, excused=excused)
    assert {gate.decide(0.999, b"while %d" % i) for i in range(50)} == {Decision.AUDIT}
    gate.learn(0.999, same=True, decision=Decision.BELOW)
    assert gate.decide(0.999, b"still") is Decision.AUDIT
    for _ in range(12):
        gate.learn(0.999, same=True, decision=Decision.AUDIT)
    assert gate.threshold is not None
    assert Decision.SERVE in [gate.decide(0.999, b"after %d" % i) for i in range(20)]


@pytest.mark.parametrize(("excused", "opens"), [(False, False), (True, True)])
def test_lookups_without_a_label_count_as_wrong_unless_the_judge_failed(excused: bool, opens: bool) -> None:
    gate = Gate(draw=random.Random(1))
    for i in range(600):
        decision = gate.decide(0.999, b"q%d" % i)
        if decision is Decision.BELOW and i % 3 == 0:
            gate.unjudged(0.999, decision, excused=excused)
        elif decision is not Decision.SERVE:
            gate.learn(0.999, same=True, decision=decision)
    assert (gate.threshold is not None) is opens


def test_more_wrong_misses_only_raise_the_audits_until_hits_are_right() -> None:
    gate = Gate(draw=random.Random(1))
    replay(gate, flat(5000, 0.0)(np.random.default_rng(1)))
    for i in range(10):
        assert gate.decide(0.5, b"other %d" % i) is Decision.BELOW
        gate.learn(0.5, same=False, decision=Decision.BELOW)
    assert gate.threshold is not None
    assert {gate.decide(0.999, b"while %d" % i) for i in range(20)} == {Decision.AUDIT}
    for _ in range(12):
        gate.learn(0.999, same=True, decision=Decision.AUDIT)
    assert Decision.SERVE in [gate.decide(0.999, b"after %d" % i) for i in range(20)]


def opened(seed: int, lookups: int = 9000) -> Gate:
    gate = Gate(draw=random.Random(seed))
    served, _ = replay(gate, flat(lookups, 0.0)(np.random.default_rng(seed)))
    assert gate.threshold is not None and served > 400
    return gate


def test_complaints_beyond_the_bound_shut_the_gate() -> None:
    gate = Gate(draw=random.Random(2))
    served, _ = replay(gate, flat(1500, 0.0)(np.random.default_rng(2)))
    for _ in range(int(0.05 * served) + 1):
        assert not gate.forgotten
        gate.complain(0.999)
    assert gate.threshold is None and gate.forgotten


def test_one_complaint_only_audits_all_hits_until_enough_are_right() -> None:
    gate = opened(2)
    for _ in range(3):
        gate.complain(0.999)
    assert {gate.decide(0.999, b"while %d" % i) for i in range(50)} == {Decision.AUDIT}
    for _ in range(12):
        gate.learn(0.999, same=True, decision=Decision.AUDIT)
    assert Decision.SERVE in [gate.decide(0.999, b"after %d" % i) for i in range(20)]
    assert gate.bound == 0.05


def test_ten_complaints_halve_the_bound_and_right_answers_restore_it() -> None:
    gate = opened(3)
    for count in range(1, 2 * EACH):
        gate.complain(0.999)
        assert gate.bound == (0.05 if count < EACH else 0.025)
    assert gate.threshold is None or gate.threshold.bound <= 0.025
    rights = 0
    while gate.bound < 0.05:
        gate.learn(0.999, same=True, decision=Decision.AUDIT)
        rights += 1
    assert RIGHT * (EACH - 1) <= rights <= 3 * RIGHT * EACH
    for _ in range(RECONSIDERED):
        gate.learn(0.999, same=True, decision=Decision.AUDIT)
    assert gate.threshold is not None


def test_right_answers_that_would_not_be_served_do_not_restore_the_bound() -> None:
    gate = opened(4)
    for _ in range(EACH):
        gate.complain(0.999)
    for i in range(600):
        gate.learn(0.5, same=True, decision=gate.decide(0.5, b"far %d" % i))
    assert gate.bound == 0.025


def test_any_number_of_complaints_can_be_undone() -> None:
    drift = Drift(0.05)
    for _ in range(10_000):
        drift.complaint()
    assert drift.stricter == STEPS
    for _ in range((STEPS + 1) * EACH * RIGHT):
        drift.right()
    assert drift.stricter == 0


def test_a_restart_keeps_the_stricter_bound() -> None:
    gate, other = opened(5), Gate()
    for _ in range(EACH):
        gate.complain(0.999)
    pending = gate.pending()
    kept: dict[str, int] = {}
    for field, amount in [*pending.changes, *pending.steps]:
        kept[field] = max(0, kept.get(field, 0) + amount)
    other.merge(kept, other.pending())
    assert other.bound == gate.bound == 0.025


def test_a_gate_in_shadow_mode_serves_nothing() -> None:
    gate = Gate(serves=False, draw=random.Random(3))
    served, _ = replay(gate, flat(1500, 0.0)(np.random.default_rng(3)))
    assert served == 0
    assert gate.threshold is not None


def test_the_bound_holds_with_a_judge_that_misses_wrong_answers() -> None:
    found = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        stream = flat(600, 0.06)(draw)
        seen = stream[1] & (draw.random(600) < 0.5)  # half of the wrong answers are judged right
        calibration = int((draw.random(200) < 0.5).sum())
        found.append(replay(Gate(judge=JudgeError(calibration, 200), draw=random.Random(seed)), stream, seen))
    assert within(found) >= 38


def test_a_gate_can_load_the_changes_of_another() -> None:
    one, other = Gate(draw=random.Random(4)), Gate(draw=random.Random(4))
    replay(one, flat(900, 0.0)(np.random.default_rng(4)))
    kept: dict[str, int] = {}
    for field, amount in one.changes():
        kept[field] = kept.get(field, 0) + amount
    other.load(Evidence.from_fields(kept))
    assert {field: count for field, count in kept.items() if count} == one.evidence.fields()
    assert other.threshold is not None
    assert one.changes() == []


def test_initial_labels_open_the_gate_and_a_reset_forgets_them() -> None:
    start = Evidence()
    for _ in range(400):
        start.apply([*start.lookup(0.999), *start.label(0.999, same=True)])
    gate = Gate(start=start, draw=random.Random(5))
    assert gate.threshold is not None
    assert gate.changes() == []  # they stay in their file
    gate.load(Evidence())
    assert gate.threshold is not None
    gate.shut()
    gate.load(Evidence())
    assert gate.threshold is None
