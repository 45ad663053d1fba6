"""Embeddings of single texts, each computed once and kept on disk by its hash."""

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.model.artifact import read_manifest
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings, ModelInput
from lpc.model.onnx_runtime import ort
from lpc.progress import progress
from lpc_apps.training.embedding import embeddings_of

TEXT_TOKENS: Final = 128
"""Tokens of a text that are read, half from each end. The paper's 512 tokens give each of five prompts 102."""
AT_ONCE: Final = 256
"""Texts after which the file is written."""

Vectors = dict[str, tuple[NDArray[np.float32], int]]
"""Embedding [384] and tokens by text."""


def embed_texts(texts: Iterable[str], artifact: Path, stored: Path) -> Vectors:
    """Return the embedding and the tokens of each text.

    Args:
        artifact: a model version folder; its encoder and tokenizer are used, but not its head.
        stored: database of embeddings, without text; created, or extended. An interrupted run continues.
    """
    manifest = read_manifest(artifact)
    stored.parent.mkdir(parents=True, exist_ok=True)
    base = f"{manifest.encoder_sha256} {manifest.precision} {TEXT_TOKENS}".encode()
    keys = {text: blake2b(text.encode(), key=blake2b(base, digest_size=32).digest(), digest_size=16).digest() for text in texts}
    with sqlite3.connect(stored) as file:
        file.execute("create table if not exists texts (key blob primary key, tokens integer, embedding blob) without rowid")
        known = {row[0] for row in file.execute("select key from texts")}
        # Texts of similar length follow each other, so that batches have little padding.
        missing = sorted((text for text, key in keys.items() if key not in known), key=len)
        if missing:
            settings = FeatureSettings(prompt_window=1, token_budget=TEXT_TOKENS, scalars=())
            encoder = FeatureEncoder(Tokenizer.from_file(str(artifact / "tokenizer.json")), settings)
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            session = ort.InferenceSession(str(artifact / "model.onnx"), options)
            unused = (0.0,) * len(manifest.features.scalars)  # of the artefact's head
            with progress("embedding", len(missing), "texts") as done:
                for at in range(0, len(missing), AT_ONCE):
                    part = missing[at : at + AT_ONCE]
                    _store(file, [keys[text] for text in part], [_features(encoder, text, unused) for text in part], session)
                    done.update(len(part))
        rows = {key: (blob, tokens) for key, tokens, blob in file.execute("select key, tokens, embedding from texts")}
    return {text: (np.frombuffer(rows[key][0], "<f2").astype(np.float32), rows[key][1]) for text, key in keys.items()}


def _features(encoder: FeatureEncoder, text: str, unused: tuple[float, ...]) -> ModelInput:
    return ModelInput(encoder.encode(UserTurns((text,), 1)).input_ids, unused)


def _store(
    file: sqlite3.Connection, keys: Sequence[bytes], features: Sequence[ModelInput], session: ort.InferenceSession
) -> None:
    embeddings = embeddings_of(features, session).astype("<f2")
    rows = zip(keys, (len(one.input_ids) for one in features), (row.tobytes() for row in embeddings), strict=True)
    file.executemany("insert or ignore into texts values (?, ?, ?)", rows)
    file.commit()
