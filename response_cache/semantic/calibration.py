"""Input of `lpc cache calibrate`: labelled pairs of questions or answers from a file, and their embeddings.

A file has one JSON object per line, with a and b (two questions, or two answers) and label: true if one answer fits both
questions, or if the answers are the same.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.errors import LpcError
from lpc.model.artifact import verify
from lpc.model.conversation import UserTurns
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.model.versions import served_folder
from lpc.progress import each
from response_cache.semantic.normal import alike
from response_cache.semantic.ranking import Cluster, candidates, shipped
from response_cache.semantic.vetoes import language_of

BATCH: Final = 16


class PairsError(LpcError):
    """A file of pairs is invalid. The message names file and line, and quotes nothing."""


class Pair(NamedTuple):
    """Two questions or answers, and their label."""

    a: str
    b: str
    same: bool


class Lookups(NamedTuple):
    """Simulated lookups in file order: the candidate's score, and whether its answer is wrong."""

    score: NDArray[np.float64]
    wrong: NDArray[np.bool_]


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file in order. Raises PairsError if it cannot be read, has no pairs, or a line is invalid."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other line ends may be inside of a text
    except UnicodeDecodeError as error:
        raise PairsError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except OSError as error:
        raise PairsError(f"{path} cannot be read: {error.strerror}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            pair = Pair(record["a"], record["b"], record["label"])
            valid = pair.a.strip() and pair.b.strip() and isinstance(pair.same, (bool, int)) and pair.same in (0, 1)
            f"{pair.a}{pair.b}".encode()  # half of a surrogate pair is not a text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            valid = False
        if not valid:
            raise PairsError(f'{path}, line {number}: expected {{"a": "...", "b": "...", "label": true or false}}')
        pairs.append(Pair(pair.a.strip(), pair.b.strip(), bool(pair.same)))
    if not pairs:
        raise PairsError(f"{path} is empty: it has no pairs")
    return pairs


def lookups_of(pairs: Sequence[Pair], similarity: NDArray[np.float64]) -> Lookups:
    """Return pairs as lookups of the second question with the first one's answer as candidate.

    Nothing else is stored, and the candidate has no record. Pairs in two languages, pairs of the normalised tier and vetoed
    pairs are left out.
    """
    ranking = shipped()
    scores, wrong = [], []
    for (a, b, same), near in zip(pairs, similarity.tolist(), strict=True):
        if language_of(a) != language_of(b) or alike(a, b):
            continue
        score = ranking.score(b, candidates([near], [Cluster("")])[0], a)
        if score is not None:
            scores.append(score)
            wrong.append(not same)
    return Lookups(np.array(scores, np.float64), np.array(wrong, np.bool_))


class Embeddings:
    """Embeddings by the exported model, as the sidecar computes them: each text is the only user turn of a conversation.

    Attributes:
        encoder: id of the encoder, as in the sidecar; only vectors of one encoder are comparable.
    """

    def __init__(self, models: Path, model: str) -> None:
        """Load the model's metadata. Raises ArtifactError if there is no version."""
        self._folder = served_folder(models / model)
        manifest = verify(self._folder)
        self.encoder = manifest.vectors_id()

    def similarities(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return the cosine similarity of each pair."""
        vectors = self.vectors([text for pair in pairs for text in pair[:2]])
        return np.array([vectors[pair.a] @ vectors[pair.b] for pair in pairs])

    def vectors(self, some: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return the vector of each text, of unit length."""
        texts = sorted(set(some), key=len)
        vectors: dict[str, NDArray[np.float64]] = {}
        model = Model(self._folder, InferenceSettings(provider="cpu", threads=1))
        for start in each(range(0, len(texts), BATCH), f"embedding {len(texts):,} texts", f"batches of {BATCH}"):
            batch = texts[start : start + BATCH]
            _, found = model.run_with_embeddings([model.encode(UserTurns((text,), 1)) for text in batch])
            vectors |= {
                text: np.frombuffer(vector, "<f2").astype(np.float64) for text, vector in zip(batch, found, strict=True)
            }
        return vectors
