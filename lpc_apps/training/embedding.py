"""`lpc embed`: encodes every user turn of a dataset once, into Parquet shards without text.

A shard contains a random sample of conversations (ordered by half of their hash). It is written atomically and skipped if it
exists, so that an interrupted run can resume and a head can be trained on the complete shards. `embedding.json` next to them
contains the encoder and feature settings.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import LpcError
from lpc.files import replacing, write_text
from lpc.model.artifact import read_manifest
from lpc.model.features import SCALARS, FeatureEncoder, ModelInput
from lpc.model.inference import graph_inputs
from lpc.model.label_rows import COUNTS
from lpc.model.onnx_runtime import ort
from lpc.progress import progress
from lpc_apps.logs.datasets.conversation import Conversation, Example, examples_of

EXAMPLES_PER_SHARD: Final = 2048
BATCH_TOKENS: Final = 8192
"""Tokens of one encoder batch, including padding."""

DESCRIPTION: Final = "embedding.json"
FEWEST_EXAMPLES: Final = 50
"""Smallest number of examples per split and class for a meaningful head or figure."""
FOLDS: Final = 5


class EmbeddingError(LpcError):
    """Embeddings cannot be computed or read."""


@dataclass(frozen=True)
class Embedded:
    """Examples as arrays, n of them.

    Attributes:
        embedding: [n, width] fp32.
        columns: columns of `lpc.model.label_rows.COUNTS`, each [n] fp32.
        continues: [n] bool.
        split: [n] of "train", "validation", "evaluation".
        conversation: [n] keys.
        description: contents of embedding.json.
        dataset: [n] int64: place of the example's dataset in ``names``.
        names: names of the datasets.
    """

    embedding: NDArray[np.float32]
    columns: dict[str, NDArray[np.float32]]
    continues: NDArray[np.bool_]
    split: NDArray[np.str_]
    conversation: NDArray[np.str_]
    description: dict[str, Any]
    dataset: NDArray[np.int64]
    names: tuple[str, ...]

    def take(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> "Embedded":
        """Return the examples selected by a mask or by indices."""
        return Embedded(
            self.embedding[mask],
            {name: values[mask] for name, values in self.columns.items()},
            self.continues[mask],
            self.split[mask],
            self.conversation[mask],
            self.description,
            self.dataset[mask],
            self.names,
        )


def embed(
    conversations: Iterable[Conversation],
    artifact: Path,
    out: Path,
    *,
    dataset: str,
) -> int:
    """Embed all user turns of the conversations; return the number of examples in ``out``.

    Args:
        artifact: a model version folder; its encoder, tokenizer and feature settings are used, but not its head.

    Raises:
        EmbeddingError: ``out`` contains embeddings of another encoder, settings or dataset.
        ArtifactError: the artefact is missing or broken.
    """
    manifest = read_manifest(artifact)
    settings = manifest.features
    description = {
        "dataset": dataset,
        "order": "second half of the key",
        "encoder": manifest.encoder_id,
        "encoder_sha256": manifest.encoder_sha256,
        "precision": manifest.precision,
        "features": settings.to_dict(),
        "examples_per_shard": EXAMPLES_PER_SHARD,
    }
    _claim(out, description)
    shards = _shards(
        [example for conversation in conversations for example in examples_of(conversation, settings.prompt_window)]
    )
    count = sum(map(len, shards))
    encoder = FeatureEncoder(Tokenizer.from_file(str(artifact / "tokenizer.json")), settings)
    session = ort.InferenceSession(str(artifact / "model.onnx"))
    with progress("embedding", count, "turns") as done:
        for number, shard in enumerate(shards):
            path = out / f"part-{number:05d}.parquet"
            if not path.exists():
                with replacing(path) as partial:
                    pq.write_table(_table(encoder, session, shard), partial, compression="zstd")
            done.update(len(shard))
    return count


def load_embedded(*folders: Path) -> Embedded:
    """Read all shards of folders, each a dataset. Raises EmbeddingError if a folder has none, or is of another encoder."""
    parts = [_load(folder) for folder in folders]
    first = parts[0].description
    for folder, part in zip(folders, parts, strict=True):
        if differing := [key for key in ("encoder_sha256", "features") if part.description[key] != first[key]]:
            raise EmbeddingError(
                f"{folder} and {folders[0]} have another {', '.join(differing)}: make both with the same `lpc embed`"
            )
    return joined(parts)


def joined(parts: Sequence[Embedded]) -> Embedded:
    """Return the examples of several datasets, at least one, as one."""
    first = parts[0]
    return Embedded(
        np.concatenate([part.embedding for part in parts]),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
        np.concatenate([part.continues for part in parts]),
        np.concatenate([part.split for part in parts]),
        np.concatenate([part.conversation for part in parts]),
        {**first.description, "dataset": " and ".join(part.names[0] for part in parts)},
        np.repeat(np.arange(len(parts)), [len(part.split) for part in parts]),
        tuple(part.names[0] for part in parts),
    )


def _load(folder: Path) -> Embedded:
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise EmbeddingError(f"no embeddings in {folder}: make them with `lpc embed --embeddings {folder}`")
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    width = table.schema.field("embedding").type.list_size
    conversation = np.asarray(table["conversation"].to_pylist())
    description = _description(folder)
    embedding = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return Embedded(
        embedding.astype(np.float32),
        {name: table[name].to_numpy().astype(np.float32) for name in COUNTS},
        table["continues"].to_numpy(),
        split_of_few(np.asarray(table["split"].to_pylist()), table["continues"].to_numpy(), conversation),
        conversation,
        description,
        np.zeros(len(conversation), np.int64),
        (str(description["dataset"]),),
    )


def encoder_sha256(folder: Path) -> str:
    """Return the encoder's digest in a folder's description. Raises EmbeddingError if there are no embeddings."""
    try:
        return str(_description(folder)["encoder_sha256"])
    except FileNotFoundError as error:
        raise EmbeddingError(f"no embeddings in {folder}: make them with `lpc embed --embeddings {folder}`") from error


def _description(folder: Path) -> dict[str, Any]:
    """Return a folder's description. Raises EmbeddingError if it is damaged, FileNotFoundError."""
    try:
        found = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"dataset", "encoder_sha256"} <= found.keys():
        raise EmbeddingError(f"{folder / DESCRIPTION} is damaged: remove the folder, and make it again with `lpc embed`")
    return found


