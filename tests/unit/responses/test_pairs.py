from pathlib import Path

import pytest

from lpc.responses.semantic.calibration import Pair, PairsError, read_pairs

WANTED = [Pair("How, are you?", 'Say "hi"', True), Pair("a", "b", False)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paws.tsv", 'id\tsentence1\tsentence2\tlabel\n1\tHow, are you?\tSay "hi"\t1\n2\ta\tb\t0\n'),
        ("quora.tsv", 'id\tquestion1\tquestion2\tis_duplicate\n0\t"How, are you?"\t"Say ""hi"""\t1\n1\ta\tb\t0\n'),
        ("pairs.csv", 'question_a,question_b,label\n"How, are you?","Say ""hi""",same\na,b,different\n'),
        ("bom.csv", '\ufeffquestion_b,question_a,label\n"Say ""hi""","How, are you?",1\nb,a,0\n'),
        ("pairs.jsonl", '{"question_a": "How, are you?", "question_b": "Say \\"hi\\"", "label": true}\n\n'
                        '{"question1": "a", "question2": "b", "label": 0}\n'),
    ],
)  # fmt: skip
def test_public_formats_of_pairs_can_be_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_pairs(tmp_path / name) == WANTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no pair of questions"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a\tb\t1\nc\td\t1\n", "line 2: no text in any of the fields question_a"),
        (b"question_a\tquestion_b\tlabel\na\tb\n", "line 2: the label"),
        (b"question_a\tquestion_b\tlabel\nc\td\tperhaps\n", "line 2: the label"),
        (b'{"question_a": "x"}\n', "line 1: no text in any of the fields question_b"),
        (b'{"question_a": 1, "question_b": "b", "label": 1}\n', "line 1: no text"),
        (b"{not json\n", "line 1: not JSON"),
        (b"question_a\tquestion_b\tlabel\n \tb\t1\n", "no pair of questions"),
    ],
)
def test_an_error_names_the_line_and_does_not_quote_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(PairsError, match=message):
        read_pairs(path)
    with pytest.raises(PairsError, match="cannot be read"):
        read_pairs(tmp_path / "none.tsv")
