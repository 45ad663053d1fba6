"""Public questions with labels of which share an answer, and their vectors: the data of `ranking` and `semantic`.

`FILES` names the files of each set, which a folder of the user holds; none of them is in this repository. Questions of one
intent share an answer. Of a set of pairs, questions share an answer if a chain of pairs labelled same connects them.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.errors import LpcError
from lpc.model.conversation import UserTurns
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.model.versions import served_folder

NEIGHBOURS: Final = 400
"""Nearest questions of the whole set that are kept for each question."""
BATCH: Final = 16


class Source(NamedTuple):
    """Files of a set in the user's folder, licence, and origin."""

    files: tuple[str, ...]
    licence: str
    origin: str


FILES: Final[dict[str, Source]] = {
    "banking77": Source(
        ("banking77_train.csv", "banking77_test.csv"),
        "CC-BY-4.0",
        "PolyAI-LDN/task-specific-datasets 57ec275, banking_data/{train,test}.csv",
    ),
    "clinc150": Source(("clinc150_full.json",), "CC-BY-3.0", "clinc/oos-eval 828f809, data/data_full.json"),
    "covidq": Source(("covidq_final.csv",), "none given", "JerryWeiAI/COVID-Q 73dfa47, final_master_dataset.csv"),
    "quora": Source(
        ("quora_test.tsv",),
        "Quora's terms of service",
        "Deep1994/Quora-Question-Pairs-dataset-analysis-and-construction 79a83ee, dataset/test.tsv",
    ),
    "bq": Source(("bq.tsv",), "research only", "Leroll/awesome-ai-examples a5ace02, data/bq_corpus/dev.tsv"),
    "atec": Source(("atec_train.csv",), "competition data", "liuaiting/ATEC 16b0f9a, data/atec_nlp_sim_train.csv, 8,000 pairs"),
    "lcqmc": Source(("lcqmc_test.txt",), "research only", "zejunwang1/CSTS 2e7eeed, LCQMC/test.txt"),
    "afqmc": Source(("afqmc_dev.txt",), "competition data", "zejunwang1/CSTS 2e7eeed, AFQMC/dev.txt"),
    "oppo": Source(("oppo-xiaobu_dev.txt",), "competition data", "zejunwang1/CSTS 2e7eeed, OPPO-xiaobu/dev.txt"),
    "pawsx": Source(("pawsx_zh_test.tsv",), "free use with attribution", "Google PAWS-X, zh/test_2k.tsv"),
}
INTENTS: Final = ("banking77", "clinc150", "covidq")

Pair = tuple[str, str, bool]


@dataclass(eq=False)
class Questions:
    """A set of different questions.

    Attributes:
        name: its name in `FILES`.
        texts: the questions.
        vectors: [questions, dimensions], unit length.
        answers: [questions] number of the answer.
        pairs: pairs of questions, of a set of pairs.
        different: pairs of answers that a pair labels different; of a set of intents all are.
        near: [questions, NEIGHBOURS] nearest questions of the set, itself included, nearest first.
        similarities: [questions, NEIGHBOURS] their cosine similarities.
    """

    name: str
    texts: list[str]
    vectors: NDArray[np.float32]
    answers: NDArray[np.int64]
    pairs: list[tuple[int, int]]
    different: set[tuple[int, int]]
    near: NDArray[np.int64]
    similarities: NDArray[np.float32]

    def same(self, one: int, other: int) -> bool | None:
        """Return whether two questions share an answer; None if no label tells."""
        a, b = int(self.answers[one]), int(self.answers[other])
        if a == b:
            return True
        return False if self.name in INTENTS or (a, b) in self.different else None


def read(folder: Path, models: Path, model: str, names: tuple[str, ...] = tuple(FILES)) -> Iterator[Questions]:
    """Yield the sets whose files a folder holds. Vectors are computed once and stored beside the files.

    Raises:
        LpcError: the folder holds none of them.
    """
    found = [name for name in names if all((folder / file).exists() for file in FILES[name].files)]
    if not found:
        wanted = "; ".join(f"{' and '.join(FILES[name].files)} ({FILES[name].origin})" for name in names)
        raise LpcError(f"{folder} has no public questions: put at least one set there: {wanted}")
    for name in found:
        yield _read(name, folder, served_folder(models / model))


def _read(name: str, folder: Path, model: Path) -> Questions:
    answers, pairs = _labelled(name, folder)
    questions = sorted(answers)
    at = {text: number for number, text in enumerate(questions)}
    vectors = _vectors(questions, folder / f"{name}.vectors.npz", model)
    near, similarities = _nearest(vectors)
    different = {(answers[a], answers[b]) for a, b, same in pairs if not same}
    return Questions(
        *(name, questions, vectors, np.array([answers[text] for text in questions])),
        *([(at[a], at[b]) for a, b, _ in pairs], different | {(b, a) for a, b in different}),
        *(near, similarities),
    )