def split_of_few(split: NDArray[np.str_], continues: NDArray[np.bool_], conversation: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the splits, [n]; if a twentieth of the conversations is too few to validate, a fifth of those to train on joins.

    A head is calibrated on the validation split. The evaluation half stays as it is.

    Args:
        split, continues, conversation: as in `Embedded`.
    """
    validation = continues[split == "validation"]
    if min(int(validation.sum()), int((~validation).sum())) >= FEWEST_EXAMPLES:
        return split
    return np.where((split == "train") & (fold_of(conversation) == 0), "validation", split)


def fold_of(conversation: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return the fold of each key, [n], from 0: by digits that do not decide the split."""
    return np.array([int(key[16:24], 16) % FOLDS for key in conversation], np.int64)


def _claim(out: Path, description: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / DESCRIPTION
    if not path.exists():
        write_text(path, json.dumps(description, indent=2) + "\n")
        return
    there = _description(out)
    differing = [key for key in description if there.get(key) != description[key]]
    if differing:
        raise EmbeddingError(f"{out} holds embeddings with another {', '.join(differing)}: choose another folder, or remove it")


def _shards(examples: list[Example]) -> list[list[Example]]:
    # Sorted by the hash digits that do not decide the split, so that every shard has a part of each split.
    examples.sort(key=lambda example: (example.conversation[16:], example.conversation, example.turns.turn_count))
    return [examples[i : i + EXAMPLES_PER_SHARD] for i in range(0, len(examples), EXAMPLES_PER_SHARD)]


def _table(encoder: FeatureEncoder, session: ort.InferenceSession, shard: Sequence[Example]) -> pa.Table:
    features = [encoder.encode(example.turns) for example in shard]
    embeddings = embeddings_of(features, session)
    return pa.table(
        {
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1]),
            **{name: pa.array([of(example.turns) for example in shard], pa.int32()) for name, of in SCALARS.items()},
            "tokens": pa.array([len(f.input_ids) for f in features], pa.int32()),
            "continues": pa.array([e.continues for e in shard]),
            "split": pa.array([e.split for e in shard]),
            "conversation": pa.array([e.conversation for e in shard]),
        }
    )


def embeddings_of(features: Sequence[ModelInput], session: ort.InferenceSession) -> NDArray[np.float16]:
    """Return the embedding of each input, [n, width]; n is at least 1."""
    embeddings: list[Any] = [None] * len(features)
    for batch in _batches([len(f.input_ids) for f in features]):
        inputs = graph_inputs([features[i] for i in batch])
        for i, vector in zip(batch, session.run(["embedding"], inputs)[0], strict=True):
            embeddings[i] = vector.astype(np.float16)
    return np.stack(embeddings)


def _batches(lengths: list[int]) -> list[list[int]]:
    """Return indices in batches of similar length, each within BATCH_TOKENS with padding."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= BATCH_TOKENS:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
