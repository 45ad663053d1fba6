"""What `lpc cache calibrate` counts: labelled pairs of questions or answers from a file, and their embeddings.

A file is TSV or CSV with a header, or JSON lines. Questions stand in question_a and question_b, the label in `label`; the names
of Quora (question1, question2, is_duplicate) and PAWS (sentence1, sentence2) are known too. Answers stand in answer_a and
answer_b, and for a judge that reads them with question_a and question_b. A label is one of `LABELS`.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from lpc.errors import LpcError
from lpc.model.artifact import verify
from lpc.model.conversation import UserTurns
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.model.versions import served
from lpc.responses.semantic.vetoes import language_of, veto
from lpc.wire.terminal import console

FIRST: Final = ("question_a", "question1", "sentence1")
SECOND: Final = ("question_b", "question2", "sentence2")
LABEL: Final = ("label", "is_duplicate")
LABELS: Final = {**dict.fromkeys(("1", "true", "yes", "same"), True), **dict.fromkeys(("0", "false", "no", "different"), False)}
BATCH: Final = 16


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


class Lookups(NamedTuple):
    """Lookups with a candidate, in file order: similarity of the questions, and whether the candidate's answer is wrong."""

    similarity: NDArray[np.float64]
    wrong: NDArray[np.bool_]


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file, in its order. Pairs with an empty question are left out.

    Raises:
        PairsError: it cannot be opened, is not text, has no pairs, or a line has no two questions and a label.
    """
    pairs = []
    for where, record in _records(path):
        a, b = _named(where, record, FIRST), _named(where, record, SECOND)
        same = _label(where, record)
        if a.strip() and b.strip():
            pairs.append(Pair(a.strip(), b.strip(), same))
    if not pairs:
        raise PairsError(f"{path} has no pair of questions with text in both")
    return pairs


def read_answer_pairs(path: Path) -> list[AnswerPair]:
    """Return the pairs of answers of a file. Raises PairsError: as `read_pairs`."""
    pairs = []
    for where, record in _records(path):
        said = [record.get(name, "") for name in ("question_a", "answer_a", "question_b", "answer_b")]
        if not all(isinstance(text, str) for text in said) or not said[1].strip() or not said[3].strip():
            raise PairsError(f"{where}: answer_a and answer_b must be there, as texts")
        question, answer, other_question, other_answer = said
        pairs.append(AnswerPair(question, answer, other_question, other_answer, _label(where, record)))
    return pairs


def lookups_of(pairs: Sequence[Pair], first: NDArray[np.float32], second: NDArray[np.float32]) -> Lookups:
    """Return pairs as lookups: the second question is asked, the first one's answer is the candidate.

    Those of two languages, and those that a veto stops, are left out.
    """
    similarity = (first * second).sum(axis=1).astype(np.float64)
    kept = np.array([language_of(a) == language_of(b) and veto(a, b) is None for a, b, _ in pairs], np.bool_)
    wrong = np.array([not same for _, _, same in pairs], np.bool_)
    return Lookups(similarity[kept], wrong[kept])


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each record stands, for messages, and the record."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise PairsError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except OSError as error:
        raise PairsError(f"{path} cannot be read: {error.strerror}") from error
    first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith("{"):
        # Commas and quotation marks are part of what people ask; tabs are not.
        tabs = "\t" in first
        if tabs:
            reader = csv.DictReader(lines, restkey="", restval="", delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            reader = csv.DictReader(lines, restkey="", restval="")
        for record in reader:
            cells = {name: _unquoted(cell) if tabs else cell for name, cell in record.items() if name}
            yield f"{path}, line {reader.line_num}", cells
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise PairsError(f"{path}, line {number}: not JSON") from error
        if not isinstance(record, dict):
            raise PairsError(f"{path}, line {number}: not a JSON object")
        yield f"{path}, line {number}", record


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _named(where: str, record: Mapping[str, Any], names: Sequence[str]) -> str:
    found = next((record[name] for name in names if name in record), None)
    if not isinstance(found, str):
        raise PairsError(
            f"{where}: a text is needed in one of the fields {', '.join(names)}; the first line of a table names them"
        )
    return found


def _label(where: str, record: Mapping[str, Any]) -> bool:
    word = str(next((record[name] for name in LABEL if name in record), "")).strip().casefold()
    if word not in LABELS:
        raise PairsError(f"{where}: the label is neither 1 nor 0 (nor true, false, same, different)")
    return LABELS[word]


class Embeddings:
    """The embeddings of texts by the exported model, as the sidecar makes them: one question, its only user turn.

    Kept in a file by digest of the text, so that a set is embedded once per model version.

    Attributes:
        encoder: what vectors that can be compared have in common, as the sidecar names it.
    """

    def __init__(self, models: Path, model: str, folder: Path) -> None:
        """Name the model and where its embeddings are kept. Raises ArtifactError: there is no version to serve."""
        self._folder = served(models / model)
        manifest = verify(self._folder)
        self.encoder = sha256(f"{manifest.encoder_sha256}:{manifest.precision}".encode()).hexdigest()[:12]
        self._file = folder / f"vectors-{self._folder.name}.npz"
        self._known: dict[str, NDArray[np.float16]] = {}
        if self._file.exists():
            with np.load(self._file) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return [texts, dimensions], each row of unit length; what is new is embedded and kept."""
        self._embed({_key(text): text for text in texts if _key(text) not in self._known}.values())
        return np.array([self._known[_key(text)] for text in texts], np.float32)

    def _embed(self, new: Iterable[str]) -> None:
        texts = sorted(new, key=len)
        if not texts:
            return
        model = Model(self._folder, InferenceSettings(provider="cpu", threads=1))
        for start in track(range(0, len(texts), BATCH), f"embedding {len(texts):,}", console=console(), transient=True):
            batch = texts[start : start + BATCH]
            _, found = model.run_with_embeddings([model.encode(UserTurns((text,), 1)) for text in batch])
            for text, vector in zip(batch, found, strict=True):
                self._known[_key(text)] = np.frombuffer(vector, "<f2")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, Any] = {"keys": np.array(list(self._known)), "vectors": np.array(list(self._known.values()))}
        np.savez(self._file, **kept)


def _key(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:32]