def texts(name: str, folder: Path) -> list[str]:
    """Return the different questions of a set whose files a folder holds."""
    return sorted(_labelled(name, folder)[0])


def _labelled(name: str, folder: Path) -> tuple[dict[str, int], list[Pair]]:
    """Return the number of each question's answer, and the pairs of a set of pairs."""
    paths = [folder / file for file in FILES[name].files]
    if name not in INTENTS:
        pairs = [pair for pair in _pairs(name, paths[0]) if pair[0] != pair[1]]
        return _components(pairs), pairs
    answers: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for text, intent in _INTENT_READERS[name](paths):
        answers.setdefault(text, numbers.setdefault(intent, len(numbers)))
    return answers, []


def _banking(paths: list[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        with path.open(newline="", encoding="utf-8") as lines:
            yield from ((row["text"].strip(), row["category"]) for row in csv.DictReader(lines))


def _clinc(paths: list[Path]) -> Iterator[tuple[str, str]]:
    found = json.loads(paths[0].read_text(encoding="utf-8"))
    for part in ("train", "val", "test"):
        yield from ((text.strip(), intent) for text, intent in found[part])
    for part in ("oos_train", "oos_val", "oos_test"):  # of no intent: each has an answer of its own
        yield from ((text.strip(), f"{part} {number}") for number, (text, _) in enumerate(found[part]))


def _covid(paths: list[Path]) -> Iterator[tuple[str, str]]:
    with paths[0].open(newline="", encoding="utf-8", errors="replace") as lines:
        yield from ((row["Question"].strip(), row["Question ID"]) for row in csv.DictReader(lines) if row["Question"].strip())


_INTENT_READERS: Final[dict[str, Callable[[list[Path]], Iterator[tuple[str, str]]]]] = {
    "banking77": _banking,
    "clinc150": _clinc,
    "covidq": _covid,
}
_COLUMNS: Final = {"quora": (1, 2, 0), "atec": (1, 2, 3), "pawsx": (1, 2, 3)}


def _pairs(name: str, path: Path) -> Iterator[Pair]:
    a, b, label = _COLUMNS.get(name, (0, 1, 2))
    read = 0
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) > max(a, b, label) and parts[a] and parts[b] and parts[label] in ("0", "1"):
            yield parts[a], parts[b], parts[label] == "1"
            read += 1
            if read == (8_000 if name == "atec" else 10**9):
                return


def _components(pairs: list[Pair]) -> dict[str, int]:
    """Return the number of each question's answer: that of its component under pairs labelled same."""
    parents = {text: text for a, b, _ in pairs for text in (a, b)}

    def root(text: str) -> str:
        while parents[text] != text:
            parents[text] = text = parents[parents[text]]
        return text

    for a, b, same in pairs:
        if same:
            parents[root(a)] = root(b)
    numbers: dict[str, int] = {}
    return {text: numbers.setdefault(root(text), len(numbers)) for text in parents}


def _vectors(texts: list[str], stored: Path, model: Path) -> NDArray[np.float32]:
    if stored.exists():
        with np.load(stored) as found:
            if str(found["model"]) == model.name and found["vectors"].shape[0] == len(texts):
                return np.asarray(found["vectors"], np.float32)
    loaded = Model(model, InferenceSettings(provider="cpu", threads=1))
    by_length = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    vectors: NDArray[np.float32] | None = None
    for start in range(0, len(texts), BATCH):
        batch = by_length[start : start + BATCH]
        _, found = loaded.run_with_embeddings([loaded.encode(UserTurns((texts[number],), 1)) for number in batch])
        rows = np.array([np.frombuffer(vector, "<f2") for vector in found], np.float32)
        if vectors is None:
            vectors = np.empty((len(texts), rows.shape[1]), np.float32)
        vectors[batch] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert vectors is not None
    np.savez(stored, vectors=vectors, model=model.name)
    return vectors


def _nearest(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    count = len(vectors)
    kept = min(NEIGHBOURS, count)
    near, similarities = np.empty((count, kept), np.int64), np.empty((count, kept), np.float32)
    for start in range(0, count, 500):
        scores = vectors[start : start + 500] @ vectors.T
        best = np.argpartition(scores, count - kept, axis=1)[:, count - kept :]
        values = np.take_along_axis(scores, best, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        near[start : start + 500] = np.take_along_axis(best, order, 1)
        similarities[start : start + 500] = np.take_along_axis(values, order, 1)
    return near, similarities
