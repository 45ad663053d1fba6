import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from response_cache.semantic.evidence import LEVELS, NO_RECORD, SEGMENT, SEGMENTS, Evidence, edge, level_of
from response_cache.semantic.threshold import (
    BEGIN,
    LOOKS,
    JudgeError,
    correlation,
    effective,
    progress,
    thresholds,
    upper_limit,
)


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 20_000), st.floats(0, 0.9), st.floats(1e-6, 0.5))
def test_the_limit_is_clopper_and_pearsons(labels: float, share: float, alpha: float) -> None:
    assert upper_limit(share * labels, labels, alpha) == pytest.approx(
        beta.ppf(1 - alpha, share * labels + 1, labels - share * labels), abs=1e-7
    )


def test_levels_meet_at_their_edges() -> None:
    assert level_of(1.0) == level_of(1.0000002) == 0
    assert level_of(-1.0) == LEVELS - 1
    for level in range(LEVELS - 1):
        assert level_of(edge(level) + 1e-9) == level
        assert level_of(edge(level) - 1e-9) == level + 1


def labelled(rows: list[tuple[float, bool]], lookups: int = 1) -> Evidence:
    evidence = Evidence()
    for similarity, same in rows:
        for _ in range(lookups):
            evidence.apply(evidence.lookup(similarity))
        evidence.apply(evidence.label(similarity, same=same))
    return evidence


def test_one_look_begins_with_twice_the_59_labels_that_could_reject_anything() -> None:
    assert thresholds(labelled([(0.999, True)] * 116), looks=1) == []
    found = thresholds(labelled([(0.999, True)] * 117), looks=1)
    assert found[-1].bound == pytest.approx(1 - 0.05 ** (1 / 117))
    assert thresholds(labelled([(0.999, True)] * 117)) == []  # one look of many


