import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from response_cache.semantic.normal import alike, normal_form
from response_cache.semantic.vetoes import veto
from tests.unit.response_cache import opposites


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("How do I pay?", " how do  i\tPAY \n"),
        ("怎么退货？", "怎么退货"),
        ("I lost my card.", "I lost my card!"),
        ("I lost my card", "I lost my card ..."),
        ("ｒｅｓｅｔ　ｍｙ　ｐａｓｓｗｏｒｄ", "Reset my password"),
        ("cafe\u0301", "café"),
        ("is it 5.", "is it 5?"),
        ("WHAT DOES IT DO", "what does it do"),
        ("Hello!!!", "hello"),
        ("Am I a member", "am i a member"),
    ],
)
def test_case_space_and_final_punctuation_do_not_count(a: str, b: str) -> None:
    assert normal_form(a) == normal_form(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("what is 10²", "what is 102"),
        ("½ cup", "1⁄2 cup"),
        ("is № 5 open", "is no 5 open"),
        ("step ①2", "step 12"),
        ("what is 5!", "what is 5"),
        ("what is 3!!", "what is 3!"),
        ("what is (n)!", "what is (n)"),
        ("is 5 mW much", "is 5 MW much"),
        ("a 10Mb link", "a 10MB link"),
        ("room B2", "room b2"),
        ("what does IT do", "what does it do"),
        ("is it for US", "is it for us"),
        ("WHO can help", "who can help"),
        ("Maße", "Masse"),
        ("1 0", "10"),
        ("re\u200bset", "reset"),
        ("\u202ereset", "reset"),
        ("rеset", "reset"),  # Cyrillic
        ("ISI", "ısı"),
        ("?", "!"),
        ("", "."),
        ("x > 5", "x < 5"),
        ("3 ≠ 4", "3 = 4"),
        ("can I", "can't I"),
    ],
)
def test_differences_of_meaning_stay(a: str, b: str) -> None:
    assert normal_form(a) != normal_form(b)


@pytest.mark.parametrize(("a", "b"), opposites.OPPOSITES)
def test_opposites_are_never_alike(a: str, b: str) -> None:
    assert not any(alike(one, other) for one in (a, a.upper(), a.lower()) for other in (b, b.upper(), b.lower()))


@given(st.text(max_size=40))
def test_a_normal_form_is_its_own(text: str) -> None:
    assert normal_form(normal_form(text)) == normal_form(text)


@given(st.text(alphabet="aIt nUS5!².?no't一不½３", max_size=12), st.text(alphabet="aIt nUS5!².?no't一不½３", max_size=12))
def test_no_veto_stops_questions_of_one_normal_form(a: str, b: str) -> None:
    """So the vetoes of the semantic tier hold for the normalised one."""
    if alike(a, b):
        assert veto(a, b) is None


@given(st.text(max_size=40))
def test_space_around_and_composition_do_not_count(text: str) -> None:
    assert alike(text, f" {text}\n ")
    assert alike(text, unicodedata.normalize("NFD", text)) or unicodedata.normalize("NFC", text) != text


@pytest.mark.parametrize(
    "text",
    ["a" * 250_000, "a1 " * 80_000, "!" * 250_000, "５" * 80_000, "\u0300" * 80_000],
    ids=["letters", "units", "ends", "wide", "marks"],
)
@pytest.mark.timeout(20)
def test_a_long_question_takes_linear_time(text: str) -> None:
    normal_form(text)
