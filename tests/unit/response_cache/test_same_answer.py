import pytest

from response_cache.semantic.same_answer import equal_text, same_by_embedding


def test_equal_text_ignores_white_space_only() -> None:
    assert equal_text("nine", "nine ") and not equal_text("nine", "Nine")


@pytest.mark.parametrize(
    ("other", "similarity", "same"),
    [
        ("At 9 it opens", 0.99, True),
        ("At 9 it opens", 0.96, False),
        ("It opens at 10", 0.99, False),
        ("It does not open at 9", 0.99, False),
        ("It opens  at 9", 0.5, True),
    ],
)
def test_similar_answers_are_the_same_unless_numbers_negation_or_opposites_differ(
    other: str, similarity: float, same: bool
) -> None:
    assert same_by_embedding("It opens at 9", other, similarity) is same
    assert not same_by_embedding("Turn it on", "Turn it off", 0.99)
