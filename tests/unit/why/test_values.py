"""Edits of texts: they are complete, and a value keeps its kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.why.values import edits, masked, tokens


def applied(text: str, other: str) -> str:
    for edit in reversed(edits(text, other)):
        assert edit.start <= edit.end
        text = text[: edit.start] + edit.other + text[edit.end :]
    return text


PIECES = st.sampled_from(
    ["a", "b", "Mon", "12:30", "2026-01-01", "9", "10", "req_56448162f3", " ", "  ", "\n", "{", "}", '"k": 1', "é", "é"]
)


@given(st.lists(PIECES, max_size=30), st.lists(PIECES, max_size=30))
def test_edits_make_one_text_of_the_other(one: list[str], other: list[str]) -> None:
    text, wanted = "".join(one), "".join(other)
    assert applied(text, wanted) == wanted
    assert "".join(token.text for token in tokens(text)) == text


@pytest.mark.parametrize(
    ("text", "other", "value", "pattern"),
    [
        ("Now 2026-09-11T08:01:00Z, be kind", "Now 2026-09-11T08:00:00Z, be kind", "time", "9999-99-99T99:99:99Z"),
        (
            "It is Monday, 12 January 2026 10:05 PM now",
            "It is Friday, 3 May 2026 9:05 AM now",
            "time",
            "Name, 99 Name 9999 99:99 PM",
        ),
        ("at 1764155000 s", "at 1764155001 s", "time", "9999999999"),
        ("for req_56448162f3.", "for req_51706749f3.", "id", "x_x"),
        ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3302", "id", "x-x-x-x-x"),
        ("turn 9 of", "turn 10 of", "number", "9"),
        ("a b", "a  b", "space", "white space"),
        ("caf\u00e9", "cafe\u0301", "space", "Unicode form"),
        ('with {"a": 1, "b": [2]} kept', 'with {"b": [2], "a": 1} kept', "keys", "JSON"),
        ("for Ann Lee.", "for Bo Kim.", "text", "text"),
        ("to ann@example.com now", "to bo@example.com now", "email", "e-mail address"),
    ],
)
def test_a_value_that_changes_has_a_kind_and_a_pattern_without_its_text(
    text: str, other: str, value: str, pattern: str
) -> None:
    (edit,) = edits(text, other)
    assert (edit.value, edit.pattern) == (value, pattern)


def test_texts_that_differ_in_values_only_are_equal_when_masked() -> None:
    assert masked("Now 2026-09-11, call 7 of  9") == masked("Now 2026-10-01, call 12 of 3\n")
    assert masked("Now 2026-09-11") != masked("Then 2026-09-11")
