"""Input of `lpc cache calibrate`: labelled pairs of questions or answers from a file, and their embeddings.

A file is TSV or CSV with a header, or JSON lines. The fields are question_a, question_b and label; the names of Quora
(question1, question2, is_duplicate) and PAWS (sentence1, sentence2) are also accepted. Pairs of answers have the fields
answer_a and answer_b, and for a judge that reads questions also question_a and question_b. A label is one of `LABELS`.
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
    """A file of pairs is invalid. The message names file and line, and quotes nothing."""


class Pair(NamedTuple):
    """Two questions, and whether the same answer fits both."""

    a: str
    b: str
    same: bool


class AnswerPair(NamedTuple):
    """Two questions with their answers, and whether the answers are the same."""

    question: str
    answer: str
    other_question: str
    other_answer: str
    same: bool


class Lookups(NamedTuple):
    """Simulated lookups in file order: similarity of the questions, and whether the candidate's answer is wrong."""

    similarity: NDArray[np.float64]
    wrong: NDArray[np.bool_]


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file in order, without pairs that have an empty question.

    Raises:
        PairsError: the file cannot be read or has no pairs, or a line lacks a question or label.
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
        texts = [record.get(name, "") for name in ("question_a", "answer_a", "question_b", "answer_b")]
        if not all(isinstance(text, str) for text in texts) or not texts[1].strip() or not texts[3].strip():
            raise PairsError(f"{where}: answer_a and answer_b must be non-empty strings")
        question, answer, other_question, other_answer = texts
        pairs.append(AnswerPair(question, answer, other_question, other_answer, _label(where, record)))
    return pairs


def lookups_of(pairs: Sequence[Pair], first: NDArray[np.float32], second: NDArray[np.float32]) -> Lookups:
    """Return pairs as lookups of the second question with the first one's answer as candidate.

    Pairs in two languages and vetoed pairs are left out.
    """
    similarity = (first * second).sum(axis=1).astype(np.float64)
    kept = np.array([language_of(a) == language_of(b) and veto(a, b) is None for a, b, _ in pairs], np.bool_)
    wrong = np.array([not same for _, _, same in pairs], np.bool_)
    return Lookups(similarity[kept], wrong[kept])


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield file and line of each record, for messages, and the record."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise PairsError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except OSError as error:
        raise PairsError(f"{path} cannot be read: {error.strerror}") from error
    first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith("{"):
        # Questions may contain commas and quotation marks, but hardly tabs.
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
        raise PairsError(f"{where}: no text in any of the fields {', '.join(names)}; a table needs a header with their names")
    return found


def _label(where: str, record: Mapping[str, Any]) -> bool:
    label = str(next((record[name] for name in LABEL if name in record), "")).strip().casefold()
    if label not in LABELS:
        raise PairsError(f"{where}: the label must be 1 or 0 (or true, false, yes, no, same, different)")
    return LABELS[label]


class Embeddings:
    """Embeddings by the exported model, as the sidecar computes them: each text is the only user turn of a conversation.

    A file caches them by digest of the text, so that each text is embedded once per model version.

    Attributes:
        encoder: id of the encoder, as in the sidecar; only vectors of one encoder are comparable.
    """

    def __init__(self, models: Path, model: str, folder: Path) -> None:
        """Load the model's metadata and the cached embeddings in ``folder``. Raises ArtifactError if there is no version."""
        self._folder = served(models / model)
        manifest = verify(self._folder)
        self.encoder = sha256(f"{manifest.encoder_sha256}:{manifest.precision}".encode()).hexdigest()[:12]
        self._file = folder / f"vectors-{self._folder.name}.npz"
        self._known: dict[str, NDArray[np.float16]] = {}
        if self._file.exists():
            with np.load(self._file) as cached:
                self._known = dict(zip(cached["keys"].tolist(), cached["vectors"], strict=True))

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings [texts, dimensions] of unit length."""
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
        arrays: dict[str, Any] = {"keys": np.array(list(self._known)), "vectors": np.array(list(self._known.values()))}
        np.savez(self._file, **arrays)


def _key(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:32]
