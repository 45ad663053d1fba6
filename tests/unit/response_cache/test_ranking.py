import pytest

from response_cache.semantic.evidence import NO_RECORD
from response_cache.semantic.ranking import FEATURES, NEAREST, Cluster, Ranking, candidates, shipped, shortlist
from tests.unit.response_cache import opposites

FAQ = Cluster("faq", 20, 0)


def test_a_cluster_of_many_near_questions_comes_before_a_single_nearer_one() -> None:
    found = candidates([0.97, 0.965, 0.96, 0.955], [Cluster("alone"), FAQ, FAQ, FAQ])
    assert [one.place for one in found] == [1, 2, 3, 0]
    assert found[0].vote == pytest.approx(1 - found[-1].vote)
    assert found[0].support == 3 / NEAREST
    assert [one.place for one in shortlist([0.97, 0.965, 0.96, 0.955], [Cluster("alone"), FAQ, FAQ, FAQ])] == [1, 2, 3, 0]


def test_no_neighbours_give_no_candidate() -> None:
    assert candidates([], []) == shortlist([], []) == []


def test_support_and_record_raise_the_score() -> None:
    question, other = "My card is late", "When will the new card come?"

    def score(similarities: list[float], clusters: list[Cluster]) -> float:
        found = shipped().score(question, candidates(similarities, clusters)[0], other)
        assert found is not None
        return found

    alone = score([0.96], [Cluster("alone")])
    assert alone < score([0.96] * 5, [Cluster("faq")] * 5) < score([0.96] * 5, [FAQ] * 5)
    assert score([0.96] * 5, [Cluster("bad", 20, 10)] * 5) < alone + 0.2
    assert score([0.90], [FAQ]) < score([0.99], [FAQ])


def test_a_record_counts_only_up_to_its_limit() -> None:
    one, other = (candidates([0.9], [Cluster("faq", labels, 0)])[0] for labels in (100, 10**9))
    assert shipped().score("how to pay", one, "ways of payment") == shipped().score("how to pay", other, "ways of payment")


@pytest.mark.parametrize(("a", "b"), opposites.OPPOSITES)
def test_opposites_are_never_candidates_whatever_supports_them(a: str, b: str) -> None:
    best = candidates([1.0] * NEAREST, [FAQ] * NEAREST)[0]
    assert shipped().score(a, best, b) is None
    assert shipped().score(b, best, a) is None


def test_models_with_other_coefficients_have_other_digests() -> None:
    assert Ranking([0.0] * len(FEATURES), 0.0).digest != Ranking([0.0] * len(FEATURES), 0.1).digest
    with pytest.raises(ValueError, match="coefficients"):
        Ranking([1.0], 0.0)


def test_a_cluster_sums_its_record() -> None:
    assert Cluster.of("a", ((3, 1), (2, 0), *NO_RECORD[2:])) == Cluster("a", 5, 1)
