"""The rows of the label log, on which the sidecar that writes them and the training that reads them agree.

A file is Parquet and holds predictions of one model version: a column `embedding`, a fixed-size list of fp16 as wide as the
encoder's, the columns of `COLUMNS`, and in its metadata the keys below. No text.
"""

import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lpc.model.artifact import Manifest
from lpc.model.features import SCALARS

FORMAT: Final = "1"
"""Of the files; in their metadata under `FORMAT_KEY`."""
FORMAT_KEY: Final = "lpc_label_log"

FILES: Final = "labels-*.parquet"
"""Names of whole files."""

EMBEDDING: Final = "embedding"
COUNTS: Final = (*SCALARS, "tokens")
"""Whole numbers, known when the turn arrived: every scalar that a head may take, and the tokens that the model was given."""

COLUMNS: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(COUNTS, pa.int32()),
    "probability": pa.float32(),
    "continues": pa.bool_(),
    "gap_s": pa.float32(),
    "asked_at": pa.timestamp("ms", "UTC"),
    "conversation": pa.string(),
}
"""Besides the embedding: what was answered, whether a further turn came and after how many seconds (NaN: none came), when the
turn arrived, and 32 hexadecimal digits that the turns of a conversation share."""


def metadata_of(manifest: Manifest) -> dict[str, str]:
    """Return the metadata of a file whose predictions are a model version's."""
    return {
        FORMAT_KEY: FORMAT,
        "encoder_id": manifest.encoder_id,
        "encoder_sha256": manifest.encoder_sha256,
        "precision": manifest.precision,
        "features": json.dumps(manifest.features.to_dict()),
        "model_version": manifest.version,
    }
