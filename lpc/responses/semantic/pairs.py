"""Labelled pairs of questions from a file: TSV, CSV or JSON lines, as the public sets come.

A header names the columns: question_a, question_b, label, or the names of Quora (question1, question2, is_duplicate), PAWS
(sentence1, sentence2) and their like. Without one the last column is the label and the two before it are the questions. A
label is 1, true, yes, same, duplicate or paraphrase, or their opposites.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lpc.errors import LpcError

FIRST: Final = ("question_a", "question1", "sentence1", "text_a", "text1", "query1", "sentence_a", "a", "q1")
SECOND: Final = ("question_b", "question2", "sentence2", "text_b", "text2", "query2", "sentence_b", "b", "q2")
LABEL: Final = ("label", "is_duplicate", "same", "duplicate", "gold_label", "score", "y")
SAME: Final = frozenset({"1", "1.0", "true", "yes", "same", "duplicate", "paraphrase", "equivalent"})
DIFFERENT: Final = frozenset(
    {"0", "0.0", "false", "no", "different", "not_duplicate", "non_duplicate", "opposite", "not_equivalent"}
)


class PairsError(LpcError):
    """A file of pairs cannot be read. The message names file and line, and no text."""


class Pair(NamedTuple):
    """Two questions, and whether one's answer answers the other."""

    a: str
    b: str
    same: bool


class AnswerPair(NamedTuple):
    """Two questions with an answer each, and whether the answers say the same."""

    question: str
    answer: str
    other_question: str
    other_answer: str
    same: bool


def read_answer_pairs(path: Path) -> list[AnswerPair]:
    """Return the pairs of answers of a file of JSON lines: answer_a, answer_b, label, and question_a, question_b.

    Raises:
        PairsError: it cannot be read, or a line has no two answers and a label.
    """
    pairs = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        record = _record(path, number, line)
        said = [record.get(name, "") for name in ("question_a", "answer_a", "question_b", "answer_b")]
        if not all(isinstance(text, str) for text in said) or not said[1].strip() or not said[3].strip():
            raise PairsError(f"{path}, line {number}: answer_a and answer_b must be there, as texts")
        question, answer, other_question, other_answer = said
        same = _label(path, number, _named(path, number, record, LABEL))
        pairs.append(AnswerPair(question, answer, other_question, other_answer, same))
    return pairs


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file, in its order. Pairs with an empty question are left out.

    Raises:
        PairsError: it cannot be opened, is not text, has no pairs, or a line has no two questions and a label.
    """
    text = _text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise PairsError(f"{path} is empty: one pair of questions and a label per line are needed")
    rows = _from_json(path, text) if lines[0].lstrip().startswith("{") else _from_columns(path, text)
    pairs = [Pair(a.strip(), b.strip(), same) for a, b, same in rows if a.strip() and b.strip()]
    if not pairs:
        raise PairsError(f"{path} has no pair of questions with text in both")
    return pairs


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PairsError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except OSError as error:
        raise PairsError(f"{path} cannot be read: {error.strerror}") from error


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise PairsError(f"{path}, line {number}: not JSON") from error
    if not isinstance(record, dict):
        raise PairsError(f"{path}, line {number}: not a JSON object")
    return record


def _from_json(path: Path, text: str) -> Iterator[Pair]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        record = _record(path, number, line)
        a, b, label = (_named(path, number, record, names) for names in (FIRST, SECOND, LABEL))
        if not isinstance(a, str) or not isinstance(b, str):
            raise PairsError(f"{path}, line {number}: the questions must be strings")
        yield Pair(a, b, _label(path, number, label))


def _named(path: Path, number: int, record: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise PairsError(f"{path}, line {number}: none of the fields {', '.join(names[:4])} is there")


def _from_columns(path: Path, text: str) -> Iterator[Pair]:
    first = text.lstrip().splitlines()[0]
    # Commas and quotation marks are part of what people ask; tabs are not.
    rows: Iterator[tuple[int, list[str]]]
    if "\t" in first:
        rows = (
            (i, [_unquoted(cell) for cell in line.split("\t")]) for i, line in enumerate(text.splitlines(), 1) if line.strip()
        )
    else:
        delimiter = ";" if first.count(";") > first.count(",") else ","
        reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
        rows = ((reader.line_num, row) for row in reader if row)
    columns: tuple[int, int, int] | None = None
    width = 0
    for number, row in rows:
        if columns is None:
            columns, header = _columns(path, row)
            width = len(row)
            if header:
                continue
        if len(row) != width:
            raise PairsError(f"{path}, line {number}: {len(row)} columns where the first line has {width}")
        a, b, label = (row[column] for column in columns)
        yield Pair(a, b, _label(path, number, label))


def _columns(path: Path, row: Sequence[str]) -> tuple[tuple[int, int, int], bool]:
    """Return the places of both questions and the label, and whether the first row is a header."""
    names = [cell.strip().casefold() for cell in row]
    found = [next((names.index(name) for name in known if name in names), None) for known in (FIRST, SECOND, LABEL)]
    if found[0] is not None and found[1] is not None and found[2] is not None:
        return (found[0], found[1], found[2]), True
    if len(row) < 3:
        raise PairsError(f"{path}, line 1: {len(row)} columns; two questions and a label are needed, divided by tabs or commas")
    place = len(row) - 1
    return (place - 2, place - 1, place), False


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _label(path: Path, number: int, label: Any) -> bool:
    word = str(label).strip().casefold()
    if word not in SAME and word not in DIFFERENT:
        raise PairsError(
            f"{path}, line {number}: the label is neither 1 nor 0 (nor true, false, same, different); "
            "a header is one that names question_a, question_b and label"
        )
    return word in SAME
