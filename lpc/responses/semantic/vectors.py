"""The questions' embeddings by the exported model, as the sidecar makes them: one question, its only user turn.

Kept in a file by digest of the text, so that a set is embedded once per model version.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from lpc.model.artifact import verify
from lpc.model.conversation import UserTurns
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.model.versions import served
from lpc.wire.terminal import console

BATCH: Final = 16


class Vectors:
    """Embeddings of texts, [texts, dimensions] fp32 of unit length.

    Attributes:
        version: the model's.
        encoder: what vectors that can be compared have in common, as the sidecar names it.
    """

    def __init__(self, models: Path, model: str, folder: Path) -> None:
        """Name the model and where its embeddings are kept.

        Raises:
            ArtifactError: there is no version to serve.
        """
        self._folder = served(models / model)
        self.version = self._folder.name
        manifest = verify(self._folder)
        self.encoder = hashlib.sha256(f"{manifest.encoder_sha256}:{manifest.precision}".encode()).hexdigest()[:12]
        self._file = folder / f"vectors-{self._folder.name}.npz"
        self._known: dict[str, NDArray[np.float16]] = {}
        if self._file.exists():
            with np.load(self._file) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embedding of each text; what is new is embedded and kept."""
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
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
