"""A similarity that the operator has set: served from there on, audited, and with the bound that follows from the evidence."""

import random

import numpy as np
import pytest
from pydantic import ValidationError

from response_cache.semantic.evidence import edge, level_of
from response_cache.semantic.gate import AUDITS, Decision
from response_cache.semantic.set_gate import SetGate, evidence_score
from response_cache.semantic.threshold import JudgeError
from response_cache.store.scopes import ScopeSettings

SET = 0.95


def bound_of(gate: SetGate) -> float:
    assert gate.threshold is not None
    return gate.threshold.bound


def course(gate: SetGate, seed: int, lookups: int, risk: float, below: float) -> list[Decision]:
    """Run look-ups whose candidates are wrong with ``risk`` from the threshold on, and with ``below`` under it."""
    draw = np.random.default_rng(seed)
    done = []
    for number in range(lookups):
        similarity = float(draw.uniform(0.9, 1))
        wrong = draw.random() < (risk if similarity >= SET else below)
        score = evidence_score(similarity, SET)
        decision = gate.decide(score, number.to_bytes(8, "big"))
        assert (decision is Decision.BELOW) == (similarity < SET)
        if decision is not Decision.SERVE:
            gate.learn(score, same=not wrong, decision=decision)
        done.append(decision)
    gate.load(gate.evidence)
    return done


def test_it_serves_from_the_start_and_audits_a_twentieth() -> None:
    gate = SetGate(SET, draw=random.Random(0))
    assert bound_of(gate) == 1.0  # nothing has been seen
    done = course(gate, 0, 8000, 0.0, 1.0)
    served, audited = done.count(Decision.SERVE), done.count(Decision.AUDIT)
    assert served > 0 and audited / (served + audited) == pytest.approx(AUDITS, abs=0.015)


@pytest.mark.parametrize("risk", [0.02, 0.3])
def test_the_bound_is_above_the_share_of_wrong_answers_and_comes_near(risk: float) -> None:
    bounds = []
    for seed in range(100):
        gate = SetGate(SET, draw=random.Random(seed))
        course(gate, seed, 2000, risk, 0.9)
        bounds.append(bound_of(gate))
    assert sum(bound >= risk for bound in bounds) >= 95
    assert float(np.median(bounds)) < risk + 0.2


def test_wrong_answers_just_below_the_threshold_do_not_raise_the_bound() -> None:
    just_below = SET - 1e-4
    assert level_of(just_below) == level_of(SET) and level_of(evidence_score(just_below, SET)) == level_of(SET) + 1
    assert evidence_score(0.5, SET) == 0.5 and evidence_score(edge(level_of(SET) + 3), SET) == edge(level_of(SET) + 3)
    gate = SetGate(SET, draw=random.Random(1))
    course(gate, 1, 3000, 0.0, 1.0)
    assert bound_of(gate) < 0.1


def test_neither_wrong_answers_nor_complaints_nor_other_sidecars_shut_it() -> None:
    gate = SetGate(SET, draw=random.Random(2))
    course(gate, 2, 1000, 1.0, 1.0)
    for _ in range(50):
        gate.complain(0.97)
    gate.unjudged(0.97, Decision.AUDIT)
    pending = gate.pending()
    assert not pending.forget
    gate.merge({**gate.evidence.fields(), "turned": 3}, pending)
    gate.merge({**gate.evidence.fields(), "turned": 4}, gate.pending())
    assert bound_of(gate) > 0.9 and gate.evidence.labels > 0
    decisions = [gate.decide(0.97, bytes([number])) for number in range(200)]
    assert decisions.count(Decision.SERVE) > 150


def test_in_shadow_it_serves_nothing_and_shows_the_bound() -> None:
    gate = SetGate(SET, serves=False)
    for number in range(300):
        assert gate.decide(0.97, number.to_bytes(2, "big")) is Decision.BELOW
        gate.learn(0.97, same=True, decision=Decision.BELOW)
    assert bound_of(gate) < 0.02


def test_a_judge_that_errs_raises_the_bound() -> None:
    bounds = []
    for judge in (JudgeError(), JudgeError(20, 100), JudgeError(100, 100)):
        gate = SetGate(SET, judge=judge, draw=random.Random(3))
        course(gate, 3, 4000, 0.1, 0.9)
        bounds.append(bound_of(gate))
    assert bounds[0] < bounds[1] < bounds[2] == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"similarity": 0.8, "mode": "serve"},
        {"similarity": 1.1, "mode": "serve"},
        {"similarity": float("nan"), "mode": "serve"},
        {"similarity": 0.95},
        {"similarity": 0.95, "mode": "serve", "kind": "code"},
        {"question": "off"},
        {"pairs": "all"},
    ],
    ids=str,
)
def test_settings_that_cannot_apply_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ScopeSettings(**fields)  # type: ignore[arg-type]