@pytest.mark.parametrize("wrong_of_40", [0, 1])
@pytest.mark.parametrize("lookups", [1, 3])
def test_progress_names_the_look_that_certifies(wrong_of_40: int, lookups: int) -> None:
    """Evidence that grows at the same share of wrong labels serves at the look that it named, and not before."""
    rows = [(0.999, False)] * wrong_of_40 + [(0.999, True)] * (40 - wrong_of_40)
    evidence = labelled(rows * 2, lookups)
    assert not thresholds(evidence)
    found = progress(evidence)
    assert found.effective == pytest.approx(80) and found.design_effect == 1
    at = 80 + found.lookups / lookups
    grown = (labels for labels in LOOKS if thresholds(labelled((rows * (1 + labels // 40))[:labels], lookups)))
    assert at == next(grown)


def test_without_evidence_progress_is_the_first_look_with_enough_labels() -> None:
    found = progress(Evidence())
    assert found.effective == 0 and found.design_effect == 1
    assert found.needed == pytest.approx(BEGIN * math.log(0.05 / len(LOOKS)) / math.log(0.95))
    assert found.lookups == min(labels for labels in LOOKS if labels >= found.needed)


def test_no_number_of_labels_is_enough_if_too_many_are_wrong_or_the_judge_errs() -> None:
    found = progress(labelled([(0.999, True)] * 90 + [(0.999, False)] * 10))
    assert (found.needed, found.lookups) == (math.inf, math.inf)
    assert progress(Evidence(), judge=JudgeError(5, 5)).needed == math.inf


def test_few_labels_do_not_tell_the_share_of_wrong_ones() -> None:
    unjudged = Evidence()
    unjudged.apply([*unjudged.lookup(0.999), *unjudged.unjudged(0.999)])
    assert progress(unjudged).effective == 1 and progress(unjudged).needed == progress(Evidence()).needed


@given(st.lists(st.tuples(st.sampled_from(["lookup", "unjudged", "same", "different", "complaint"]), st.integers(1, 400))))
@settings(max_examples=100, deadline=None)
def test_progress_of_any_evidence_ends_and_is_at_least_one_look_away(rows: list[tuple[str, int]]) -> None:
    evidence = Evidence()
    for what, times in rows:
        score = 1 - times / 4000
        for _ in range(times):
            changes = evidence.lookup(score) if what != "complaint" else []
            changes += {
                "lookup": list,
                "unjudged": lambda: evidence.unjudged(score),  # noqa: B023
                "same": lambda: evidence.label(score, same=True),  # noqa: B023
                "different": lambda: evidence.label(score, same=False),  # noqa: B023
                "complaint": lambda: evidence.complaint(score),  # noqa: B023
            }[what]()
            evidence.apply(changes)
    found = progress(evidence)
    assert 0 <= found.effective <= 1e6 and found.needed > 200 and found.design_effect >= 1 and found.lookups >= 0


def test_progress_counts_a_cluster_less_and_lookups_without_a_label_as_missing() -> None:
    evidence, record = Evidence(), NO_RECORD
    for number in range(100):
        evidence.apply([*evidence.lookup(0.999), *evidence.label(0.999, same=True, earlier=record)])
        record = ((number + 1, 0), *NO_RECORD[1:])
    found = progress(evidence)
    assert found.design_effect > 5 and found.effective == pytest.approx(100 / found.design_effect)
    served_only = Evidence()
    served_only.apply(served_only.lookup(0.999) * 50)
    assert progress(served_only).effective == 0


def test_the_threshold_goes_down_while_the_bound_holds() -> None:
    rows = [(0.999, True)] * 400 + [(0.97, True)] * 200 + [(0.90, False)] * 200
    found = thresholds(labelled(rows), looks=1)
    assert found[0].score > found[-1].score
    assert 0.9 < found[-1].score <= 0.97
    assert all(threshold.bound <= 0.05 for threshold in found)


def test_an_audit_represents_unaudited_hits_and_is_one_label() -> None:
    evidence = labelled([(0.999, True)] * 100, lookups=20)
    evidence.apply(change for _ in range(1000) for change in evidence.lookup(0.98))
    evidence.apply(change for i in range(1000) for change in evidence.label(0.98, same=i >= 100))
    wrong, labels = effective(evidence.counts())
    assert wrong / labels == pytest.approx(100 / 3000)  # a tenth of a third of the lookups is wrong
    assert labels == pytest.approx(150)  # 1,000 labels of the lower stratum count as 50, the labelling rate of the upper one


def clustered(sizes: list[int], wrong_clusters: int = 0) -> Evidence:
    """Return the evidence of clusters of these sizes; all labels of the first ones are wrong."""
    evidence = Evidence()
    for number, size in enumerate(sizes):
        same = number >= wrong_clusters
        for n in range(size):
            earlier = ((n, 0 if same else n), *NO_RECORD[1:])
            evidence.apply([*evidence.lookup(0.99), *evidence.label(0.99, same=same, earlier=earlier)])
    return evidence


def test_labels_of_one_cluster_count_for_less() -> None:
    assert effective(clustered([1] * 100).counts())[1] == pytest.approx(100)
    assert effective(clustered([100]).counts())[1] < 10
    assert 40 < effective(clustered([10] * 10).counts())[1] < 80


def test_many_clusters_show_that_their_labels_are_independent() -> None:
    scattered = clustered([10] * 300)
    scattered.apply(change for _ in range(90) for change in [*scattered.lookup(0.99), *scattered.label(0.99, same=False)])
    together = clustered([10] * 309, wrong_clusters=9)
    assert effective(scattered.counts())[1] > 0.6 * 3090
    assert effective(together.counts())[1] < 0.2 * 3090
    assert correlation(90, 3090, 10, 9 * 45) > 0.9


def test_a_pair_of_labels_in_one_cluster_counts_at_the_lower_of_their_scores() -> None:
    first, later = Evidence(), Evidence()
    low = ((0, 0), (0, 0), (1, 1), *NO_RECORD[3:])
    first.apply([*first.label(0.95, same=False), *first.label(0.999, same=False, earlier=low)])
    high = ((1, 1), *NO_RECORD[1:])
    later.apply([*later.label(0.999, same=False), *later.label(0.95, same=False, earlier=high)])
    for evidence in (first, later):
        counts = evidence.counts().cumsum(axis=0)
        assert counts[level_of(0.999), [3, 5]].tolist() == [1, 0]
        assert counts[level_of(0.95), [3, 5]].tolist() == [4, 1]


def test_the_bound_includes_the_judges_error() -> None:
    evidence = labelled([(0.999, True)] * 300)
    clean = thresholds(evidence, looks=1)[-1].bound
    erring = thresholds(evidence, judge=JudgeError(20, 200), looks=1)[-1].bound
    assert erring > clean / (1 - 0.10)
    assert thresholds(evidence, judge=JudgeError(5, 5), looks=1) == []


def test_the_confidence_level_holds_with_audits_and_an_erring_judge() -> None:
    """Simulation: at a risk just above the bound, at most a share alpha of the looks certify it."""
    certified = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        upper, lower = draw.random(400) < 0.02, draw.random(250) < 0.11  # 0.64 x .02 + 0.36 x .11 = .052 of lookups
        seen = [x & (draw.random(len(x)) < 0.8) for x in (upper, lower)]
        evidence = Evidence()
        for similarity, wrong, rate in ((0.999, seen[0], 0.3), (0.98, seen[1], 1.0)):
            for different in wrong.tolist():
                evidence.apply(evidence.lookup(similarity))
                if draw.random() < rate:
                    evidence.apply(evidence.label(similarity, same=not different))
        judge = JudgeError(int((draw.random(300) < 0.2).sum()), 300)
        certified += any(threshold.score < 0.99 for threshold in thresholds(evidence, judge=judge, looks=1))
    assert certified <= 0.05 * 300


def test_evidence_can_be_stored_as_fields_and_old_segments_expire() -> None:
    draw = random.Random(0)
    evidence = Evidence()
    for i in range(SEGMENT * (SEGMENTS + 2)):
        similarity = draw.uniform(0.9, 1)
        evidence.apply(evidence.lookup(similarity))
        evidence.apply(evidence.label(similarity, same=i % 3 > 0))
    assert evidence.labels == SEGMENT * SEGMENTS
    assert evidence.labels_ever == SEGMENT * (SEGMENTS + 2)
    again = Evidence.from_fields({**evidence.fields(), "something:else": 1, "0:999:same": 4})
    assert (again.counts() == evidence.counts()).all()
    assert evidence.aged(["0:1:same", "21:1:same", "served"]) == ["0:1:same"]
