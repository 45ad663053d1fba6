"""Edits of texts: they are complete, and a value keeps its kind."""

import re

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
            "Name, 99 Name 9999 99:99 AM",
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


NAMED = {
    "time": [
        ("今天是2026年11月28日。", "今天是2026年11月27日。"),
        ("今天是2026年11月28日 星期六 下午2:30。", "今天是2026年11月27日 星期五 上午9:05。"),
        ("今天是星期六。", "今天是星期五。"),
        ("現在14時30分です", "現在14時31分です"),
        ("2026年11月28日(土) 14:30", "2026年11月29日(日) 14:31"),
        ("令和8年11月28日", "令和8年11月27日"),
        ("오늘은 2026년 11월 28일 토요일", "오늘은 2026년 11월 27일 금요일"),
        ("le samedi 28 novembre 2026 à Lyon", "le lundi 7 décembre 2026 à Lyon"),
        ("Samstag, 28. November 2026, 14:30", "Freitag, 4. Dezember 2026, 14:31"),
        ("28 de noviembre de 2026", "1 de diciembre de 2026"),
        ("sábado, 28 de novembro de 2026", "quinta-feira, 3 de dezembro de 2026"),
        ("суббота, 28 ноября 2026 г.", "пятница, 4 декабря 2026 г."),
        ("28 พฤศจิกายน 2569", "29 ธันวาคม 2569"),
        ("28 نوفمبر 2026", "29 ديسمبر 2026"),
        ("ngày 28 tháng 11 năm 2026", "ngày 2 tháng 12 năm 2026"),
        ("on 28.11.2026", "on 27.11.2026"),
        ("on 28/11/26", "on 27/11/26"),
        ("at 20261128T143000Z", "at 20261128T143001Z"),
        ("on 20261128", "on 20261129"),
        ("in 2026-W48", "in 2026-W49"),
        ("at 1764155000123 ms", "at 1764155000124 ms"),
        ("是1764155000秒", "是1764155001秒"),
        ("at 3pm today", "at 4pm today"),
        ("à 14h30", "à 14h31"),
        ("2026-11-28是今天", "2026-11-27是今天"),
        ("on 28-Nov-2026 x", "on 27-Dec-2026 x"),
        ("[28/Nov/2026:14:30:01 +0000]", "[29/Dec/2026:14:30:02 +0000]"),
        ("at 20261128_143000 x", "at 20261128_143001 x"),
        ("at 20261128143000 x", "at 20261128143001 x"),
        ("le 28 novembre 2026 à 14:30", "le 7 décembre 2026 à 09:05"),
        ("am 28. November 2026 um 14:30", "am 7. Dezember 2026 um 09:05"),
        ("28 ноября 2026 г., 14:30", "7 декабря 2026 г., 09:05"),
        ("28. marraskuuta 2026", "7. joulukuuta 2026"),
        ("28. listopadu 2026", "7. prosince 2026"),
        ("2026. november 28.", "2026. december 7."),
        ("2026. 11. 28. 기준", "2026. 12. 7. 기준"),
        ("28. 11. 2026 x", "7. 12. 2026 x"),
        ("at 9.41 pm x", "at 8.03 am x"),
        ("28 Oktober 2026, Rabu", "7 Desember 2026, Senin"),
        ("at 10:05 PM now", "at 9:05 AM now"),
        ("at Sat Nov 28 14:30:00 2026 now", "at Mon Dec  7 09:05:01 2026 now"),
        ("at Sat Nov 28 14:30:00 UTC 2026 now", "at Mon Dec  7 09:05:01 UTC 2026 now"),
        ("at Nov 28 14:30:00 now", "at Dec  7 09:05:01 now"),
    ],
    "id": [
        ("cch=eb6c6; x", "cch=a41f0; x"),
        ("cch=eb6c6; x", "cch=84512; x"),
        ("cch=eb6c6; x", "cch=abcde; x"),
        ("cc_version=2.1.153.eb6; x", "cc_version=2.1.153.1f4; x"),
        ("cc_version=2.1.153.123; x", "cc_version=2.1.153.1f4; x"),
        ("user a8Kx02LmQ9 here", "user Qw7Lm2aP0z here"),
        ("user a8Kx02LmQ9 here", "user abcdefg123 here"),
        ("at 3f2a9c1 of", "at 9bb0d42 of"),
        ("at 3f2a9c1 of", "at 1234567 of"),
        ("at 9fceb02d0ae598e95dc970b74767f19372d61af8", "at 1b2a36c4d5e6f708192a3b4c5d6e7f8091a2b3c4"),
        ("d41d8cd98f00b204e9800998ecf8427e", "0cc175b9c0f1b6a831c399e269772661"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"),
        ("V1StGXR8_Z5jdHi6B-myT", "aB3-5_dHi6BmyTStGXR8Z"),
        ("0ujtsYcgvSTl8PAuAdqWYSMnLOv", "0ujzPyRiIAffKhBux4PvQdDqMHY"),
        ("snowflake 123456789012345678", "snowflake 223456789012345679"),
        ("sess-4f2a go", "sess-9b1c go"),
        ("by 12:34:56:ab:cd:ef x", "by 98:76:54:00:11:22 x"),
        ("key 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= x", "key n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg= x"),
    ],
    "number": [
        ("version 2.1.153 on", "version 2.1.154 on"),
        ("version 2.1.53 on", "version 2.1.54 on"),
        ("v1.2.24 on", "v1.2.25 on"),
        ("at 10.12.15.22 now", "at 10.12.15.23 now"),
        ("at 192.10.12.15 now", "at 192.10.12.16 now"),
        ("an iphone15pro here", "an iphone16pro here"),
        ("gpt4 here", "gpt5 here"),
        ("the 10th time", "the 11th time"),
        ("in 100ms now", "in 90ms now"),
        ("of 1.5GB now", "of 1.6GB now"),
        ("marble 5 here", "marble 6 here"),
        ("decide 5 here", "decide 6 here"),
        ("以下3点", "以下4点"),
    ],
    "text": [("an iphone15pro here", "a galaxy24ultra here"), ("你好张三先生", "你好李四先生")],
}


@pytest.mark.parametrize(("value", "text", "other"), [(value, *pair) for value, pairs in NAMED.items() for pair in pairs])
def test_a_value_that_changes_is_named_for_what_it_is(value: str, text: str, other: str) -> None:
    for one, two in ((text, other), (other, text)):
        assert {edit.value for edit in edits(one, two)} == {value}
        assert applied(one, two) == two


@pytest.mark.parametrize(("text", "other"), NAMED["time"])
def test_the_form_of_a_time_has_none_of_its_digits_and_names(text: str, other: str) -> None:
    for edit in edits(text, other):
        digits = {c for c in edit.pattern if c.isdigit()}
        assert digits <= {"9"}
        assert {*re.findall(r"[^\W\d_]{3,}", edit.pattern)} <= {"Name"}


def test_forms_that_differ_by_chance_are_one_form() -> None:
    """Times before and after noon, and ids whose signs stand elsewhere, are one cause."""
    pairs = [("at 10:05 PM", "at 9:05 AM"), ("at 10:06 AM", "at 9:05 PM")]
    pairs += [("V1StGXR8_Z5jdHi6B-myT", "aB3-5_dHi6BmyTStGXR8Z"), ("aB3-5_dHi6BmyTStGXR8Z", "V1StGXR8_Z5jdHi6B-myT")]
    forms = [edit.pattern for pair in pairs for edit in edits(*pair)]
    assert forms == ["99:99 AM", "99:99 AM", "x", "x"]


def test_a_chinese_text_is_masked_word_by_word_and_found_by_its_sentences() -> None:
    assert masked("你好，今天是2026年11月28日。请回答3个问题。") == masked("你好，今天是2026年1月2日。请回答5个问题。")
    assert masked("今天是2026年。请回答。") != masked("今天是2026年。请提问。")


def test_texts_that_differ_in_values_only_are_equal_when_masked() -> None:
    assert masked("Now 2026-09-11, call 7 of  9") == masked("Now 2026-10-01, call 12 of 3\n")
    assert masked("Now 2026-09-11") != masked("Then 2026-09-11")
