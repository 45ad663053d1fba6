"""File format of the label log, which the sidecar writes and training reads.

A file is an .npz of NumPy with predictions of one model version: an array `embedding` [n, width] of fp16, an array [n] for each
of `COLUMNS`, and `metadata` as JSON. It contains no text.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpc.model.artifact import Manifest
from lpc.model.features import SCALARS

FORMAT: Final = 2

FILES: Final = "labels-*.npz"
"""Names of complete files."""

EMBEDDING: Final = "embedding"
COUNTS: Final = (*SCALARS, "tokens")
"""Integers known when the turn arrived: all scalar features, and the tokens of the model's input."""

COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(COUNTS, "<i4"),
    "probability": "<f4",
    "continues": "?",
    "gap_s": "<f4",
    "asked_at": "<M8[ms]",
    "conversation": "S32",
}
"""Columns besides the embedding: the prediction, whether another turn followed and after how many seconds (NaN: none), the
turn's arrival (UTC), and 32 hexadecimal digits that identify the conversation."""


def write(file: BinaryIO, manifest: Manifest, columns: Mapping[str, ArrayLike], **more: object) -> None:
    """Write a file of a model version's predictions. Raises OSError.

    Args:
        columns: n values each; `embedding` [n, width].
        more: entries that replace those of the metadata.
    """
    embedding = np.asarray(columns[EMBEDDING], "<f2")
    metadata = {
        "format": FORMAT,
        "rows": len(embedding),
        "embedding_width": embedding.shape[1],
        "encoder_id": manifest.encoder_id,
        "encoder_sha256": manifest.encoder_sha256,
        "precision": manifest.precision,
        "features": manifest.features.to_dict(),
        "model_version": manifest.version,
        **more,
    }
    arrays = {name: np.asarray(columns[name], kind) for name, kind in COLUMNS.items()}
    np.savez_compressed(file, metadata=np.array(json.dumps(metadata)), embedding=embedding, **arrays)  # type: ignore[arg-type]


def metadata_of(path: Path) -> dict[str, Any]:
    """Return a file's metadata. Raises ValueError, and the errors of NumPy and zipfile if the file is damaged."""
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        metadata: dict[str, Any] = json.loads(str(file["metadata"])) if "metadata" in file.files else {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"has format {metadata.get('format')}, this version reads {FORMAT}")
        for name in (EMBEDDING, *COLUMNS):
            if name not in file.files:
                raise ValueError(f"has no column {name}")
        if metadata.get("rows") != (rows := len(file["continues"])):
            raise ValueError(f"has {rows} rows, not as its metadata says")
    return metadata


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Return a file's columns. Raises the same errors as `metadata_of`."""
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        columns = {name: file[name] for name in (EMBEDDING, *COLUMNS)}
    for name, kind in {EMBEDDING: "<f2", **COLUMNS}.items():
        if columns[name].dtype != np.dtype(kind) or len(columns[name]) != len(columns[EMBEDDING]):
            raise ValueError(f"has {len(columns[name])} values of {columns[name].dtype} in column {name}, not of {kind}")
    return columns
